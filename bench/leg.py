"""One leg, in this process and no other: `python bench/leg.py MODULE.FUNCTION SPEC RESULT`.

SPEC is JSON. The function's dictionary goes to the file RESULT; it holds `seconds`, one number a sample.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path


def main(function: str, spec_json: str, result: str) -> None:
    spec = json.loads(spec_json)
    if spec.get("core") is not None:
        # Before any import starts threads, so that all of them stay on that core.
        os.sched_setaffinity(0, {spec["core"]})
    module, _, name = function.partition(".")
    answer = getattr(importlib.import_module(f"legs.{module}"), name)(spec)
    Path(result).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
