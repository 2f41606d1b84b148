"""Tables that are trained and updated, against PyTorch's optimizers and against a plain reference."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from outcore.embedding import Feature, JaggedBatch, Optimizer, Table, TableSet, create, pack
from outcore.errors import ArgumentError, CorruptError, LockedError, ShapeError, TruncatedError
from outcore.torch import SGD, Embedding, EmbeddingBag, RowwiseAdagrad, SparseAdam

ROWS, DIM = 4000, 16


def weights(rows: int = ROWS, dim: int = DIM) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((rows, dim), np.float32)


class Net(nn.Module):
    """A bag of items and a user, and a layer on both."""

    def __init__(self, items: nn.Module, users: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.items, self.users = items, users
        self.layers = nn.Sequential(nn.Linear(2 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor, users: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.items(ids, offsets), self.users(users)], dim=1)).squeeze(1)


def batches(count: int, seed: int = 1) -> list[tuple[torch.Tensor, ...]]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        lengths = random.integers(0, 8, 64)
        ids = np.minimum(random.zipf(1.2, lengths.sum()) - 1, ROWS - 1)
        offsets = np.cumsum(lengths) - lengths
        users = random.integers(0, ROWS, 64)
        made.append(tuple(torch.as_tensor(one) for one in (ids, offsets, users, random.random(64, np.float32))))
    return made


def train(net: Net, optimizers: list, data: list) -> list[float]:
    losses = []
    for ids, offsets, users, target in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(ids, offsets, users), target)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def in_memory(sparse: bool, mode: str, padding: int | None) -> Net:
    items = nn.EmbeddingBag(ROWS, DIM, mode=mode, sparse=sparse, padding_idx=padding)
    users = nn.Embedding(ROWS, DIM, sparse=sparse)
    net = Net(items, users)
    with torch.no_grad():
        items.weight.copy_(torch.as_tensor(weights()))
        users.weight.copy_(torch.as_tensor(weights() * 0.5))
    return net


def on_ssd(folder: Path, optimizer: Optimizer, mode: str, padding: int | None, cache: int | str) -> tuple[Net, TableSet]:
    create(weights(), folder / "items", optimizer)
    create(weights() * 0.5, folder / "users", optimizer)
    tables = TableSet({"items": folder / "items", "users": folder / "users"}, writable=True, cache=cache)
    return Net(EmbeddingBag(tables["items"], mode, padding_idx=padding), Embedding(tables["users"])), tables


@pytest.mark.parametrize("cache", [0, "100KiB", "4MiB"])
@pytest.mark.parametrize(("mode", "padding"), [("sum", None), ("mean", 3)])
def test_sgd_has_the_losses_and_rows_of_training_in_memory_bit_for_bit(
    tmp_path: Path, mode: str, padding: int | None, cache: int | str
) -> None:
    data = batches(30)
    reference = in_memory(False, mode, padding)
    expected = train(reference, [torch.optim.SGD(reference.parameters(), lr=0.05)], data)
    net, tables = on_ssd(tmp_path, "sgd", mode, padding, cache)
    found = train(net, [torch.optim.SGD(net.layers.parameters(), lr=0.05), SGD(net, lr=0.05)], data)
    assert found == expected
    assert tables["items"][:].tobytes() == reference.items.weight.detach().numpy().tobytes()
    assert tables["users"][:].tobytes() == reference.users.weight.detach().numpy().tobytes()
    assert tables.commit() == {"items": 1, "users": 1}
    assert Table.open(tmp_path / "items")[:].tobytes() == reference.items.weight.detach().numpy().tobytes()


def test_sparse_adam_is_that_of_pytorch(tmp_path: Path) -> None:
    data = batches(30)
    reference = in_memory(True, "sum", None)
    tables_of = [reference.items.weight, reference.users.weight]
    expected = train(
        reference, [torch.optim.SGD(reference.layers.parameters(), lr=0.05), torch.optim.SparseAdam(tables_of, lr=0.01)], data
    )
    net, tables = on_ssd(tmp_path, "adam", "sum", None, "100KiB")
    optimizer = SparseAdam(net, lr=0.01)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    found = train(net, [torch.optim.SGD(net.layers.parameters(), lr=0.05), optimizer], data)
    schedule.step()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(tables["items"][:], reference.items.weight.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(tables["users"][:], reference.users.weight.detach().numpy(), atol=1e-6)


def test_rowwise_adagrad_is_ten_lines_of_numpy(tmp_path: Path) -> None:
    create(weights(), tmp_path / "items", "rowwise_adagrad")
    tables = TableSet([tmp_path / "items"], writable=True, cache="100KiB")
    expected, sums = weights(), np.zeros(ROWS, np.float32)
    random = np.random.default_rng(2)
    for step in range(20):
        ids = random.integers(0, ROWS if step % 2 else 100, (64, 5))
        gradient = random.standard_normal((64, DIM)).astype(np.float32)
        tables.train([Feature(0, ids)], [gradient], "rowwise_adagrad", 0.1)
        of_rows = np.zeros((ROWS, DIM), np.float32)
        np.add.at(of_rows, ids.ravel(), np.repeat(gradient, 5, axis=0))
        touched = np.unique(ids)
        sums[touched] += (of_rows[touched] ** 2).mean(axis=1)
        expected[touched] -= 0.1 * of_rows[touched] / (np.sqrt(sums[touched]) + 1e-8)[:, None]
    np.testing.assert_allclose(tables[0][:], expected, rtol=0, atol=1e-6)
    net = EmbeddingBag(tables[0], "sum")
    net(torch.as_tensor([[1, 2]])).sum().backward()
    RowwiseAdagrad(net, lr=0.1).step()
    sums[1:3] += 1
    np.testing.assert_allclose(tables[0][1:3], expected[1:3] - 0.1 / np.sqrt(sums[1:3])[:, None], rtol=0, atol=1e-6)


def test_a_batch_of_features_trains_as_these_one_by_one(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    lengths = random.integers(0, 4, (3, 20))
    ids = random.integers(0, ROWS, int(lengths.sum()))
    factors = random.standard_normal(len(ids)).astype(np.float32)
    gradient = random.standard_normal((20, 3 * DIM)).astype(np.float32)
    ends = lengths.sum(axis=1).cumsum()
    parts = zip((0, 1, 0), np.split(ids, ends[:-1]), lengths, np.split(factors, ends[:-1]), strict=True)
    features = [Feature(table, some, lengths=own, per_sample_weights=weigh) for table, some, own, weigh in parts]
    batch = JaggedBatch(ids, lengths=lengths, tables=[0, 1, 0], per_sample_weights=factors)
    apart = list(np.split(gradient, 3, axis=1))
    found = []
    for name, asked, gradients in (("apart", features, apart), ("batch", batch, apart), ("one", batch, gradient)):
        (tmp_path / name).mkdir()
        for table in ("items", "users"):
            create(weights(), tmp_path / name / table, "sgd")
        tables = TableSet([tmp_path / name / table for table in ("items", "users")], writable=True)
        tables.train(asked, gradients, "sgd", 0.1)
        found.append([tables[number][:].tobytes() for number in (0, 1)])
    assert found[0] == found[1] == found[2]
    with pytest.raises(ArgumentError, match="add up to"):
        tables.train(JaggedBatch(ids[1:], lengths=lengths, tables=[0, 1, 0]), gradient, "sgd", 0.1)
    with pytest.raises(ShapeError, match="side by side"):
        tables.train(batch, gradient[:, 1:], "sgd", 0.1)
    # As many elements, but of other bags.
    with pytest.raises(ShapeError, match="bags x"):
        tables.train([Feature(0, [1, 2])], [np.zeros((DIM, 2), np.float32)], "sgd", 0.1)
    with pytest.raises(ShapeError, match="1 gradients"):
        tables.train(features, apart[:1], "sgd", 0.1)
    for delta in (0, -1):
        with pytest.raises(ArgumentError, match="from 1 on"):
            tables[0].update([1], np.zeros((1, DIM)), delta=delta)


def test_rows_that_are_submitted_are_there_and_are_trained_in_order(tmp_path: Path) -> None:
    create(weights(), tmp_path / "items", "sgd")
    table = Table.open(tmp_path / "items", writable=True, cache="1MiB")
    bag, expected = EmbeddingBag(table, "sum"), weights()
    optimizer = SGD(bag, lr=0.5)
    ids = [torch.as_tensor(np.random.default_rng(seed).integers(0, 200, (32, 4))) for seed in range(20)]
    for this, after in zip(ids, [*ids[1:], ids[0]], strict=True):
        bag.submit(after)
        found = bag(this)
        assert found.requires_grad and torch.equal(found.detach(), torch.as_tensor(expected)[this].sum(1))
        found.sum().backward()
        optimizer.step()
        counts = np.bincount(this.numpy().ravel(), minlength=ROWS).astype(np.float32)
        expected = expected - np.float32(0.5) * counts[:, None]
    with torch.no_grad():
        assert not bag(ids[0]).requires_grad


def test_a_state_dict_tells_the_version_that_it_was_saved_beside(tmp_path: Path) -> None:
    create((100, 4), tmp_path / "t")
    table = Table.open(tmp_path / "t", writable=True)
    bag = EmbeddingBag(table, "sum")
    state = bag.state_dict()
    bag.load_state_dict(state)
    assert table.update([3], [[1] * 4])
    table.commit()
    with pytest.warns(UserWarning, match="at version 1, and the state was saved beside version 0"):
        bag.load_state_dict(state)


def test_the_weight_of_a_module_of_pytorch_loads_into_a_writable_table(tmp_path: Path) -> None:
    theirs = nn.Sequential(nn.EmbeddingBag(100, 4, mode="sum"), nn.Linear(4, 2))
    create((100, 4), tmp_path / "t")
    ours = nn.Sequential(EmbeddingBag(Table.open(tmp_path / "t", writable=True), "sum"), nn.Linear(4, 2))
    ours.load_state_dict(theirs.state_dict())
    ids = torch.arange(100).reshape(20, 5)
    assert torch.equal(ours(ids), theirs(ids))
    other = nn.Sequential(nn.EmbeddingBag(99, 4), nn.Linear(4, 2))
    with pytest.raises(ShapeError, match=r"0\.weight is of shape \(99, 4\)"):
        ours.load_state_dict(other.state_dict())
    pack(np.zeros((100, 4), np.float32), tmp_path / "packed")
    with pytest.raises(ArgumentError, match=r"not writable, and the state has 0\.weight"):
        nn.Sequential(EmbeddingBag(tmp_path / "packed", "sum"), nn.Linear(4, 2)).load_state_dict(theirs.state_dict())


def test_updates_are_seen_by_others_once_they_are_committed(tmp_path: Path) -> None:
    create((100, 4), tmp_path / "t", init=lambda rows: np.repeat(rows, 4).reshape(-1, 4))
    reader, writer = Table.open(tmp_path / "t"), Table.open(tmp_path / "t", writable=True)
    assert reader.version == 0 and not reader.writable and writer.writable
    assert writer.update([3, 99], [[1] * 4, [2] * 4], delta=1)
    assert not writer.update([3], [[9] * 4], delta=1)
    np.testing.assert_array_equal(writer[[3, 99]], [[1] * 4, [2] * 4])
    assert not reader.refresh()
    np.testing.assert_array_equal(reader[[3, 99]], [[3] * 4, [99] * 4])
    assert writer.commit() == 1
    np.testing.assert_array_equal(reader[[3, 99]], [[3] * 4, [99] * 4])
    assert reader.refresh() and reader.version == 1
    np.testing.assert_array_equal(reader[[3, 98, 99]], [[1] * 4, [98] * 4, [2] * 4])
    np.save(tmp_path / "other.npy", np.zeros((100, 5), np.float32))
    with pytest.raises(ShapeError, match=r"other\.npy of 100 x 5"):
        reader.replace(tmp_path / "other.npy")
    with pytest.raises(LockedError):
        Table.open(tmp_path / "t", writable=True)
    with pytest.raises(ArgumentError, match="not opened for writing"):
        reader.update([1], [[0] * 4])
    with pytest.raises(ArgumentError, match="created for training"):
        Table.open(tmp_path / "other.npy", writable=True)
    with pytest.raises(ArgumentError, match="writable=True"):
        SGD(EmbeddingBag(reader))


def test_what_is_packed_of_a_table_that_is_written_has_its_updates(tmp_path: Path) -> None:
    create(weights(), tmp_path / "t")
    table = Table.open(tmp_path / "t", writable=True)
    table[[0, 1]]
    table.update([0], np.full((1, DIM), 7))
    pack(table, tmp_path / "packed")
    expected = weights()
    expected[0] = 7
    np.testing.assert_array_equal(Table.open(tmp_path / "packed")[:], expected)


def test_another_table_at_the_same_path_is_none_of_the_rows_in_memory(tmp_path: Path) -> None:
    for name, value in (("one", 1), ("two", 2)):
        create((100, 4), tmp_path / name, init=lambda rows, value=value: np.full((len(rows), 4), value))
    (tmp_path / "t").symlink_to("one")
    table = Table.open(tmp_path / "t")
    np.testing.assert_array_equal(table[:], np.ones((100, 4)))
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").rename(tmp_path / "t")
    table.refresh()
    np.testing.assert_array_equal(table[:], np.full((100, 4), 2))


def test_pages_that_are_cut_off_are_noticed(tmp_path: Path) -> None:
    create(weights(), tmp_path / "t")
    os.truncate(tmp_path / "t" / "pages", 8192)
    for writable in (False, True):
        with pytest.raises(TruncatedError, match="pages"):
            Table.open(tmp_path / "t", writable=writable)


@pytest.mark.parametrize("cache", [0, "4MiB"])
def test_a_flipped_bit_ends_the_step_that_needs_it_and_leaves_the_rest(cache: int | str, tmp_path: Path) -> None:
    create(weights(), tmp_path / "t", "sgd")
    with open(tmp_path / "t" / "pages", "r+b") as pages:
        # Of row 130, in the third page of 63 rows, wherever the first page lies.
        place = pages.read().index(weights()[130].tobytes())
        pages.seek(place)
        pages.write(bytes([weights()[130].tobytes()[0] ^ 1]))
    tables = TableSet({"t": tmp_path / "t"}, writable=True, cache=cache)
    table, ones = tables["t"], np.ones((2, DIM), np.float32)
    for change in (
        lambda: tables.train([Feature("t", [5, 130])], [ones], "sgd", lr=1.0),
        lambda: table.update([5, 140], ones),
        lambda: table[[5, 140]],
    ):
        with pytest.raises(CorruptError, match=r"checksum of page 2 does not match, which row 1[34]0 of .*/t needs"):
            change()
    # Nothing of the steps that failed has counted; others go on, and are committed.
    np.testing.assert_array_equal(table[5], weights()[5])
    tables.train([Feature("t", [5, 7])], [ones], "sgd", lr=1.0)
    tables.commit()
    fresh = Table.open(tmp_path / "t")
    np.testing.assert_array_equal(fresh[[5, 7, 8]], weights()[[5, 7, 8]] - np.float32([[1], [1], [0]]))


def test_the_padding_of_an_embedding_is_not_trained(tmp_path: Path) -> None:
    create(weights(), tmp_path / "t", "sgd")
    ours = Embedding(Table.open(tmp_path / "t", writable=True), padding_idx=3)
    theirs = nn.Embedding(ROWS, DIM, padding_idx=3, _weight=torch.from_numpy(weights()))
    for net, optimizer in ((ours, SGD(ours, lr=1.0)), (theirs, torch.optim.SGD(theirs.parameters(), lr=1.0))):
        net(torch.tensor([3, 4, 3])).sum().backward()
        optimizer.step()
    np.testing.assert_array_equal(ours.table[:10], theirs.weight.detach().numpy()[:10])
    np.testing.assert_array_equal(ours.table[3], weights()[3])


def test_a_version_is_told_while_a_step_goes_on(tmp_path: Path) -> None:
    """Both ask Python, and neither keeps the other from it."""
    create(weights(20_000), tmp_path / "t")
    table = Table.open(tmp_path / "t", writable=True, cache="64KiB")
    numbers, rows = np.arange(20_000), weights(20_000)
    changing = threading.Thread(target=lambda: [table.update(numbers, rows) for _ in range(20)], daemon=True)
    changing.start()
    told = [(table.version, table.statistics.cached_rows) for _ in range(50)]
    changing.join(60)
    assert not changing.is_alive()
    assert {version for version, _ in told} == {0}


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_row_that_several_calls_use_has_the_sum_of_their_gradients(is_turned: bool, tmp_path: Path) -> None:
    create(weights(), tmp_path / "t", "sgd")
    ours = Embedding(Table.open(tmp_path / "t", writable=True))
    theirs = nn.Embedding(ROWS, DIM, _weight=torch.from_numpy(weights()))
    calls = [(torch.tensor([0, 0, 5]), [2.0**-24, 2.0**-24, 1]), (torch.tensor([0]), [1.0])]
    for net, optimizer in ((ours, SGD(ours, lr=1.0)), (theirs, torch.optim.SGD(theirs.parameters(), lr=1.0))):
        for ids, factors in calls[::-1] if is_turned else calls:
            # The caller's memory of a gradient is its own again after backward.
            gradient = torch.tensor(factors)[:, None].expand(-1, DIM).contiguous()
            net(ids).backward(gradient)
            gradient.zero_()
        optimizer.step()
    np.testing.assert_array_equal(ours.table[:], theirs.weight.detach().numpy())


def test_a_set_of_open_tables_is_writable_where_it_is_to_be(tmp_path: Path) -> None:
    create((100, 4), tmp_path / "t")
    reader = Table.open(tmp_path / "t")
    assert not TableSet([reader])[0].writable
    writers = TableSet([reader], writable=True)
    assert writers[0].writable and writers[0].update([1], [[1] * 4]) and writers.commit() == {"0": 1}


def test_a_maximum_is_refused_before_the_network_runs(tmp_path: Path) -> None:
    create(weights(), tmp_path / "t", "sgd")
    bag = EmbeddingBag(Table.open(tmp_path / "t", writable=True), "max")
    ids = torch.tensor([[1, 2]])
    with pytest.raises(ArgumentError, match="maximum"):
        bag(ids)
    with torch.no_grad():
        np.testing.assert_array_equal(bag(ids)[0], weights()[1:3].max(axis=0))


def test_a_set_goes_over_to_one_commit_of_its_tables(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c.npy"]
    for path in paths[:2]:
        create((50, 4), path)
    np.save(paths[2], np.zeros((50, 4), np.float32))
    readers, writers = TableSet(paths), TableSet(paths[:2], writable=True)
    assert not readers.refresh()
    for step in range(1, 4):
        for table in writers:
            table.update([7], [[step] * 4])
        assert writers.commit() == {"0": step, "1": step}
        assert [table[7][0] for table in readers] == [step - 1, step - 1, 0]
        assert readers.refresh() and not readers.refresh()
        assert [table[7][0] for table in readers] == [step, step, 0]
        assert [table.version for table in readers] == [step, step, None]
    assert not writers.refresh()


WRITER = """
import sys
import numpy as np
from outcore.embedding import Feature, TableSet
tables = TableSet([sys.argv[1]], writable=True, cache="64KiB")
print("open", flush=True)
ids = np.arange(2000)
while True:
    # Each step adds one to all elements of all rows.
    tables.train([Feature(0, ids)], [np.full((2000, 8), -1, np.float32)], "sgd", 1.0)
    print(tables.commit()["0"], flush=True)
"""


def test_a_writer_that_is_killed_leaves_its_last_version_whole(tmp_path: Path) -> None:
    create((2000, 8), tmp_path / "t", "sgd")
    random = np.random.default_rng(7)
    last = 0
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "t")], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        for _ in range(3):
            told = int(process.stdout.readline())
        time.sleep(random.random() * 0.03)
        os.kill(process.pid, signal.SIGKILL)
        told = max([told, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
        process.wait()
        table = Table.open(tmp_path / "t")
        assert table.version is not None and told <= table.version <= told + 1 and table.version > last
        last = table.version
        np.testing.assert_array_equal(table[:], np.full((2000, 8), last))


TRAINER = """
import sys
import numpy as np
from outcore.embedding import Feature, TableSet
tables = TableSet(sys.argv[1:], writable=True, cache="64KiB")
print("open", flush=True)
ids = np.arange(500)
while True:
    # Each step adds one to all elements of all rows of all tables.
    features = [Feature(number, ids) for number in range(len(tables))]
    tables.train(features, [np.full((500, 8), -1, np.float32)] * len(tables), "sgd", 1.0)
    print(max(tables.commit().values()), flush=True)
"""


def test_a_trainer_of_several_tables_that_is_killed_leaves_one_version_of_all(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "deep/er/c")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        create((500, 8), path, "sgd")
    random = np.random.default_rng(8)
    last = 0
    for kill in range(8):
        process = subprocess.Popen([sys.executable, "-c", TRAINER, *map(str, paths)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        told = int(process.stdout.readline())
        for _ in range(20):
            versions = {table.version for table in TableSet(paths)}
            assert len(versions) == 1, "a set that is opened meanwhile is of one commit"
        told = max(told, int(process.stdout.readline()))
        time.sleep(random.random() * 0.03)
        os.kill(process.pid, signal.SIGKILL)
        told = max([told, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
        process.wait()
        found = {Table.open(path).version for path in paths}
        assert len(found) == 1
        version = found.pop()
        assert version is not None and max(told, last) <= version <= told + 1
        # What is opened first, for writing, finds and leaves the same.
        first = paths[kill % 4 : kill % 4 + 1] or paths[::-1]
        assert {table.version for table in TableSet(first, writable=True)} == {version}
        for table in TableSet(paths):
            assert table.version == version
            np.testing.assert_array_equal(table[:], np.full((500, 8), version))
        last = version
