"""Adds up what `cargo test` and pytest report: names what was skipped and what failed, prints `N passed, N failed, N skipped`.

The exit status is 1 when a test failed or none ran.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Counts(NamedTuple):
    passed: int
    failed: list[str]
    """What failed, and how."""
    skipped: list[str]
    """What was skipped, and why."""


def rust(path: Path) -> Counts:
    """Of `cargo test -- --show-output`: a test that cannot run here says `skipped: <why>`, and counts as passed to `cargo`."""
    text = path.read_text(errors="replace")
    found = re.findall(r"^test result: \w+\. (\d+) passed", text, re.MULTILINE)
    broken = re.findall(r"^error(?:\[E\d+\])?: (?!test failed|\d+ target).*", text, re.MULTILINE)
    outputs = re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^successes:|^failures:|\Z)", text, re.MULTILINE | re.DOTALL)
    skips = [(name, why) for name, output in outputs for why in re.findall(r"^skipped: (.*)", output, re.MULTILINE)]
    tests = len({name for name, _ in skips})
    ignored = re.findall(r"^test (\S+) \.\.\. (ignored.*)", text, re.MULTILINE)
    passed = sum(map(int, found)) - tests
    killed = re.findall(r"^\s*process didn't exit successfully: .*\(signal.*", text, re.MULTILINE)
    failed = [*re.findall(r"^test (\S.*) \.\.\. FAILED", text, re.MULTILINE), *broken, *map(str.strip, killed)]
    return Counts(passed, failed, [f"{name}: {why}" for name, why in [*dict(skips).items(), *ignored]])


def python(path: Path) -> Counts:
    if not path.exists():
        return Counts(0, ["pytest did not end: its tests are not counted"], [])
    cases = list(ElementTree.parse(path).iter("testcase"))
    skips = [f"{name(case)}: {skip.get('message')}" for case in cases for skip in case.iter("skipped")]
    wrong = [(name(case), each) for case in cases for tag in ("failure", "error") for each in case.iter(tag)]
    failed = [f"{case}: {next(iter(each.get('message', '').splitlines()), '')}" for case, each in wrong]
    return Counts(len(cases) - len(skips) - len({case for case, _ in wrong}), failed, skips)


def name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def main(rust_log: str, python_report: str) -> int:
    results = [rust(Path(rust_log)), python(Path(python_report))]
    skipped = [each for result in results for each in result.skipped]
    failed = [each for result in results for each in result.failed]
    for word, names in (("skipped", skipped), ("failed", failed)):
        for each in names:
            print(word, each)
    print(f"{sum(result.passed for result in results)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return int(bool(failed) or any(result.passed == 0 for result in results))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
