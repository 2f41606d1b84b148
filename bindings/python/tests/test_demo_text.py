"""The pieces of the demo's text part, against plain loops."""

import bz2
import gzip
import lzma
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

for needed in ("sklearn", "psutil"):
    pytest.importorskip(needed)

from outcore.demo import layout, text_job  # noqa: E402
from outcore.demo.steps import merged, thinned  # noqa: E402


@pytest.mark.parametrize("pack", [bytes, lzma.compress, gzip.compress, bz2.compress], ids=["plain", "xz", "gzip", "bzip2"])
def test_a_table_is_unpacked_by_what_it_is(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    table = "name\tsection\tgrüße\n".encode() * 1000
    (tmp_path / "packed").write_bytes(pack(table))
    text_job.unpack(tmp_path / "packed", tmp_path / "table")
    assert (tmp_path / "table").read_bytes() == table


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress], ids=["xz", "gzip", "bzip2"])
def test_a_truncated_table_is_named(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    table = np.random.default_rng(0).bytes(5000)
    (tmp_path / "packed").write_bytes(pack(table)[:-300])
    with pytest.raises(ValueError, match="packed: cannot be unpacked"):
        text_job.unpack(tmp_path / "packed", tmp_path / "table")


def test_words_of_a_cluster_are_those_above_the_mean_of_all() -> None:
    means = np.array([[0.5, 0.1, 0.2], [0.5, 0.4, 0.0]], np.float32)
    assert text_job.best_words(means, np.array([3, 1]), ["both", "second", "first"]) == [["first"], ["second"]]


def test_sections_are_shared_out() -> None:
    sections, labels = np.array([0, 0, 1, 2]), np.array([0, 0, 0, 1], np.int32)
    found = text_job.commonest(sections, ["a", "b", "c"], labels, 3)
    assert found == [[("a", pytest.approx(2 / 3)), ("b", pytest.approx(1 / 3))], [("c", 1.0)], []]


def test_distances_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_job, "BLOCK_BYTES", 4 * 3 * 4)
    distances = np.random.default_rng(2).random((11, 3)).astype(np.float32)
    labels = (np.arange(11) % 3).astype(np.int32)
    own, points, chosen = text_job.read_distances(distances, labels)
    assert own.tolist() == [distances[i, i % 3] for i in range(11)]
    np.testing.assert_array_equal(points, distances[chosen])


def test_typical_documents_are_near_their_centre_and_not_only_the_nearest() -> None:
    own = np.arange(200, dtype=np.float32)[::-1].copy()
    labels = np.array([0] * 199 + [1], np.int32)
    first, second, nothing = text_job.typical(own, labels, 3)
    assert first[0] == 198
    assert len(first) == text_job.PACKAGES_SHOWN
    assert all(own[row] < 42 for row in first)
    assert max(own[row] for row in first) > 30
    assert (second, nothing) == ([199], [])


def test_names_are_found_by_row(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("".join(f"name{i}\tsection\ttext\n" for i in range(9)))
    assert text_job.names_of(tmp_path / "table", [0, 3, 8]) == {0: "name0", 3: "name3", 8: "name8"}
    assert text_job.names_of(tmp_path / "table", []) == {}


@pytest.mark.parametrize("k", [1, 2, 5, 30])
def test_centres_have_places_of_their_own(k: int) -> None:
    places = layout.centre_places(np.random.default_rng(k).normal(size=(k, 50)).astype(np.float32))
    assert places.shape == (k, 2)
    assert len(np.unique(places.round(4), axis=0)) == k
    assert all(math.isfinite(value) for value in places.ravel())


def test_discs_are_as_large_as_their_clusters_and_do_not_overlap() -> None:
    sizes = np.array([400.0, 100, 100, 25])
    places = np.array([[0, 0], [0.1, 0], [0, 0.1], [5, 5]], np.float32)
    radius = layout.radii(sizes, places)
    np.testing.assert_allclose(radius / radius[0], [1, 0.5, 0.5, 0.25], rtol=1e-5)
    moved = layout.apart(places, radius)
    for i in range(4):
        for j in range(i):
            assert math.dist(moved[i], moved[j]) >= (radius[i] + radius[j]) * 0.99


def test_texts_lie_in_the_disc_of_their_cluster_the_surest_innermost() -> None:
    places, radius = np.array([[0, 0], [9, 0], [0, 9]], np.float32), np.array([1, 2, 0.5], np.float32)
    distances = np.random.default_rng(5).random((90, 3)).astype(np.float32)
    clusters = distances.argmin(axis=1).astype(np.int32)
    found = layout.text_places(distances, clusters, places, radius)
    out = np.hypot(*(found - places[clusters]).T)
    assert (out <= radius[clusters] * 1.0001).all()
    lead = np.diff(np.sort(np.square(distances), axis=1)[:, :2]).ravel()
    for cluster in range(3):
        members = np.flatnonzero(clusters == cluster)
        assert members[out[members].argmin()] == members[lead[members].argmax()]


def test_a_single_cluster_has_a_map() -> None:
    places = np.array([[2, 3]], np.float32)
    radius = layout.radii(np.array([4.0]), places)
    found = layout.text_places(np.ones((4, 1), np.float32), np.zeros(4, np.int32), layout.apart(places, radius), radius)
    assert np.isfinite(found).all()


def test_spans_are_merged_by_lane_and_name() -> None:
    spans = [{"lane": "device", "name": "read /a/b.npy", "start_s": i / 1e6, "end_s": (i + 0.5) / 1e6} for i in range(3000)]
    found = thinned({"wall_s": 1.0, "spans": spans})["spans"]
    assert found == [{"lane": "device", "name": "read b.npy", "start_s": 0.0, "end_s": pytest.approx(2999.5e-6)}]
    assert merged([(3, 4), (0, 1), (1.2, 2)], 0.5) == [(0, 2), (3, 4)]
