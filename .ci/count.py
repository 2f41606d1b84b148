"""Adds up what `cargo test` and pytest report: names what was skipped, prints `N passed, N failed, N skipped`.

The exit status is 1 when a test failed or none ran.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Counts(NamedTuple):
    passed: int
    failed: int
    skipped: list[str]
    """What was skipped, and why."""


def rust(path: Path) -> Counts:
    """Of `cargo test -- --show-output`: a test that cannot run here says `skipped: <why>`, and counts as passed to `cargo`."""
    text = path.read_text(errors="replace")
    found = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", text, re.MULTILINE)
    broken = len(re.findall(r"^error(?:\[E\d+\])?: (?!test failed|\d+ target)", text, re.MULTILINE))
    outputs = re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^successes:|^failures:|\Z)", text, re.MULTILINE | re.DOTALL)
    skips = [(name, why) for name, output in outputs for why in re.findall(r"^skipped: (.*)", output, re.MULTILINE)]
    tests = len({name for name, _ in skips})
    ignored = re.findall(r"^test (\S+) \.\.\. (ignored.*)", text, re.MULTILINE)
    passed = sum(int(passed) for passed, _ in found) - tests
    failed = sum(int(failed) for _, failed in found) + broken
    return Counts(passed, failed, [f"{name}: {why}" for name, why in [*dict(skips).items(), *ignored]])


def python(path: Path) -> Counts:
    if not path.exists():
        print("pytest did not end: its tests are not counted")
        return Counts(0, 1, [])
    root = ElementTree.parse(path).getroot()
    suites = list(root.iter("testsuite"))
    count = {name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    skips = [(case, skip) for case in root.iter("testcase") for skip in case.iter("skipped")]
    told = [f"{case.get('classname')}.{case.get('name')}: {skip.get('message')}" for case, skip in skips]
    return Counts(count["tests"] - failed - count["skipped"], failed, told)


def main(rust_log: str, python_report: str) -> int:
    results = [rust(Path(rust_log)), python(Path(python_report))]
    skipped = [each for result in results for each in result.skipped]
    for each in skipped:
        print(f"skipped {each}")
    passed, failed = sum(result.passed for result in results), sum(result.failed for result in results)
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return int(failed > 0 or any(result.passed + result.failed == 0 for result in results))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
