"""Every code block of the README runs; every path and command that the documents name exists."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import outcore as oc
from outcore.cli import cli

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(\w+)( notest)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [README, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"]
PROJECT_FOLDERS = ("crates/", "bindings/", "bench/", "data/", "docs/", "examples/", ".ci/")


def blocks(language: str) -> list[str]:
    return [body for found, skipped, body in BLOCK.findall(README.read_text()) if found == language and not skipped]


def commands() -> list[list[str]]:
    lines = [line for body in blocks("console") for line in body.splitlines()]
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks in one process, then all commands of the package, in the same folder."""
    python = "\n".join(blocks("python")).replace('scratch="."', 'scratch=".", allow_tmpfs_scratch=True')
    ran = subprocess.run([sys.executable, "-W", "error", "-c", python], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert "plan        gemm" in ran.stdout
    monkeypatch.chdir(tmp_path)
    own = [words for words in commands() if words[0] == "outcore"]
    assert {words[1] for words in own} == set(cli.commands)
    for words in own:
        result = CliRunner().invoke(cli, words[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{words}: {result.output}"
    oc.configure()


def test_other_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands():
        if words[0] != "outcore":
            assert words[0] == "make", words
            assert words[1] in targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_exists(document: Path) -> None:
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    code = [
        word
        for word in re.findall(r"`([^`\s]+)`", text)
        if word.startswith(PROJECT_FOLDERS) or word in ("Makefile", "pyproject.toml")
    ]
    headings = [word for word in re.findall(r"^## (\S+)$", text, re.MULTILINE) if word.startswith(PROJECT_FOLDERS)]
    for name in links + code + headings:
        assert list(ROOT.glob(name.rstrip("/"))), f"{document.name} names {name}"


def test_the_architecture_fits_a_few_screens() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) < 200


def test_every_public_name_is_documented() -> None:
    from outcore import decomposition, errors, linalg

    for module in (oc, linalg, decomposition, errors):
        for name in module.__all__:
            assert getattr(module, name).__doc__ or name == "__version__", f"{module.__name__}.{name}"
    for kind in (oc.Array, oc.Session, oc.Trace, decomposition.PCA):
        for name, value in vars(kind).items():
            if not name.startswith("_") and (callable(value) or isinstance(value, property)):
                assert value.__doc__, f"{kind.__name__}.{name}"
