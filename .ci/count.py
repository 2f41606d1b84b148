"""Adds up what `cargo test` and pytest report: prints `N passed, N failed`, exit status 1 when a test failed or none ran."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree


def rust(path: Path) -> tuple[int, int]:
    text = path.read_text(errors="replace")
    found = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", text, re.MULTILINE)
    broken = len(re.findall(r"^error(?:\[E\d+\])?: (?!test failed|\d+ target)", text, re.MULTILINE))
    return sum(int(passed) for passed, _ in found), sum(int(failed) for _, failed in found) + broken


def python(path: Path) -> tuple[int, int]:
    if not path.exists():
        return 0, 1
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    count = {name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    return count["tests"] - failed - count["skipped"], failed


def main(rust_log: str, python_report: str) -> int:
    results = [rust(Path(rust_log)), python(Path(python_report))]
    passed, failed = (sum(each) for each in zip(*results, strict=True))
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0 or any(sum(result) == 0 for result in results))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
