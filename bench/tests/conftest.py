"""The harness is run as a script; its folder is what imports are relative to."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
