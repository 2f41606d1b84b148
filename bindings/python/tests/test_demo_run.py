"""The whole demo on a small image set, in its limited process."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("outcore.decomposition")
for needed in ("PIL", "matplotlib", "jinja2", "psutil", "tqdm"):
    pytest.importorskip(needed)

from PIL import Image  # noqa: E402

from outcore.demo import run_demo  # noqa: E402
from outcore.demo.run import DemoError  # noqa: E402


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in ("left", "right"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for i in range(30):
            pixels = rng.integers(0, 60, (8, 8), dtype=np.uint8)
            pixels[:, :4] += 180 * (label == "left")
            Image.fromarray(pixels).save(tmp_path / "set" / label / f"{i}.png")
    return tmp_path / "set"


def test_the_demo_runs_and_agrees_with_numpy(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_demo(str(images), components=5, output=tmp_path / "out" / "report.html", json=True, progress=False)
    json.dumps(facts)
    assert facts["job"]["rows"] == 60
    assert facts["agreement"] < 1e-4
    assert facts["outcore"]["peak_bytes"] <= facts["limit"]["bytes"]
    assert "left" in (tmp_path / "out" / "report.html").read_text()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["report.html"]
    assert capsys.readouterr().out == ""


def test_a_bad_image_ends_the_demo_with_its_name(images: Path, tmp_path: Path) -> None:
    path = images / "right" / "7.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DemoError, match=r"right/7\.png: damaged image"):
        run_demo(str(images), output=tmp_path / "report.html", progress=False)
    assert not (tmp_path / "report.html").exists()
    assert not list(tmp_path.glob("outcore-demo-*"))
