"""Every code block of the README runs; every path and command that the documents name exists."""

import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
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


# Crates whose public functions the facade crate re-exports, and modules of them that it does not.
PUBLIC_CRATES = ("core", "matrix", "compute", "samples", "streams", "tables", "exchange")
INNER_MODULES = {"core": {"bytes.rs", "growing.rs", "memory_split.rs", "panels.rs", "staging.rs"}}
# Types and functions for bindings and for other crates, in modules that are public for other things.
INNER = {
    "core": {"StoredFile", "Writer", "read_head", "read_vector_head", "read_text", "read_start", "out_of_room"},
    "matrix": {"of_files", "compress_within", "tiles", "lines_of"},
}
ENGINE_VERBS = {"run", "part", "reserve", "gather", "gather_into", "gather_each", "read_stream", "write_stream"}


def rust_functions(path: Path) -> Iterator[tuple[str, str, str]]:
    """Type, name and example of each public item of a file; types have no name, the header of the file neither."""
    owner, example, fence, header = "", "", "", ""
    for line in path.read_text().split("#[cfg(test)]\nmod ")[0].splitlines():
        text = line.strip()
        if comment := re.match(r"//[/!] ?(.*)", text):
            if comment[1].startswith("```"):
                fence = "" if fence else comment[1]
            elif fence == "```":
                example += comment[1] + "\n"
            continue
        if not text and example:
            yield "", "", example
        if line.startswith("impl") or header:
            header += text
            if text.endswith("{"):
                while re.search(r"<[^<>]*>", header := header.replace("->", "")):
                    header = re.sub(r"<[^<>]*>", "", header)
                owner, header = re.findall(r"\w+", header.split(" where ")[0])[-1], ""
        elif line == "}":
            owner = ""
        elif function := re.match(r"pub (?:const |async )?fn (\w+)", text):
            yield owner, function[1], example
        elif kind := re.match(r"pub (?:struct|enum|trait) (\w+)", text):
            yield kind[1], "", example
        if not text.startswith(("#[", ")]")):
            example = ""


@pytest.mark.parametrize("crate", [*PUBLIC_CRATES, "engine"])
def test_every_public_rust_function_has_an_example(crate: str) -> None:
    """In its own documentation, or in that of its type or module, where it is called."""
    source = ROOT / "crates" / crate / "src"
    paths = [path for path in source.rglob("*.rs") if path.name not in INNER_MODULES.get(crate, set()) | {"tests.rs"}]
    found = [(path, *item) for path in paths for item in rust_functions(path)]
    examples: dict[str | Path, str] = defaultdict(str)
    for path, owner, _, example in found:
        examples[path] += example
        examples[owner or path] += example
    missing = [
        f"{path.relative_to(source)}: {owner}::{name}"
        for path, owner, name, example in found
        if name
        and not example
        and not {owner, name} & INNER.get(crate, set())
        and (crate != "engine" or (owner == "Engine" and name in ENGINE_VERBS))
        and not re.search(rf"\b{name}(::<.*?>)?\(", examples[owner or path] + examples[path])
    ]
    assert not missing, "\n".join(missing)
