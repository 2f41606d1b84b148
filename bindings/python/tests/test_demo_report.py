"""The demo's report renders from its measurements, whatever they say, and loads nothing from elsewhere."""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for needed in ("PIL", "matplotlib", "jinja2", "psutil", "tqdm"):
    pytest.importorskip(needed)

from outcore.demo import rivals  # noqa: E402
from outcore.demo.confined import DemoError, parse_bytes  # noqa: E402
from outcore.demo.image_part import find_data  # noqa: E402
from outcore.demo.report import render  # noqa: E402
from outcore.demo.run import summary  # noqa: E402
from outcore.demo.text_part import find_texts  # noqa: E402
from outcore.demo.words import below_in_words, bytes_in_words, outcome_in_words, ratio_in_words  # noqa: E402

MIB = 1 << 20


def trace(plan: str) -> dict[str, Any]:
    moved = {"bytes_read": 100 * MIB, "bytes_written": 5 * MIB, "peak_bytes": 30 * MIB}
    spans = [
        {
            "lane": lane,
            "name": "read" if lane == "device" else "multiply",
            "start_s": i / 10,
            "end_s": i / 10 + 0.05,
            "bytes": MIB,
        }
        for lane in ("core 10", "core 2", "device")
        for i in range(10)
    ]
    idle = {"device_busy_s": 0.7, "device_idle_s": 0.3, "cores_busy_s": 1.5, "cores_idle_s": 0.5}
    return {"plan": plan, "predicted": moved, "actual": moved, "bound_bytes": 104 * MIB, "wall_s": 1.0, "spans": spans, **idle}


def rival(which: str, **outcome: Any) -> dict[str, Any]:
    base = {
        "which": which,
        "name": which,
        "killed": False,
        "wall_s": 2.0,
        "peak_bytes": 120 * MIB,
        "samples": [(0.1, MIB), (0.2, 9)],
    }
    entry = {**base, **outcome}
    return {**entry, "words": outcome_in_words(entry)}


LIMIT = {
    "kind": "rlimit",
    "sentence": "a limit",
    "enforced": True,
    "bytes": 130 * MIB,
    "interpreter_bytes": 34 * MIB,
    "budget_bytes": 32 * MIB,
    "margin_bytes": 64 * MIB,
    "own_data_bytes": 0,
}


def images() -> dict[str, Any]:
    return {
        "title": "<digits> & more",
        "data": "data/mnist",
        "job": {
            "rows": 100,
            "height": 4,
            "width": 6,
            "channels": 1,
            "resized": 2,
            "label_names": ["cat", "dog"],
            "components": 3,
            "explained_variance": [3.0, 2.0, 1.0],
            "traces": {"fit": trace("fit"), "transform": trace("transform")},
            "version": "0",
        },
        "limit": dict(LIMIT),
        "outcore": {
            "work_s": 2.0,
            "wall_s": 3.0,
            "peak_bytes": 60 * MIB,
            "samples": [(0.0, MIB), (1.0, 60 * MIB)],
            "phases": [{"name": "decode", "start_s": 0.1, "end_s": 1.0}, {"name": "fit", "start_s": 1.0, "end_s": 3.0}],
        },
        "under_limit": [
            rival("numpy", killed=True),
            rival("numpy-memmap", memory_error="Unable to allocate"),
            rival("numpy-blocks", work_s=4.0, samples=[]),
        ],
        "all_memory": [rival("numpy", work_s=3.0), rival("scikit-learn", missing="scikit-learn is not installed")],
        "speed": {"outcore": [2.0, 2.1, 1.9], "numpy": [3.0, 3.2, 2.9]},
        "agreement": 6e-6,
    }


def texts() -> dict[str, Any]:
    clusters = [
        {"size": 60 - 10 * i, "words": words, "sections": [("libs", 0.61)], "packages": [f"lib<{i}>"]}
        for i, words in enumerate((["tool", "game"], ["perl", "module"], []))
    ]
    return {
        "title": "packages",
        "data": "data/packages.tsv",
        "job": {
            "documents": 150,
            "words": 30,
            "entries": 900,
            "sparse_bytes": 7200,
            "dimensions": 64,
            "sections": ["libs", "perl"],
            "clusters": clusters,
            "rounds": 7,
            "nmi": 0.4321,
            "traces": {"project": trace("csrmm"), "cluster": trace("k-means")},
            "version": "0",
        },
        "limit": {**LIMIT, "own_data_bytes": 64 * MIB},
        "outcore": {**images()["outcore"], "phases": [{"name": "import", "start_s": 0.1, "end_s": 1.0}]},
        "under_limit": [rival("scikit-learn", killed=True)],
        "all_memory": [rival("scikit-learn", work_s=6.0, nmi=0.4567)],
        "topics": topics(),
    }


def topics() -> dict[str, Any]:
    found = [
        {"words": [["game", 0.25], ["<play>", 0.125]], "size": 90, "npmi": 0.3456},
        {"words": [["perl", 0.5], ["module", 0.25]], "size": 60, "npmi": None},
    ]
    theirs = [{"words": [["chess", 0.5]], "size": 80, "npmi": 0.21}, {"words": [], "size": 0, "npmi": None}]
    return {
        "topics": found,
        "pair": {"places": [1, 0], "words": ["perl", "game"], "chances": [[0.5, 0.0], [0.0, 0.25]], "texts": 1234},
        "npmi": 0.3456,
        "diversity": 0.75,
        "outcore": {"work_s": 4.0, "wall_s": 5.0, "peak_bytes": 55 * MIB},
        "rival": rival("scikit-learn NMF", work_s=7.0, peak_bytes=222 * MIB, topics=theirs, npmi=0.2109, diversity=0.5),
    }


@pytest.fixture
def facts() -> dict[str, Any]:
    return {
        "images": images(),
        "text": texts(),
        "command": "outcore demo --data 'a b'",
        "report": "report.html",
        "total_s": 33.0,
        "machine": {
            "processor": "one",
            "cores": 2,
            "memory_bytes": 8 << 30,
            "system": "Linux",
            "python": "3",
            "numpy": "2",
            "scratch": "tmpfs",
            "date": "today",
        },
    }


def arrays(channels: int = 1, k: int = 3) -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(1)
    text = {
        "point_distances": rng.random((20, 3)).astype(np.float32),
        "point_clusters": np.arange(20, dtype=np.int32) % 3,
        "centres": rng.normal(size=(3, 64)).astype(np.float32),
        "topic_weights": rng.dirichlet(np.ones(2), 20).astype(np.float32),
        "topic_points": np.arange(20, dtype=np.int32) % 2,
        "topic_roots": rng.random((2, 30)).astype(np.float32),
    }
    return {"images": image_arrays(channels, k), "text": text}


def image_arrays(channels: int, k: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    pixels = 24 * channels
    depths = sorted({1, k})
    return {
        "components": rng.normal(size=(k, pixels)).astype(np.float32),
        "mean": rng.random(pixels).astype(np.float32),
        "ratio": np.array([0.5, 0.3, 0.1])[:k],
        "originals": rng.random((2, pixels)).astype(np.float32),
        "depths": np.array(depths),
        "rebuilt": rng.random((len(depths), 2, pixels)).astype(np.float32),
        "points": rng.normal(size=(50, 2)).astype(np.float32),
        "point_labels": (np.arange(50) % 2).astype(np.int32),
    }


class Links(HTMLParser):
    """Everything that a browser would load or could follow."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        names = ("src", "href", "xlink:href", "srcset", "data", "action", "poster")
        self.found += [value or "" for name, value in attrs if name in names]


def assert_self_contained(html: str) -> None:
    links = Links()
    links.feed(html)
    assert [link[:60] for link in links.found if not link.startswith(("data:", "#"))] == []
    assert not links.tags & {"script", "link", "iframe", "object", "embed"}
    assert not re.search(r"@import|url\((?!['\"]?[#d])", html)
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", html)
    assert "http://" not in without_namespaces
    assert "https://" not in without_namespaces


def test_the_page_tells_everything_and_loads_nothing(facts: dict[str, Any]) -> None:
    html = render(facts, arrays(), {"images": b'{"traceEvents": []}'})
    assert_self_contained(html)
    for said in (
        "killed",
        "did not finish",
        "gave up with MemoryError",
        "finished in 4.0 s",
        "1.5 times as fast as numpy",
        "scikit-learn is not installed",
        "&lt;digits&gt; &amp; more",
        "outcore demo --data",
        "exactly as foreseen",
        "less than 0.001%",
        "core 10",
        "in memory, not on an SSD",
        "Two jobs larger than their memory",
        "perl, module",
        "no words",
        "lib&lt;0&gt;",
        "libs 61%",
        "0.432",
        "0.457",
        "3.0 times as fast as scikit-learn",
        "&lt;play&gt;",
        "0.346",
        "0.211",
        "0.75",
        "1,234 of them",
        "222 MiB",
        "chess",
    ):
        assert said in html, said


def test_lanes_are_in_order_of_device_and_number(facts: dict[str, Any]) -> None:
    html = render(facts, arrays(), {})
    places = [html.index(f">{lane}<") for lane in ("core 10", "core 2", "device")]
    assert places == sorted(places)


def test_the_page_renders_without_rivals_labels_or_spans(facts: dict[str, Any]) -> None:
    for part in (facts["images"], facts["text"]):
        part.update(under_limit=[], all_memory=[])
        part["limit"]["enforced"] = False
        part["outcore"].update(samples=[], phases=[])
        for found in part["job"]["traces"].values():
            found.update(spans=[], bound_bytes=0)
    del facts["images"]["speed"], facts["images"]["agreement"]
    facts["images"]["job"]["label_names"] = [""]
    assert_self_contained(render(facts, arrays(), {}))


def table(html: str, heading: str) -> list[list[str]]:
    """What the cells of the table under a heading say, row by row."""
    text = html.partition(f"<h3>{heading}</h3>")[2].partition("</table>")[0]
    rows = (re.findall(r"<t[dh]\b.*?</t[dh]>", row, re.DOTALL) for row in re.findall(r"<tr>.*?</tr>", text, re.DOTALL))
    return [[unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in rows]


def picture(html: str, label: str) -> str:
    """The one drawing that has this label."""
    (found,) = re.findall(rf'<svg role="img" aria-label="{label}" .*?</svg>', html, re.DOTALL)
    return str(found)


NO_NUMBER = "\N{EN DASH}"


def test_topics_are_told_by_words_sizes_and_coherence_beside_those_of_the_rival(facts: dict[str, Any]) -> None:
    del facts["images"]
    facts["text"]["topics"]["topics"][1]["words"] += [["archive", 0.125], ["install", 0.0625]]
    html = render(facts, arrays(), {})
    assert table(html, "The topics") == [
        ["words", "texts", "coherence", "scikit-learn NMF", "texts", "coherence"],
        ["game, <play>", "90", "0.35", "chess", "80", "0.21"],
        ["perl, module, archive, install", "60", NO_NUMBER, "no words", "0", NO_NUMBER],
    ]
    assert table(html, "Beside scikit-learn") == [
        ["program", "", "time", "most memory held", "mean coherence", "diversity"],
        ["outcore", "finished", "4.0 s", "55 MiB", "0.346", "0.75"],
        ["scikit-learn NMF", "finished", "7.0 s", "222 MiB", "0.211", "0.50"],
    ]


def test_topics_have_a_map_of_the_texts_and_a_picture_of_two(facts: dict[str, Any]) -> None:
    del facts["images"]
    html = render(facts, arrays(), {})
    assert "20 texts, each in the disc of the topic that it has most of" in html
    names = ("perl, module", "game, &lt;play&gt;")
    on_map = picture(html, "map of the texts by topics")
    assert all(f">{name}<" in on_map for name in names)
    assert "<h3>Two topics compared</h3>" in html
    compared = picture(html, "two topics compared")
    # The pair is the second topic and the first, from left to right; the words stand between them.
    places = [compared.index(f">{name}<") for name in names]
    assert places == sorted(places)
    assert all(f">{word}<" in compared for word in ("perl", "game", "probability of the word in the topic"))
    facts["text"]["topics"]["pair"]["texts"] = 0
    assert "The two largest topics." in render(facts, arrays(), {})


def test_topics_stand_alone_where_the_rival_has_none(facts: dict[str, Any]) -> None:
    del facts["images"]
    facts["text"]["topics"].update(rival=rival("scikit-learn NMF", failure="no such thing"), pair=None)
    html = render(facts, arrays(), {})
    assert_self_contained(html)
    alone = [
        ["words", "texts", "coherence"],
        ["game, <play>", "90", "0.35"],
        ["perl, module", "60", NO_NUMBER],
    ]
    assert table(html, "The topics") == alone
    assert table(html, "Beside scikit-learn")[1:] == [
        ["outcore", "finished", "4.0 s", "55 MiB", "0.346", "0.75"],
        ["scikit-learn NMF", "did not finish", facts["text"]["topics"]["rival"]["words"]],
    ]
    assert "perl, module" in picture(html, "map of the texts by topics")
    assert "Two topics compared" not in html
    facts["text"]["topics"]["rival"] = None
    html = render(facts, arrays(), {})
    assert table(html, "The topics") == alone
    assert "perl, module" in picture(html, "map of the texts by topics")
    assert "scikit-learn NMF" not in html
    assert "Beside scikit-learn" not in html


@pytest.mark.parametrize(("part", "other"), [("images", "text"), ("text", "images")])
def test_the_page_renders_one_part_alone(facts: dict[str, Any], part: str, other: str) -> None:
    del facts[other]
    html = render(facts, arrays(), {})
    assert_self_contained(html)
    assert f'id="{part}"' in html
    assert f'id="{other}"' not in html
    assert ("<h2>What the texts are about</h2>" in html) == (part == "text")
    assert "A job larger than its memory" in html


def test_the_page_renders_colour_and_a_single_component(facts: dict[str, Any]) -> None:
    facts["images"]["job"].update(channels=3, components=1)
    assert_self_contained(render(facts, arrays(channels=3, k=1), {}))


def test_the_summary_names_every_outcome(facts: dict[str, Any]) -> None:
    text = summary(facts)
    assert "numpy-memmap, same limit: gave up with MemoryError" in text
    assert "scikit-learn, all the memory it wants: finished in 6.0 s" in text
    assert "150 texts of 30 words" in text
    assert "2 topics learned in 4.0 s, coherence 0.346; peak 55 MiB" in text
    assert "scikit-learn NMF, all the memory it wants: finished in 7.0 s, coherence 0.211; peak 222 MiB" in text
    assert "report: report.html" in text


def test_numbers_in_words() -> None:
    assert [bytes_in_words(n) for n in (12, 2048, 32 * MIB, 219 * MIB, 3 << 30)] == [
        "12 bytes",
        "2 KiB",
        "32 MiB",
        "219 MiB",
        "3 GiB",
    ]
    assert [below_in_words(x) for x in (6e-6, 0.004, 0.04, 0)] == ["0.001%", "1%", "10%", "0%"]
    assert ratio_in_words(1.0, 2.0) == "2.0 times as fast as"
    assert ratio_in_words(2.0, 1.0) == "2.0 times slower than"
    assert ratio_in_words(1.0, 1.01) == "as fast as"


@pytest.mark.parametrize(
    ("text", "count"), [("32MiB", 32 * MIB), ("1.5 GiB", 3 << 29), ("2GB", 2 * 10**9), ("64k", 65536), (7, 7)]
)
def test_sizes_are_understood(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


def test_bad_arguments_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="'lots' is not a size"):
        parse_bytes("lots")
    with pytest.raises(DemoError, match="nowhere: no such file"):
        find_data(tmp_path / "nowhere")
    with pytest.raises(DemoError, match="nowhere: no such file"):
        find_texts(tmp_path / "nowhere")


@pytest.mark.parametrize("which", ["numpy", "numpy-memmap", "numpy-blocks", "scikit-learn"])
def test_the_rivals_find_the_same_components(which: str, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(9000, 7)).astype(np.float32) * np.arange(1, 8, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    spec = {"images": tmp_path / "x.npy", "projection": tmp_path / "p.npy", "components": 3}
    result = rivals.run(which, spec)
    if "missing" in result:
        pytest.skip(result["missing"])
    expected = np.linalg.eigvalsh(np.cov(x.astype(np.float64), rowvar=False))[::-1][:3]
    np.testing.assert_allclose(result["explained_variance"], expected, rtol=1e-4)
    np.testing.assert_allclose(np.load(tmp_path / "p.npy").var(axis=0, ddof=1), expected, rtol=1e-4)
