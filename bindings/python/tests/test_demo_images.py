"""The demo's image reader: every shape of image set, and every way a set can be bad."""

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

from outcore.demo.images import BLOCK_BYTES, ImageError, ImageSet, image_files  # noqa: E402


def grey(seed: int, width: int = 6, height: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def read(images: ImageSet) -> np.ndarray:
    return np.concatenate([block.copy() for block in images.blocks()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images of each of two labels."""
    for label in ("cat", "dog"):
        for i in range(3):
            save(tmp_path / "set" / label / f"{i}.png", grey(i + 10 * (label == "dog")))
    (tmp_path / "set" / "README.md").write_text("not an image")
    (tmp_path / "set" / "cat" / "._0.png").write_bytes(b"left by an archiver")
    return tmp_path / "set"


def test_a_folder_is_read_in_order_with_its_labels(folder: Path) -> None:
    images = ImageSet(folder)
    survey = images.survey()
    assert (survey.count, survey.height, survey.width, survey.channels) == (6, 4, 6, 1)
    assert survey.names == ("cat", "dog")
    assert survey.labels.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(read(images)[..., 0], [grey(i) for i in (0, 1, 2, 10, 11, 12)])


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_reads_as_its_folder_does(folder: Path, tmp_path: Path, mode: str) -> None:
    with tarfile.open(tmp_path / "set.tar", mode) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder.parent), recursive=False)
    images = ImageSet(tmp_path / "set.tar")
    assert images.survey().names == ("cat", "dog")
    np.testing.assert_array_equal(read(images), read(ImageSet(folder)))


def test_a_colour_image_makes_the_set_colour(folder: Path) -> None:
    save(folder / "dog" / "9.png", np.full((4, 6, 3), (255, 0, 0), np.uint8))
    images = ImageSet(folder)
    assert images.survey().channels == 3
    blocks = read(images)
    np.testing.assert_array_equal(blocks[0], np.repeat(grey(0)[..., None], 3, axis=2))
    np.testing.assert_array_equal(blocks[-1, 0, 0], (255, 0, 0))


def test_other_sizes_become_the_most_common_one(folder: Path) -> None:
    save(folder / "dog" / "9.png", np.full((8, 12), 77, np.uint8))
    images = ImageSet(folder)
    assert (images.survey().height, images.survey().width, images.survey().resized) == (4, 6, 1)
    assert (read(images)[-1] == 77).all()


def test_other_sizes_are_refused_by_name_when_asked(folder: Path) -> None:
    save(folder / "dog" / "9.png", grey(0, 12, 8))
    with pytest.raises(ImageError, match=r"dog/9\.png: 12 x 8 pixels.* 6 x 4"):
        ImageSet(folder, mixed="refuse").survey()


def test_a_given_size_holds_for_all(folder: Path) -> None:
    images = ImageSet(folder, size=(3, 2))
    assert read(images).shape == (6, 2, 3, 1)
    assert images.survey().resized == 6


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    save(tmp_path / "a.png", np.array([[0, 32768, 65535]], np.uint16))
    assert read(ImageSet(tmp_path)).ravel().tolist() == [0, 127, 255]


def test_a_truncated_image_is_named(folder: Path) -> None:
    path = save(folder / "cat" / "2.png", grey(0, 60, 60))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ImageError, match=r"cat/2\.png: damaged image"):
        read(ImageSet(folder))


def test_junk_under_an_image_name_is_named(folder: Path) -> None:
    (folder / "cat" / "2.png").write_bytes(b"junk")
    with pytest.raises(ImageError, match=r"cat/2\.png: not an image"):
        ImageSet(folder).survey()


def test_an_empty_folder_and_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no image in it"):
        ImageSet(tmp_path).survey()
    with pytest.raises(ImageError, match="nowhere: no such file or folder"):
        ImageSet(tmp_path / "nowhere")


def test_what_is_no_file_and_what_lies_in_itself_is_named(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    with pytest.raises(ImageError, match=r"pipe\.png: a pipe"):
        list(image_files(folder))
    (folder / "pipe.png").unlink()
    (folder / "loop").symlink_to(folder)
    with pytest.raises(ImageError, match="loop: a link to a folder that it lies in"):
        list(image_files(folder))
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(ImageError, match=r"a\.tar: a pipe"):
        list(image_files(tmp_path / "a.tar"))


def test_a_truncated_or_foreign_archive_is_named(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        archive.add(folder, "set")
    whole = (tmp_path / "set.tar.gz").read_bytes()
    (tmp_path / "set.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ImageError, match=r"set\.tar\.gz: not a tar archive that can be read"):
        ImageSet(tmp_path / "set.tar.gz").survey()
    (tmp_path / "text").write_text("no archive at all")
    with pytest.raises(ImageError, match="text: not a tar archive"):
        ImageSet(tmp_path / "text").survey()


def test_images_that_vanish_between_the_passes_are_noticed(folder: Path) -> None:
    images = ImageSet(folder)
    images.survey()
    (folder / "cat" / "1.png").unlink()
    with pytest.raises(ImageError, match="5 images where 6 were counted"):
        read(images)


def test_one_block_is_held_at_a_time(tmp_path: Path) -> None:
    side = 700
    for i in range(5):
        save(tmp_path / f"{i}.png", grey(i, side, side))
    blocks = [(block.nbytes, block.__array_interface__["data"][0]) for block in ImageSet(tmp_path).blocks()]
    assert [nbytes // side**2 for nbytes, _ in blocks] == [2, 2, 1]
    assert all(nbytes <= BLOCK_BYTES for nbytes, _ in blocks)
    assert len({address for _, address in blocks}) == 1


def sheets(folder: Path, count: int = 7, columns: int = 3) -> list[np.ndarray]:
    tiles = [grey(i) for i in range(count)]
    rows = -(-count // columns)
    sheet = np.zeros((rows * 4, columns * 6), np.uint8)
    for i, tile in enumerate(tiles):
        top, left = i // columns * 4, i % columns * 6
        sheet[top : top + 4, left : left + 6] = tile
    save(folder / "sheet.png", sheet)
    (folder / "labels.txt").write_text("".join(f"{i % 2}\n" for i in range(count)))
    manifest = {
        "format": "outcore-image-sheets",
        "version": 1,
        "tile": {"width": 6, "height": 4, "mode": "L"},
        "columns": columns,
        "labels": "labels.txt",
        "sheets": [{"file": "sheet.png", "count": count}],
    }
    (folder / "sheets.json").write_text(json.dumps(manifest))
    return tiles


def test_sheets_are_cut_into_their_images(tmp_path: Path) -> None:
    tiles = sheets(tmp_path)
    images = ImageSet(tmp_path)
    assert images.survey().names == ("0", "1")
    np.testing.assert_array_equal(read(images)[..., 0], tiles)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "not version 1"),
        ({"columns": 0}, "not a positive whole number"),
        ({"sheets": []}, "lists no sheet"),
        ({"sheets": [{"file": "../sheet.png", "count": 7}]}, "not the name of a file beside"),
        ({"sheets": [{"file": "sheet.png", "count": 70}]}, r"too few for 70 images|7 labels for 70"),
        ({"sheets": [{"file": "other.png", "count": 7}]}, r"other\.png: missing"),
        ({"tile": {"width": 6, "height": 4, "mode": "CMYK"}}, "tile mode"),
        ({"tile": 5}, "not a manifest"),
        ({"labels": "none.txt"}, r"none\.txt: cannot be read"),
    ],
)
def test_a_bad_manifest_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    sheets(tmp_path)
    manifest = json.loads((tmp_path / "sheets.json").read_text())
    (tmp_path / "sheets.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(ImageError, match=message):
        read(ImageSet(tmp_path))


def test_an_archive_of_sheets_is_not_taken_for_images(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        member = tarfile.TarInfo("mnist/sheets.json")
        archive.addfile(member, io.BytesIO(b""))
    with pytest.raises(ImageError, match="unpack it"):
        ImageSet(tmp_path / "set.tar").survey()


def test_the_projects_mnist_is_whole() -> None:
    mnist = next((p / "data" / "mnist" for p in Path(__file__).resolve().parents if (p / "data" / "mnist").is_dir()), None)
    if mnist is None:
        pytest.skip("not in a checkout of the project")
    survey = ImageSet(mnist).survey()
    assert (survey.count, survey.height, survey.width, survey.channels) == (70000, 28, 28, 1)
    counts = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert np.bincount(survey.labels).tolist() == counts
    first = next(iter(ImageSet(mnist).blocks()))[0]
    assert int(first.sum()) == 27525
