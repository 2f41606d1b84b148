"""What `dir` shows of the package is what it offers, and nothing that it is made of."""

import importlib
import subprocess
import sys

import pytest

PUBLIC = [
    "outcore",
    "outcore.cluster",
    "outcore.data",
    "outcore.decomposition",
    "outcore.errors",
    "outcore.filesystem",
    "outcore.linalg",
    "outcore.random_projection",
    "outcore.ranks",
    "outcore.streams",
    "outcore.text",
    "outcore.topics",
    "outcore.torch",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_shows_public_names_only(name: str) -> None:
    module = importlib.import_module(name)
    shown = dir(module)
    modules = {known.removeprefix(f"{name}.") for known in PUBLIC if known.startswith(f"{name}.")}
    assert set(module.__all__) <= set(shown) <= {*module.__all__, *modules}
    assert all(hasattr(module, shown_name) for shown_name in shown)
    assert not [name for name in shown if name.startswith("_") and name != "__version__"]


def test_what_is_not_imported_yet_is_not_shown() -> None:
    script = "import outcore; assert 'cluster' not in dir(outcore); import outcore.cluster; assert 'cluster' in dir(outcore)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
