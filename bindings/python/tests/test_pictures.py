"""Pictures in samples: what is decoded, and what is not, against Pillow."""

from __future__ import annotations

import io
import itertools
import pickle
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from PIL import Image, ImageOps

import outcore as oc
from outcore.cli import cli
from outcore.data import Dataset, Loader, Writer
from outcore.errors import CorruptError, OutcoreError, OverBudgetError, UnsupportedError

SIZE = (31, 18)
"""Width and height, neither a multiple of anything."""


@pytest.fixture(autouse=True)
def path(tmp_path: Path) -> Iterator[Path]:
    oc.configure(memory="32MiB", scratch=tmp_path / "scratch", allow_tmpfs_scratch=True)
    yield tmp_path / "pictures"


def picture(mode: str = "RGB", size: tuple[int, int] = SIZE) -> Image.Image:
    """Smooth, so that what a lossy file makes of it depends little on the decoder."""
    wide, high = size
    rows, columns = np.mgrid[:high, :wide]
    planes = [30 + 150 * columns / wide, 60 + 120 * rows / high, 200 - 90 * columns / wide, 90 + 80 * rows / high]
    pixels = np.stack(planes, -1).astype(np.uint8)
    if mode == "LA":
        return Image.merge("LA", [Image.fromarray(pixels[..., number]) for number in (0, 1)])
    if mode in ("1", "P"):
        return picture("RGB", size).convert(mode)
    if mode == "I;16":
        return Image.fromarray((rows * 3000 + columns * 30).astype(np.uint16))
    return Image.frombytes(mode, size, np.ascontiguousarray(pixels[..., : len(Image.new(mode, (1, 1)).getbands())]).tobytes())


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def dataset(path: Path, files: Sequence[bytes], mode: Any = "RGB", **options: Any) -> Dataset:
    with Writer(path) as writer:
        for number, file in enumerate(files):
            writer.write({"image": file}, name=f"{number}.bin")
    return Dataset(path, decode={"image": mode}, **options)


def refused(ds: Dataset) -> list[OutcoreError | None]:
    """What reading each sample raises."""
    found: list[OutcoreError | None] = []
    for number in range(len(ds)):
        try:
            ds[number]
            found.append(None)
        except OutcoreError as error:
            found.append(error)
    return found


def expected(file: bytes, mode: str) -> npt.NDArray[np.int64]:
    pixels = np.asarray(Image.open(io.BytesIO(file)).convert(mode), np.int64)
    return pixels.reshape(*pixels.shape[:2], -1)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth: int, colour: int, row_bytes: int, before: bytes = b"", after: bytes = b"") -> bytes:
    """Five by four pixels of noise."""
    noise = random.Random(depth + colour)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 4, depth, colour, 0, 0, 0))
    data = zlib.compress(b"".join(b"\0" + noise.randbytes(row_bytes) for _ in range(4)))
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", data) + after + chunk(b"IEND", b"")


def jpegs() -> list[bytes]:
    """Files of every kind that Pillow writes."""
    kinds = (
        {},
        {"progressive": True},
        {"restart_marker_blocks": 2},
        {"restart_marker_rows": 1, "progressive": True},
        {"optimize": True},
    )
    return [
        saved(picture(mode, size), quality=90, subsampling=subsampling, **kind)
        for mode in ("L", "RGB", "CMYK")
        for size in (SIZE, (64, 48), (7, 100), (1, 1))
        for kind in kinds
        for subsampling in (0, 1, 2)
    ]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_jpeg_of_every_kind(path: Path, mode: str) -> None:
    files = jpegs()
    for file, found in zip(files, dataset(path, files, mode)[:]["image"], strict=True):
        assert found.shape == expected(file, mode).shape
        assert np.abs(found - expected(file, mode)).max() <= 12


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_other_kinds_of_files(path: Path, mode: str) -> None:
    exact = [
        *(saved(picture(of), "PNG") for of in ("1", "L", "LA", "P", "RGB", "RGBA")),
        saved(picture("P"), "PNG", transparency=3),
        *(saved(picture(of), "GIF") for of in ("1", "L", "P", "RGB")),
        saved(picture("P"), "GIF", transparency=3, save_all=True, append_images=[picture("L")]),
        *(saved(picture(of), "WEBP", lossless=True, exact=True) for of in ("RGB", "RGBA")),
        *(saved(picture(of), "BMP") for of in ("1", "L", "P", "RGB")),
        *(
            saved(picture(of), "TIFF", compression=by)
            for of in ("1", "L", "RGB", "RGBA")
            for by in (None, "tiff_lzw", "tiff_deflate", "packbits")
        ),
        saved(picture("1"), "TIFF", compression="group4"),
        *(saved(picture(of), "PPM") for of in ("1", "L", "RGB")),
        *(png(depth, 0, -(-5 * depth // 8)) for depth in (1, 2, 4)),
        png(8, 2, 15, before=chunk(b"tRNS", bytes(6))),
        b"P3\n# words\n2 1\n255\n1 2 3\n40 50 60\n",
    ]
    close = [saved(picture(of), "WEBP", quality=90) for of in ("RGB", "RGBA")]
    close += [saved(picture(of), "TIFF", compression=by) for of, by in (("CMYK", None), ("L", "jpeg"))]
    found = dataset(path, exact + close, mode)[:]["image"]
    for number, file in enumerate(exact):
        np.testing.assert_array_equal(found[number], expected(file, mode), str(number))
    for file, pixels in zip(close, found[len(exact) :], strict=True):
        assert np.abs(pixels - expected(file, mode)).max() <= 6


def test_of_sixteen_bits_the_upper_eight(path: Path) -> None:
    gray = picture("I;16")
    files = [saved(gray, "PNG"), saved(gray, "TIFF"), png(16, 2, 30), png(16, 6, 40), png(16, 4, 20)]
    found = dataset(path, files)[:]["image"]
    for pixels in found[:2]:
        np.testing.assert_array_equal(pixels, np.repeat(np.asarray(gray)[..., None] >> 8, 3, 2))
    for pixels, file in zip(found[2:], files[2:], strict=True):
        np.testing.assert_array_equal(pixels, expected(file, "RGB"))


def test_jpeg_with_what_is_allowed_between(path: Path) -> None:
    whole = saved(picture())
    scan = whole.index(b"\xff\xda")
    comment = b"\xff\xfe\x00\x06note"
    files = [
        whole + b"trailing" + whole,
        whole[:scan] + b"\xff\xff" + comment + whole[scan:],
        whole[:-2] + b"\xff\xff\xff\xd9",
        whole[:2] + b"\xff\xe1\x00\x08Exif\0\0" + whole[2:],
    ]
    bare = whole
    while (at := bare.find(b"\xff\xc4")) >= 0:
        bare = bare[:at] + bare[at + 2 + int.from_bytes(bare[at + 2 : at + 4]) :]
    found = dataset(path, [whole, *files, bare])[:]["image"]
    assert all(np.array_equal(pixels, found[0]) for pixels in found)


def test_a_jpeg_that_is_cut_off_is_damaged(path: Path) -> None:
    chance = random.Random(7)
    files = []
    for whole in jpegs():
        begin = whole.index(b"\xff\xda") + 4
        cuts = [1, 20, len(whole) - 1, len(whole) - 2, *(chance.randrange(begin, len(whole)) for _ in range(3))]
        files += [whole[:cut] for cut in cuts]
        files += [whole[:cut] + b"\xff\xd9" for cut in cuts[4:] if cut < len(whole) - 4 and whole[cut - 1] != 0xFF]
    ds = dataset(path, files)
    assert all(isinstance(error, CorruptError) for error in refused(ds))
    assert {fault["kind"] for fault in ds.verify()} == {"damaged"} and len(ds.verify()) == len(files)


def test_restart_markers_in_another_order_are_damage(path: Path) -> None:
    files = []
    for options in ({"restart_marker_blocks": 2}, {"restart_marker_blocks": 3, "progressive": True}):
        whole = saved(picture(size=(64, 48)), **options)
        places = [at for at in range(len(whole) - 1) if whole[at] == 0xFF and 0xD0 <= whole[at + 1] <= 0xD7]
        first, second = next((a, b) for a, b in itertools.pairwise(places) if whole[a + 1] != whole[b + 1])
        files.append(whole[:first] + whole[first + 2 :])
        swapped = bytearray(whole)
        swapped[first + 1], swapped[second + 1] = swapped[second + 1], swapped[first + 1]
        files += [bytes(swapped), whole[:first] + whole[second:]]
    assert all(isinstance(error, CorruptError) for error in refused(dataset(path, files)))


def test_what_is_left_of_a_jpeg_after_a_scan_is_damage(path: Path) -> None:
    whole = saved(picture(), progressive=True)
    scans = [at for at in range(len(whole) - 1) if whole[at : at + 2] == b"\xff\xda"]
    # Whole scans are gone; libjpeg would show what there is.
    files = [whole[: scans[number]] + b"\xff\xd9" for number in range(1, len(scans))]
    assert all("missing" in str(error) for error in refused(dataset(path, files)))


def test_bytes_that_are_overwritten_in_a_jpeg(path: Path) -> None:
    """Some changes make another picture that is as good; zeros in place of a sector do not."""
    files = []
    for options in ({}, {"progressive": True}, {"restart_marker_rows": 1}):
        noise = np.random.default_rng(1).integers(0, 256, (96, 96, 3), np.uint8)
        whole = saved(Image.fromarray(noise), quality=90, **options)
        files += [whole[:at] + bytes(512) + whole[at + 512 :] for at in range(2048, len(whole) - 1024, 512)]
    found = refused(dataset(path, files))
    assert len(files) > 20 and all(isinstance(error, CorruptError) for error in found)


def test_every_change_of_a_png_is_found(path: Path) -> None:
    whole = png(8, 2, 15, before=chunk(b"tEXt", b"key\0words"), after=chunk(b"tEXt", b"more\0words"))
    files = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in range(len(whole))]
    files += [whole[:at] for at in range(len(whole))]
    assert all(isinstance(error, CorruptError) for error in refused(dataset(path, files)))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_other_files_that_are_cut_off_are_damaged(path: Path, kind: str) -> None:
    whole = saved(picture(), kind)
    files = [whole[:cut] for cut in {*range(0, len(whole) - 1, max(1, len(whole) // 60)), len(whole) - 1}]
    found = refused(dataset(path, files))
    assert all(isinstance(error, CorruptError) for error in found)


OTHERS = {
    "JPEG 2000": saved(picture(), "JPEG2000"),
    "JPEG XL": b"\x00\x00\x00\x0cJXL \r\n\x87\n" + bytes(40),
    "AVIF": b"\x00\x00\x00\x20ftypavif\x00\x00\x00\x00avifmif1miafMA1B" + bytes(40),
    "HEIC": b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(40),
    "PSD": b"8BPS\x00\x01" + bytes(40),
    "SVG": b'<?xml version="1.0"?>\n<!-- a drawing -->\n<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    "ICO": saved(picture(), "ICO"),
    "floating-point": saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"),
    "lossless JPEG": saved(picture()).replace(b"\xff\xc0", b"\xff\xc3", 1),
    "arithmetic": saved(picture()).replace(b"\xff\xc0", b"\xff\xc9", 1),
    "12 bits": saved(picture()).replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c", 1),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_kind_that_is_not_decoded_is_not_damaged(path: Path, kind: str) -> None:
    whole = saved(picture(), "PNG")
    ds = dataset(path, [whole, OTHERS[kind], b"<html>404</html>", whole])
    with pytest.raises(UnsupportedError, match=r"sample 1 \(\"1.bin\"\): field \"image\" is an? ") as caught:
        ds["1.bin"]
    told = str(caught.value)
    assert str(path) in told and "not decoded" in told and len(told) < 400
    assert kind in told or kind == "floating-point"
    loader = Loader(ds, 2, skip_damaged=True)
    with pytest.raises(UnsupportedError, match=r"1\.bin"):
        list(loader)
    assert [(fault["name"], fault["kind"]) for fault in ds.verify()] == [("1.bin", "unsupported"), ("2.bin", "damaged")]


def test_what_is_no_picture_is_damaged(path: Path) -> None:
    page = b"<!DOCTYPE html><html><body><svg></svg></body></html>"
    ds = dataset(path, [b"", b"<html>404</html>", page, random.Random(3).randbytes(5000), b"text", bytes(100)])
    found = refused(ds)
    assert all(isinstance(error, CorruptError) for error in found)
    assert all(
        f'sample {number} ("{number}.bin"): field "image" is no picture' in str(error) for number, error in enumerate(found)
    )
    assert '"<html>404</html>"' in str(found[1]) and all(len(str(error)) < 400 for error in found)
    loader = Loader(ds, 4, skip_damaged=True)
    assert [len(batch["image"]) for batch in loader] == [0, 0]
    assert loader.skipped == 6 and 'sample 0 ("0.bin")' in str(loader.first_skipped)


def test_a_picture_larger_than_memory_is_not_damaged(path: Path) -> None:
    large = Image.new("L", (6500, 6500))
    files = [saved(large, "PNG"), saved(large), saved(large, progressive=True), saved(picture())]
    ds = dataset(path, files)
    for number, error in enumerate(refused(ds)[:3]):
        assert isinstance(error, OverBudgetError) and error.needed > error.budget
        assert f'sample {number} ("{number}.bin")' in str(error) and "6500 by 6500 pixels" in str(error)
    with pytest.raises(OverBudgetError):
        list(Loader(ds, 4, skip_damaged=True))
    assert [(fault["sample"], fault["kind"]) for fault in ds.verify()] == [(number, "too large") for number in range(3)]


def turned(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    return saved(picture(), kind, exif=exif, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation(path: Path, kind: str) -> None:
    files = [turned(kind, orientation) for orientation in range(1, 9)]
    ds = dataset(path, files, exif_orientation=True)
    for loaded in (ds, pickle.loads(pickle.dumps(ds))):
        for file, found in zip(files, loaded[:]["image"], strict=True):
            upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))), np.int64)
            assert found.shape == upright.shape and np.abs(found - upright).max() <= 12
    plain = Dataset(path, decode={"image": "RGB"})[:]["image"]
    assert all(np.array_equal(found, plain[0]) for found in plain) and plain[0].shape == (SIZE[1], SIZE[0], 3)


def test_sizes_are_those_after_turning(path: Path) -> None:
    files = [turned("JPEG", orientation) for orientation in (1, 6)]
    wide, high = SIZE
    ds = dataset(path, files, ("L", wide, high), exif_orientation=True)
    assert ds[1]["image"].shape == (wide, high, 1)
    with pytest.raises(CorruptError, match=f"{high} by {wide} pixels, where {wide} by {high}"):
        ds[0]
    assert Dataset(path, decode={"image": ("L", high, wide)})[:]["image"].shape == (2, high, wide, 1)


def test_an_exif_block_behind_the_pixels_of_a_png(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    file = png(8, 2, 15, after=chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")))
    assert dataset(path, [file], exif_orientation=True)[0]["image"].shape == (5, 4, 3)


def test_ranks_have_equally_many_batches_where_samples_are_left_out(path: Path) -> None:
    whole = saved(picture(size=(4, 4)))
    ds = dataset(path, [whole[:-20] if number % 4 == 1 or number in (2, 6) else whole for number in range(64)], ("RGB", 4, 4))
    for batch, shuffle in itertools.product((1, 3), (False, True, "chunk")):
        loaders = [Loader(ds, batch, shuffle=shuffle, rank=rank, world_size=4, skip_damaged=True) for rank in range(4)]
        batches = [[len(found["image"]) for found in loader] for loader in loaders]
        assert {len(of_rank) for of_rank in batches} == {len(loaders[0])}
        assert sum(map(sum, batches)) == 46 and sum(loader.skipped for loader in loaders) == 18
        assert all("is a damaged JPEG" in str(loader.first_skipped) for loader in loaders if loader.skipped)


def test_verifying_counts_kinds_apart(path: Path) -> None:
    whole = saved(picture())
    dataset(path, [whole, whole[:-30], OTHERS["PSD"]])
    found = CliRunner().invoke(cli, ["verify", str(path), "--decode", "image"])
    assert found.exit_code == 1 and "1 damaged, 1 unsupported" in found.output
    measured = CliRunner().invoke(cli, ["bench-data", str(path), "--exif-orientation", "--decode", "image", "--seconds", "0.1"])
    assert measured.exit_code != 0
