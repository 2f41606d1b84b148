from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from legs import placement


@pytest.fixture
def chosen() -> tuple[np.ndarray, np.ndarray]:
    """Users and items: each of 400 users has 8 of the 16 items of a group, whose numbers are 25 apart."""
    random = np.random.default_rng(0)
    users = np.repeat(np.arange(400), 8)
    items = np.concatenate([random.choice(16, 8, replace=False) * 25 + user % 25 for user in range(400)])
    return users, items


@pytest.mark.parametrize("name", ["some.csv", "some.npz"])
def test_rows_of_a_group_share_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    users, items = chosen
    path = tmp_path / name
    if path.suffix == ".npz":
        ends = np.concatenate([users, items + 400]), np.concatenate([items + 400, users])
        scipy.sparse.save_npz(path, scipy.sparse.coo_matrix((np.ones(2 * len(users)), ends), (800, 800)))
    else:
        np.savetxt(path, np.stack([np.arange(len(users)), users, items], 1), "%d", delimiter=",", header="number,user,item")
    found = placement.interactions(path)
    assert sorted(zip(*(one.tolist() for one in found), strict=True)) == sorted(zip(users.tolist(), items.tolist(), strict=True))
    monkeypatch.setenv("OUTCORE_REAL_DATA", str(tmp_path))
    told = placement.pages({"path": f"$OUTCORE_REAL_DATA/{name}", "rows_a_page": 16, "seed": 0})
    assert told["work"] == 200 * 8
    assert told["fewer"] > 4 and 0.9 < told["of_own"] <= 1
    assert 0.8 < told["fewer_than_shuffled"] / told["fewer"] < 1.2


def test_pages_are_counted_once_a_bag() -> None:
    assert placement.pages_of(np.array([0, 1, 2, 2, 3]), np.array([0, 3, 5]), np.array([0, 0, 1, 1])) == 3


def test_every_part_has_as_many_bags(chosen: tuple[np.ndarray, np.ndarray]) -> None:
    ids, offsets = placement.bags(*chosen, [np.arange(3), np.arange(10, 14)])
    assert len(offsets) == 7 and offsets[-1] == len(ids) == 6 * 8
    assert (np.sort(ids[24:32]) == np.sort(chosen[1][80:88])).all()
