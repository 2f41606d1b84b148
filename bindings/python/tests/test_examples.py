"""Examples run, on data that are made here."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]


def test_cifar10(tmp_path: Path, rng: np.random.Generator) -> None:
    """Pictures whose colour is their class are soon told apart."""
    for part, count in (("train", 240), ("test", 20)):
        for number, name in enumerate(("blue", "green", "red")):
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for one in range(count):
                picture = rng.integers(0, 120, (32, 32, 3), np.uint8)
                picture[..., 2 - number] += 100
                Image.fromarray(picture).save(tmp_path / "images" / part / name / f"{one}.jpg")
    words = [sys.executable, ROOT / "examples" / "cifar10.py", "images", "--seeds", "1", "--epochs", "5", "--output", "plot.svg"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "720 samples" in ran.stdout and "chunk shuffle, seed 0" in ran.stdout
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
    found = json.loads((tmp_path / "plot.json").read_text())
    assert found["global shuffle"][0][-1] > 0.9 and found["chunk shuffle"][0][-1] > 0.9
    assert not list(tmp_path.glob("tmp*"))


def test_ngram_table(tmp_path: Path) -> None:
    """A table in memory, memory-mapped and on SSD gives the same numbers; the program itself compares them."""
    words = [
        sys.executable,
        ROOT / "examples" / "ngram_table.py",
        "--rows",
        "100000",
        "--dim",
        "16",
        "--tokens",
        "64",
        "--count",
        "6",
    ]
    ran = subprocess.run([*words, "--memory", "16MiB"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert set(json.loads((tmp_path / "ngram_table.json").read_text())) == {
        "outcore",
        "memory map",
        "memory map, random",
        "memory",
    }
    assert f"{6 * 64 * 16:,} rows looked up" in ran.stdout


def test_recommender(tmp_path: Path, rng: np.random.Generator) -> None:
    """Tables on SSD are trained to the same losses and rows as in memory, and the recommender learns which items are popular."""
    chosen = [(user, int(item)) for user in range(300) for item in 100 * rng.random(20) ** 4]
    lines = [f"{number},{user},{item}" for number, (user, item) in enumerate(chosen)]
    (tmp_path / "pairs.csv").write_text("\n".join([",0,1", *lines]))
    words = [sys.executable, ROOT / "examples" / "recommender.py", "pairs.csv", "--cache", "20KiB", "--batch", "32", "--dim", "8"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "recommender" / "recommender.json").read_text())
    assert found["same"] and found["on SSD"]["held out"] == found["in memory"]["held out"] > 0.6
