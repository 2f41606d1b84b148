"""Progress bars show on a terminal and in notebooks, and warn of nothing."""

import io
import subprocess
import sys
import types
from typing import Any

import pytest

from outcore import _run

NOTEBOOK = """
import sys, types, warnings
warnings.simplefilter("error")
shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].get_ipython = lambda: shell
from outcore import _run
_run.BAR_AFTER_S = 0.0
with _run.Bar("multiplying", None) as bar:
    bar.update(lambda: 0.5)
print(type(bar._bar).__module__)
"""


def notebook(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(config=config)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)


def test_a_notebook_needs_no_terminal() -> None:
    """There are no widgets here: text goes to standard error, which is a pipe, without a warning."""
    ran = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "multiplying:" in ran.stderr
    assert "Warning" not in ran.stderr


def test_who_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not _run.is_watched()
    notebook(monkeypatch, {"TerminalInteractiveShell": {}})
    assert not _run.is_watched()
    notebook(monkeypatch, {"IPKernelApp": {}})
    assert _run.is_watched()
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.delitem(sys.modules, "IPython")
    assert not _run.is_watched()


@pytest.mark.parametrize("progress", [None, False])
def test_no_bar_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], progress: bool | None
) -> None:
    monkeypatch.setattr(_run, "BAR_AFTER_S", 0.0)
    with _run.Bar("reading", progress) as bar:
        bar.update(lambda: 0.5)
    assert capsys.readouterr().err == ""
