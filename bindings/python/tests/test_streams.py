"""Streams: what goes in comes out, as bytes, arrays, records, objects and Arrow batches; and what goes wrong says so."""

import io
import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcore as oc
from outcore import errors
from outcore.streams import StreamStore

BLOCK = 64 << 10


@pytest.fixture
def store(tmp_path: Path) -> StreamStore:
    return StreamStore(tmp_path / "a.store", size="64MiB")


def test_bytes(store: StreamStore, rng: np.random.Generator) -> None:
    data = rng.bytes(1_000_000)
    with store.create("x", block=BLOCK) as writer:
        writer.write(data[:10])
        writer.write(bytearray(data[10:300_000]))
        writer.write(memoryview(data)[300_000:])
        assert writer.nbytes == len(data)
    assert "x" in store
    assert list(store) == ["x"]
    reader = store.open("x")
    assert reader.nbytes == len(data)
    blocks = list(zip(range(3), reader.blocks(), strict=False))
    assert b"".join(block for _, block in blocks) == data[: sum(len(block) for _, block in blocks)]
    del blocks
    assert store.open("x").read() == data
    with store.open("x") as reader:
        assert (reader.read(7), reader.read(100_000), reader.read()) == (data[:7], data[7:100_007], data[100_007:])
        assert reader.read(5) == b""


def test_a_writer_lends_its_memory(store: StreamStore) -> None:
    expected = b""
    with store.create("x", block=BLOCK) as writer:
        for value in range(200):
            buffer = writer.buffer()
            count = min(len(buffer), 1000 + value)
            np.frombuffer(buffer, np.uint8)[:count] = value
            del buffer
            writer.advance(count)
            expected += bytes([value]) * count
        with pytest.raises(errors.ArgumentError):
            writer.buffer(BLOCK)
        with pytest.raises(errors.ArgumentError):
            writer.advance(BLOCK)
    assert store.open("x").read() == expected


def test_memory_that_is_in_use_is_not_taken_back(store: StreamStore) -> None:
    writer = store.create("x", block=BLOCK)
    kept = np.frombuffer(writer.buffer(), np.uint8)[5:9]
    for act in (lambda: writer.advance(1), writer.close, lambda: writer.write(b"x"), writer.discard):
        with pytest.raises(BufferError):
            act()
    kept[:] = 1
    view = kept
    del kept
    with pytest.raises(BufferError):
        writer.advance(9)
    del view
    writer.advance(9)
    writer.close()
    assert store.open("x").read() == bytes(5) + b"\1" * 4


def test_lent_blocks_are_read_only_and_outlive_the_reader(store: StreamStore) -> None:
    with store.create("x", block=BLOCK) as writer:
        writer.write_array(np.arange(50_000))
    reader = store.open("x")
    array = next(reader.arrays())
    assert not array.flags.writeable
    with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    store.destroy("x")
    reader.close()
    del reader
    np.testing.assert_array_equal(array, np.arange(len(array)))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", (7, 3)), ("float64", ()), ("int16", (999,)), ([("a", "<i4"), ("b", "<f8", (2, 2))], ()), ("S13", (2,))],
)
def test_arrays(store: StreamStore, rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], compression: Any) -> None:
    kind = np.dtype(dtype)
    raw = rng.integers(97, 122, 3001 * kind.itemsize * int(np.prod(shape)), np.uint8)
    rows = raw.view(kind).reshape(-1, *shape)
    with store.create("x", block=BLOCK, compression=compression) as writer:
        for part in np.array_split(rows, 7):
            writer.write_array(part)
        with pytest.raises(errors.ArgumentError, match="in a stream of rows"):
            writer.write_array(np.zeros((3, 9, 9)))
    parts = [part.copy() for part in store.open("x")]
    assert all(part.dtype == kind for part in parts)
    assert len(parts) > 1 or rows.nbytes < BLOCK
    assert np.concatenate(parts).tobytes() == rows.tobytes()
    assert store.info("x").compression == compression


def test_rows_have_to_fit(store: StreamStore) -> None:
    with store.create("x", block=4096) as writer, pytest.raises(errors.ArgumentError, match="has room for"):
        writer.write_array(np.zeros((2, 1000)))
    with store.create("y", block=4096) as writer:
        writer.write(bytes(10_000))
    with pytest.raises(errors.ArgumentError, match="not a multiple of rows"):
        list(store.open("y").arrays("float64", (3,)))
    with pytest.raises(errors.ArgumentError, match="give dtype"):
        list(store.open("y").arrays())


@given(
    records=st.lists(st.binary(max_size=9000), max_size=30),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    together=st.booleans(),
)
def test_records(store: StreamStore, records: list[bytes], compression: Any, together: bool) -> None:
    with store.create("x", block=8192, compression=compression, overwrite=True) as writer:
        if together:
            writer.write_records(records)
        else:
            for record in records:
                writer.write_record(record)
        assert writer.record_count == len(records)
    assert [bytes(record) for record in store.open("x").records()] == records
    assert [one for batch in store.open("x").record_batches() for one in batch.to_bytes()] == records
    arrow = [one for batch in store.open("x").record_batches() for one in batch.to_arrow().to_pylist()]
    assert arrow == records
    assert store.open("x").read() == b"".join(records)


def test_records_of_many_kinds(store: StreamStore) -> None:
    rows = np.arange(30, dtype=np.int32).reshape(10, 3)
    strings = pa.array(["a", "", "bcd", "e" * 9000])
    with store.create("x", block=4096) as writer:
        writer.write_records(rows)
        writer.write_records(strings[1:])
        writer.write_records(strings.cast(pa.large_binary()))
        writer.write_records(np.array([1.5, 2.5]))
        writer.write_records(iter([b"x", bytearray(b"y"), memoryview(b"z"), np.arange(3, dtype=np.uint8)]))
        for wrong in (3, ["text"], pa.array(["a", None]), pa.array([1])):
            with pytest.raises((TypeError, errors.ArgumentError)):
                writer.write_records(wrong)  # type: ignore[arg-type]
    found = [bytes(record) for record in store.open("x").records()]
    expected = [row.tobytes() for row in rows] + [b"", b"bcd", b"e" * 9000, b"a", b"", b"bcd", b"e" * 9000]
    expected += [np.float64(1.5).tobytes(), np.float64(2.5).tobytes(), b"x", b"y", b"z", b"\0\1\2"]
    assert found == expected
    batch = next(store.open("x").record_batches())
    assert batch[-1] == batch[len(batch) - 1]
    assert batch[1:3] == [batch[1], batch[2]]
    with pytest.raises(IndexError):
        batch[len(batch)]


def test_records_as_elements(store: StreamStore) -> None:
    rows = np.arange(100_000, dtype=np.int64).reshape(-1, 4)
    with store.create("x", block=BLOCK) as writer:
        writer.write_records(rows)
    kind = np.dtype([("a", "<i8", 4)])
    found = [batch.to_numpy(kind)["a"].copy() for batch in store.open("x").record_batches()]
    np.testing.assert_array_equal(np.concatenate(found), rows)
    with pytest.raises(errors.ArgumentError):
        next(store.open("x").record_batches()).to_numpy("f4")


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_objects(store: StreamStore, rng: np.random.Generator, compression: Any) -> None:
    values = [{"x": rng.random((n, 7)), "name": f"part {n}", "y": np.arange(n)} for n in (0, 3, 1000, 5000, 20_000)]
    values = [*values, [1, None, "text"], np.ones(3), b"bytes"]
    with store.create("x", block=BLOCK, compression=compression, ahead=16) as writer:
        for value in values:
            writer.dump(value)
    for value, found in zip(values, store.open("x", ahead=16).load(), strict=True):
        if isinstance(value, dict):
            assert found["name"] == value["name"]
            for key in ("x", "y"):
                np.testing.assert_array_equal(found[key], value[key])
                assert found[key].flags.aligned
                assert found[key].nbytes == 0 or found[key].ctypes.data % 64 == 0
                assert not found[key].flags.writeable
        else:
            np.testing.assert_array_equal(found, value)


def test_arrow_batches(store: StreamStore, rng: np.random.Generator) -> None:
    def batch(rows: int) -> pa.RecordBatch:
        text = pa.array([f"row {row}" for row in range(rows)])
        return pa.record_batch([pa.array(rng.random(rows)), text], ["x", "text"])

    batches = [batch(rows) for rows in (10, 0, 700, 20_000, 1, 5)]
    with store.create("x", block=BLOCK) as writer:
        for one in batches:
            writer.write_batch(one)
    for one, found in zip(batches, store.open("x", ahead=8).batches(), strict=True):
        assert found.equals(one)
        assert found.column(0).buffers()[1].address % 8 == 0


def test_as_files(store: StreamStore) -> None:
    with store.create("x").as_file() as sink, io.TextIOWrapper(io.BufferedWriter(sink)) as text:
        text.writelines(f"{line}\n" for line in range(10_000))
    with io.TextIOWrapper(io.BufferedReader(store.open("x").as_file())) as text:
        assert [int(line) for line in text] == list(range(10_000))


def test_frames_of_ones_own(store: StreamStore) -> None:
    frames = [np.frombuffer(mmap.mmap(-1, BLOCK), np.uint8) for _ in range(3)]
    with store.create("x", block=BLOCK, frames=frames) as writer:
        writer.write(bytes(range(256)) * 2000)
    places = {frame.ctypes.data for frame in frames}
    count = 0
    for block in store.open("x", frames=frames).blocks():
        assert np.frombuffer(block, np.uint8).ctypes.data in places
        count += len(block)
    assert count == 256 * 2000
    with pytest.raises(errors.ArgumentError, match="frames"):
        store.open("x", frames=[np.empty(100, np.uint8)])


def test_what_is_kept_is_limited(store: StreamStore) -> None:
    with store.create("x", block=BLOCK) as writer:
        writer.write(bytes(1_000_000))
    kept = []
    with pytest.raises(BufferError, match="lent"):
        kept.extend(store.open("x", ahead=3).blocks())
    reader = store.open("x", ahead=3)
    kept = [next(reader.blocks()) for _ in range(3)]
    with pytest.raises(errors.LentError):
        next(reader.blocks())
    kept.pop()
    assert len(next(reader.blocks())) > 0


def test_streams_and_names(store: StreamStore) -> None:
    with store.create("a", about={"made by": "a test"}) as writer:
        writer.write_records([b"1", b"22"])
    with pytest.raises(FileExistsError):
        store.create("a")
    store.rename("a", "b/c")
    info = store.info("b/c")
    assert (info.nbytes, info.record_count, info.state, info.about) == (3, 2, "whole", {"made by": "a test"})
    for act in (lambda: store.open("a"), lambda: store.destroy("a"), lambda: store.info("a"), lambda: store.rename("a", "d")):
        with pytest.raises(FileNotFoundError):
            act()
    with pytest.raises(errors.ObjectNameError):
        store.create("../x")
    with pytest.raises(RuntimeError), store.create("half") as writer:
        writer.write(b"x")
        raise RuntimeError
    assert list(store) == ["b/c"]
    with pytest.raises(errors.ClosedError):
        writer.write(b"x")
    for wrong in ({"compression": "gzip"}, {"block": 5000}, {"ahead": 0}, {"block": "4GiB"}):
        with pytest.raises(errors.ArgumentError):
            store.create("wrong", **wrong)


def test_reading_for_the_last_time(store: StreamStore) -> None:
    free = store.free_bytes
    with store.create("x", block=BLOCK) as writer:
        writer.write(bytes(10_000_000))
    assert store.free_bytes <= free - 10_000_000
    reader = store.open("x")
    with pytest.raises(errors.LockedError):
        store.open("x", destroy=True)
    assert sum(map(len, reader.blocks())) == 10_000_000
    del reader
    with pytest.raises(errors.ArgumentError, match="frames"):
        store.open("x", destroy=True, frames=[np.empty(9, np.uint8)])
    assert "x" in store
    assert sum(map(len, store.open("x", destroy=True).blocks())) == 10_000_000
    assert "x" not in store
    wait_for(lambda: store.free_bytes == free)


def test_space_can_be_had_as_soon_as_it_was_given_up(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "small.store", size="8MiB")
    for _ in range(20):
        with store.create("x", block=BLOCK) as writer:
            writer.write(bytes(7_000_000))
        for block in store.open("x").blocks():
            del block
        store.destroy("x")


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_full_store(tmp_path: Path) -> None:
    store = StreamStore(tmp_path / "small.store", size="1MiB")
    with pytest.raises(errors.NoSpaceError) as caught, store.create("x", block=BLOCK) as writer:
        writer.write(bytes(2_000_000))
    assert caught.value.object.endswith("small.store/x")
    with pytest.raises(errors.NoSpaceError):
        StreamStore(tmp_path / "vast.store", size=1 << 42)
    assert not (tmp_path / "vast.store").exists()


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StreamStore(tmp_path / "nothing")
    (tmp_path / "text").write_text("x" * 100_000)
    with pytest.raises(errors.UnsupportedError, match="not a store"):
        StreamStore(tmp_path / "text", size="1GiB")
    assert (tmp_path / "text").read_text() == "x" * 100_000


def test_one_store_for_a_process_and_none_for_another(store: StreamStore) -> None:
    with store.create("x") as writer:
        writer.write(b"abc")
    assert StreamStore(store.path, read_only=True).open("x").read() == b"abc"
    code = f"from outcore.streams import StreamStore; StreamStore({store.path!r}, read_only=True)"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "LockedError" in failed.stderr


def test_a_damaged_stream(store: StreamStore) -> None:
    with store.create("x", block=BLOCK) as writer:
        writer.write(b"\x5a" * 500_000)
    data = Path(store.path).read_bytes()
    with open(store.path, "r+b") as file:
        file.seek(data.index(b"\x5a" * 1000) + 100)
        file.write(b"!")
    with pytest.raises(errors.CorruptError, match="checksum"):
        store.open("x").read()


def test_a_killed_writer_leaves_an_unfinished_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.store"
    code = textwrap.dedent(f"""
        import outcore as oc
        from outcore.streams import StreamStore
        oc.configure("16MiB", {str(tmp_path)!r}, allow_tmpfs_scratch=True)
        store = StreamStore({str(path)!r}, size="32MiB")
        with store.create("whole") as writer:
            writer.write(b"abc")
        writer = store.create("half", block=65536)
        writer.write(bytes(1_000_000))
        print("written", flush=True)
        input()
    """)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    with pytest.raises(errors.LockedError):
        StreamStore(path)
    child.kill()
    child.wait()
    store = StreamStore(path)
    assert [(info.name, info.state) for info in store.streams()] == [("half", "unfinished"), ("whole", "whole")]
    with pytest.raises(errors.InterruptedWriteError):
        store.open("half")
    free = store.free_bytes
    with store.create("half") as writer:
        writer.write(b"now whole")
    assert store.open("half").read() == b"now whole"
    store.destroy("half")
    wait_for(lambda: store.free_bytes == free)
    assert store.open("whole").read() == b"abc"


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_polling_says_when_there_is_something(store: StreamStore, rng: np.random.Generator, compression: str | None) -> None:
    """All of a stream is read and written in steps that an event loop would take."""

    def wait(stream: object) -> None:
        (readable, _, _) = select.select([stream], [], [], 20)
        assert readable == [stream]

    records = [rng.bytes(1000) for _ in range(2000)]
    with store.create("x", block=BLOCK, compression=compression) as writer:
        for record in records:
            wait(writer)
            writer.write_record(record)
    reader = store.open("x")
    found = []
    while len(found) < len(records):
        wait(reader)
        found.append(bytes(next(reader.records())))
    assert found == records
    wait(reader)
    assert list(reader.records()) == []
    reader.close()
    with pytest.raises(errors.ClosedError):
        reader.fileno()
    with pytest.raises(errors.ClosedError):
        writer.fileno()


def test_a_fork_uses_nothing_of_its_parent(store: StreamStore) -> None:
    with store.create("x") as writer:
        writer.write(b"abc")
    reader = store.open("x")
    child = os.fork()
    if child == 0:
        try:
            reader.read()
        except errors.ClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert reader.read() == b"abc"


def test_threads_and_many_streams_within_a_small_budget(tmp_path: Path) -> None:
    """32 streams at once have a block each; none waits for another."""
    session = oc.Session("2MiB", tmp_path, 2, allow_tmpfs_scratch=True)
    store = StreamStore(tmp_path / "b.store", size="128MiB", session=session)
    data = [bytes([number]) * 1_000_000 for number in range(32)]
    writers = [store.create(f"{number}", block=BLOCK) for number in range(32)]
    for at in range(0, 1_000_000, 100_000):
        for writer, part in zip(writers, data, strict=True):
            writer.write(part[at : at + 100_000])
    for writer in writers:
        writer.close()
    with pytest.raises(errors.OverBudgetError):
        kept = [store.create(f"more {number}", block=BLOCK) for number in range(40)]
        del kept
    found: dict[int, bytes] = {}

    def read(number: int) -> None:
        found[number] = store.open(f"{number}").read()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[number] == data[number] for number in range(16))


def test_a_file_that_was_never_closed_is_no_stream(store: StreamStore) -> None:
    with store.create("x") as writer:
        writer.write(b"old")
    with pytest.raises(AttributeError), store.create("x", overwrite=True) as writer:
        pickle.dump(lambda: 0, writer.as_file())
    with pytest.raises(RuntimeError), store.create("x", overwrite=True).as_file() as file:
        file.write(b"new")
        raise RuntimeError
    assert store.open("x").read() == b"old"
    writer = store.create("y")
    writer.write(b"whole")
    writer.close()
    writer.close()
    assert store.open("y").read() == b"whole"


def test_iterators_go_on_where_others_ended(store: StreamStore) -> None:
    with store.create("x", block=BLOCK) as writer:
        writer.write_records([bytes([number]) * 10 for number in range(200)])
    reader = store.open("x")
    first = [bytes(next(reader.records())) for _ in range(3)]
    assert first + [bytes(record) for record in reader.records()] == [bytes([number]) * 10 for number in range(200)]
    reader = store.open("x")
    assert reader.read(15) + b"".join(reader.blocks()) == store.open("x").read()


def test_frames_that_cannot_be_used(store: StreamStore) -> None:
    frame = np.frombuffer(mmap.mmap(-1, 2 * BLOCK), np.uint8)
    constant = np.frombuffer(mmap.mmap(-1, BLOCK, access=mmap.ACCESS_READ), np.uint8)
    for frames in ([frame, frame], [frame[:BLOCK], frame[4096:]], [constant], [frame[1:]]):
        with pytest.raises((errors.ArgumentError, BufferError)):
            store.create("x", block=BLOCK, frames=frames)
    assert list(store) == []


def test_a_handler_of_a_signal_may_close_the_stream(store: StreamStore) -> None:
    writer = store.create("x", block=BLOCK)

    def close(*_: object) -> None:
        writer.discard()

    before = signal.signal(signal.SIGALRM, close)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        until = time.monotonic() + 10
        with pytest.raises((errors.ClosedError, errors.NoSpaceError)):
            while time.monotonic() < until:
                writer.write(bytes(1000))
                time.sleep(0.001)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "x" not in store
