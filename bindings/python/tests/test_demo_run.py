"""The whole demo on a few images and texts, in its limited processes."""

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("outcore.decomposition")
for needed in ("PIL", "matplotlib", "jinja2", "psutil", "tqdm"):
    pytest.importorskip(needed)

from PIL import Image  # noqa: E402

from outcore.demo import limit, run_demo, text_part  # noqa: E402
from outcore.demo.confined import DemoError  # noqa: E402


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
    facts = run_demo(str(images), only="images", components=5, output=tmp_path / "out" / "report.html", json=True, progress=False)
    json.dumps(facts)
    assert "text" not in facts
    found = facts["images"]
    assert found["job"]["rows"] == 60
    assert found["agreement"] < 1e-4
    assert found["outcore"]["peak_bytes"] <= found["limit"]["bytes"]
    assert "left" in (tmp_path / "out" / "report.html").read_text()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["report.html"]
    assert capsys.readouterr().out == ""


def test_a_bad_image_ends_the_demo_with_its_name(images: Path, tmp_path: Path) -> None:
    path = images / "right" / "7.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DemoError, match=r"right/7\.png: damaged image"):
        run_demo(str(images), only="images", output=tmp_path / "report.html", progress=False)
    assert not (tmp_path / "report.html").exists()
    assert not list(tmp_path.glob("outcore-demo-*"))


TOPICS = {
    "food": "apple bread cheese butter cake soup pepper salt recipe kitchen",
    "sea": "ship sailor harbour anchor wave storm island captain deck whale",
    "music": "violin chord melody rhythm piano drum concert singer tune orchestra",
}


def table(count: int = 150) -> str:
    """Texts of eight words of their section's ten, and a stop word."""
    rng = np.random.default_rng(3)
    lines = []
    for i in range(count):
        section = list(TOPICS)[i % len(TOPICS)]
        words = rng.choice(TOPICS[section].split(), 8)
        lines.append(f"{section}-{i}\t{section}\tthe {' '.join(words)}\n")
    return "".join(lines)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts.tsv.xz").write_bytes(lzma.compress(table().encode()))
    return tmp_path / "texts.tsv.xz"


def test_texts_are_clustered_by_their_words(texts: Path, tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.html"
    options: dict[str, Any] = {"clusters": 3, "topics": 3, "dimensions": 64, "text_memory": "32MiB"}
    facts = run_demo(texts=texts, only="text", output=report, json=True, progress=False, **options)
    json.dumps(facts)
    assert "images" not in facts
    found = facts["text"]
    job = found["job"]
    assert (job["documents"], job["words"]) == (150, 30)
    assert job["nmi"] > 0.99
    assert sorted(cluster["size"] for cluster in job["clusters"]) == [50, 50, 50]
    for cluster in job["clusters"]:
        [(section, share)] = cluster["sections"]
        assert share == 1
        assert set(cluster["words"]) <= set(TOPICS[section].split())
        assert all(name.startswith(section) for name in cluster["packages"])
    assert found["outcore"]["peak_bytes"] <= found["limit"]["bytes"]
    assert found["all_memory"][0]["nmi"] > 0.99
    html = report.read_text()
    assert all(f"{section} 100%" in html for section in TOPICS)
    assert [path.name for path in report.parent.iterdir()] == ["report.html"]

    learned = found["topics"]
    assert learned["outcore"]["peak_bytes"] <= found["limit"]["bytes"]
    assert learned["diversity"] == 1
    assert learned["npmi"] == pytest.approx(learned["rival"]["npmi"])
    for topic, beside in zip(learned["topics"], learned["rival"]["topics"], strict=True):
        words = {word for word, _ in topic["words"]}
        assert words in [set(words.split()) for words in TOPICS.values()]
        assert words == {word for word, _ in beside["words"]}
        assert (topic["size"], beside["size"]) == (50, 50)
        assert sum(chance for _, chance in topic["words"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\tsection\ttext here\ntwo\tsection\n", r"column 3 is expected"),
        (lzma.compress(table().encode())[:-40], r"texts\.tsv\.xz: cannot be unpacked"),
        (b"one\tsection\ttext\n", r"1 texts are too few for 3 clusters"),
        (b"one\tsection\tthe\n" * 3, r"no words in its third column"),
        (b"", r"too few|empty"),
    ],
)
def test_bad_texts_end_the_demo_with_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "texts.tsv.xz").write_bytes(content)
    with pytest.raises(DemoError, match=message):
        run_demo(
            texts=tmp_path / "texts.tsv.xz", only="text", clusters=3, topics=2, output=tmp_path / "report.html", progress=False
        )
    assert not (tmp_path / "report.html").exists()
    assert not list(tmp_path.glob("outcore-demo-*"))


def test_texts_are_clustered_under_a_limit_of_the_address_space_too(texts: Path, tmp_path: Path) -> None:
    spec = {"texts": str(texts), "memory": "32MiB", "clusters": 3, "topics": 3, "dimensions": 64, "rounds": 9, "seed": 0}
    way = limit.Way("rlimit")
    if not limit.works(way):
        pytest.skip("no such limit here")
    spec |= {"folder": str(tmp_path), "progress": False, "threads": None}
    facts, arrays = text_part.measure(spec, way, compare=False, show=False)
    assert facts["job"]["nmi"] > 0.99
    assert facts["topics"]["rival"] is None
    assert arrays["topic_weights"].shape == (150, 3)
    assert facts["limit"]["own_data_bytes"] > text_part.OWN_DATA_BYTES
