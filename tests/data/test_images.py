"""Images from every format are the same images, and a broken file is named."""

import gzip
import io
import pickle
import shutil
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from sp500.config import DataConfig
from sp500.data.images import dataset as images
from sp500.data.images import folders
from sp500.data.images.settings import ImagesConfig
from sp500.data.windows import Dataset
from sp500.errors import DataError

DIGITS = images.digits().train
CUT = len(DIGITS) - int(len(DIGITS) * 0.15)


def made(source: Path | str) -> Dataset:
    return images.dataset(ImagesConfig(source=str(source)), DataConfig())


def idx(path: Path, array: np.ndarray) -> None:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def idx_folder(folder: Path, suffix: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", slice(CUT)), ("t10k", slice(CUT, None))):
        idx(folder / f"{name}-images-idx3-ubyte{suffix}", DIGITS.pixels[rows, ..., 0])
        idx(folder / f"{name}-labels-idx1-ubyte{suffix}", DIGITS.labels[rows])
    return folder


def npz(path: Path) -> Path:
    x, y = DIGITS.pixels[..., 0], DIGITS.labels
    np.savez(path, x_train=x[:CUT], y_train=y[:CUT], x_test=x[CUT:], y_test=y[CUT:])
    return path


def class_folders(folder: Path, rows: range = range(len(DIGITS)), suffix: str = "png") -> Path:
    for row in rows:
        place = folder / str(DIGITS.labels[row])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(DIGITS.pixels[row, ..., 0]).save(place / f"{row:05d}.{suffix}")
    return folder


@pytest.fixture(scope="module")
def pngs(tmp_path_factory) -> Path:
    return class_folders(tmp_path_factory.mktemp("pngs"))


def equal(one: Dataset, other: Dataset) -> bool:
    pairs = ((one.train, other.train), (one.valid, other.valid), (one.test, other.test))
    return all(
        np.array_equal(a.rows, b.rows) and np.array_equal(a.targets, b.targets) and a.rows.dtype == b.rows.dtype
        for a, b in pairs
    )


def test_digits_are_split_in_order_and_stay_bytes():
    found = made("digits")
    assert (found.row, found.outputs, found.train.rows.dtype) == ((8, 8, 1), 10, np.uint8)
    assert [len(part) for part in (found.train, found.valid, found.test)] == [1261, 267, 269]
    assert np.array_equal(found.test.rows, DIGITS.pixels[CUT:])


def test_same_digits_of_every_format_are_the_same_dataset(tmp_path, pngs):
    expected = made("digits")
    sources = [idx_folder(tmp_path / "plain"), idx_folder(tmp_path / "gz", ".gz"), npz(tmp_path / "digits.npz"), pngs]
    assert all(equal(made(source), expected) for source in sources)


def test_folders_for_parts_are_taken_as_they_are(tmp_path):
    class_folders(tmp_path / "train", range(100))
    class_folders(tmp_path / "valid", range(100, 150))
    class_folders(tmp_path / "test", range(150, 200))
    found = made(tmp_path)
    assert [len(part) for part in (found.train, found.valid, found.test)] == [100, 50, 50]


def test_image_in_two_parts_is_refused(tmp_path):
    class_folders(tmp_path / "train", range(100))
    class_folders(tmp_path / "test", range(90, 150))
    with pytest.raises(DataError, match="10 images of test"):
        made(tmp_path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def other_magic(path: Path) -> None:
    path.write_bytes(b"\x00\x00\x0d\x03" + path.read_bytes()[4:])


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\x00")


@pytest.mark.parametrize(
    ("suffix", "name", "damage"),
    [
        (".gz", "train-images-idx3-ubyte.gz", truncated),
        ("", "train-images-idx3-ubyte", truncated),
        ("", "train-images-idx3-ubyte", other_magic),
        ("", "t10k-labels-idx1-ubyte", longer),
    ],
)
def test_damaged_idx_file_is_named(tmp_path, suffix, name, damage):
    damage(idx_folder(tmp_path, suffix) / name)
    with pytest.raises(DataError, match=name):
        made(tmp_path)


def test_unequal_counts_are_refused(tmp_path):
    idx(idx_folder(tmp_path) / "train-labels-idx1-ubyte", DIGITS.labels[: CUT - 1])
    with pytest.raises(DataError, match=rf"{CUT} images .* {CUT - 1} labels"):
        made(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_head_that_announces_more_than_there_is_takes_no_memory(tmp_path, suffix):
    path = idx_folder(tmp_path, suffix) / f"train-images-idx3-ubyte{suffix}"
    data = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**20, 2**15, 2**16) + b"x" * 100
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.* 2251799813685248 bytes.* 100"):
        made(tmp_path)


BAD_FOLDERS = {
    "another format": (lambda folder: class_folders(folder, range(50, 51), "gif"), r"00050\.gif"),
    "no image": (lambda folder: (folder / "3" / "bad.png").write_bytes(b"not an image"), r"bad\.png"),
    "cut off": (lambda folder: (folder / "3" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n cut"), r"bad\.png"),
    "another size": (lambda folder: Image.new("L", (9, 8)).save(folder / "3" / "zz.png"), r"zz\.png: is 9 x 8"),
    "16 bits": (lambda folder: deep_image().save(folder / "3" / "deep.png"), r"deep\.png: .*8 bits"),
    "a copy": (lambda folder: shutil.copy(folder / "3" / "00003.png", folder / "3" / "99999.png"), "1 image of test"),
    "an empty class": (lambda folder: (folder / "00_notes").mkdir(), "00_notes: "),
    "a folder in a class": (lambda folder: (folder / "3" / "@eaDir").mkdir(), "@eaDir: "),
}


def deep_image() -> Image.Image:
    return Image.fromarray(np.full((8, 8), 300, np.uint16))


@pytest.mark.parametrize(("damage", "named"), BAD_FOLDERS.values(), ids=BAD_FOLDERS)
def test_bad_folder_of_classes_is_refused_by_name(tmp_path, damage, named):
    damage(class_folders(tmp_path, range(100)))
    with pytest.raises(DataError, match=named):
        made(tmp_path)


def with_value(value: float) -> np.ndarray:
    x = DIGITS.pixels[:10].astype(np.float64)
    x[3, 0, 0] = value
    return x


BY_CLASS = np.argsort(DIGITS.labels, kind="stable")
BAD_ARRAYS = {
    "fewer labels": ({"x_train": DIGITS.pixels[:10], "y_train": DIGITS.labels[:9]}, "10 images and 9 labels"),
    "objects": ({"x_train": np.array([{}], object), "y_train": [0]}, "plain arrays"),
    **{f"value {x}": ({"x_train": with_value(x)}, "from 0 to 255") for x in (0.5, -1.0, 256.0, np.nan)},
    "in the order of classes": ({"x_train": DIGITS.pixels[BY_CLASS], "y_train": DIGITS.labels[BY_CLASS]}, "order of"),
    "channels first": ({"x_train": np.zeros((10, 3, 32, 32), np.uint8)}, "32 channels"),
    "no y_test": ({"x_test": DIGITS.pixels[50:60]}, ""),
    "scalar": ({"x_train": np.array(5)}, ""),
    "label -1": ({"y_train": DIGITS.labels[:10] - 1}, ""),
}


@pytest.mark.parametrize(("arrays", "named"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_arrays_are_refused_by_file(tmp_path, arrays, named):
    np.savez(tmp_path / "a.npz", **{"x_train": DIGITS.pixels[:10], "y_train": DIGITS.labels[:10], **arrays})
    with pytest.raises(DataError, match=rf"a\.npz.*{named}"):
        made(tmp_path / "a.npz")


def test_pickle_and_single_array_are_not_opened(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": [1]}))
    with pytest.raises(DataError, match="pickle is not read"):
        made(tmp_path / "data_batch_1")
    np.save(tmp_path / "b.npy", DIGITS.pixels)
    with pytest.raises(DataError, match=r"a\.npz"):
        made((tmp_path / "b.npy").rename(tmp_path / "a.npz"))


def test_usual_names_of_the_validation_part_and_hidden_folders(tmp_path):
    for place, rows in (("train", range(100)), ("val", range(100, 150)), ("test", range(150, 200))):
        class_folders(tmp_path / place, rows)
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    found = made(tmp_path)
    assert (len(found.valid), found.outputs) == (50, 10)


# How a camera was held, a second picture in a file, formats that are not asked for, folders that are no classes.


def corners(pixels: np.ndarray) -> str:
    """Grey of the corners, from the top left clockwise."""
    return "".join(str(int(pixels[row, column].max()) // 50) for row, column in ((0, 0), (0, -1), (-1, -1), (-1, 0)))


@pytest.fixture
def marked() -> Image.Image:
    """24 x 16 pixels, whose corners have 1, 2, 3 and 4 times 50, from the top left clockwise."""
    pixels = np.zeros((16, 24), np.uint8)
    pixels[:8, :12], pixels[:8, 12:], pixels[8:, 12:], pixels[8:, :12] = 50, 100, 150, 200
    return Image.fromarray(pixels)


# By the standard's drawings: where the top left corner of the file is, and in which direction its rows run.
UPRIGHT = dict(enumerate(["1234", "2143", "3412", "4321", "1432", "4123", "3214", "2341"], 1))


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_image_is_turned_as_its_file_says(tmp_path, marked, orientation, kind):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    marked.save(tmp_path / "a", kind, exif=exif, quality=100)
    pixels = folders.decode(tmp_path / "a", "a")
    assert corners(pixels + 10) == UPRIGHT[orientation]  # of JPEG nearly
    assert pixels.shape == ((16, 24, 1) if orientation < 5 else (24, 16, 1))
    assert folders.decode(tmp_path / "a", "a", pixels.shape).shape == pixels.shape
    with pytest.raises(DataError, match="expected"):
        folders.decode(tmp_path / "a", "a", (pixels.shape[1], pixels.shape[0], 1))


def test_damaged_note_of_the_orientation_leaves_an_image_as_it_is(marked):
    """Each byte of the note in turn: the picture is there, upright or turned."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    buffer = io.BytesIO()
    marked.save(buffer, "JPEG", exif=exif)
    data = buffer.getvalue()
    first = data.find(b"Exif\0\0") + 6
    length = struct.unpack(">H", data[first - 8 : first - 6])[0] - 8
    with warnings.catch_warnings(action="ignore"):
        for place in range(first, first + length):
            damaged = data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]
            assert sorted(corners(folders.decode(io.BytesIO(damaged), "a") + 10)) == ["1", "2", "3", "4"]


def test_first_picture_of_a_phones_jpeg_is_taken(tmp_path, marked):
    marked.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[marked.rotate(180)])
    with Image.open(tmp_path / "a.jpg") as image:
        assert (image.format, image.n_frames) == ("MPO", 2)
    assert corners(folders.decode(tmp_path / "a.jpg", "a") + 10) == "1234"


def test_other_formats_are_not_even_tried(tmp_path, monkeypatch):
    def tried(*_):
        raise AssertionError("a format that is not read was opened")

    Image.init()
    for name, (_, accept) in list(Image.OPEN.items()):
        if name not in folders.FORMATS:
            monkeypatch.setitem(Image.OPEN, name, (tried, accept))
    for data in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"GIF89a" + b"\0" * 20, b"II*\0" + b"\0" * 20):
        (tmp_path / "a.png").write_bytes(data)
        with pytest.raises(DataError, match="no image in PNG, JPEG, BMP"):
            folders.decode(tmp_path / "a.png", "a.png")


def test_test_images_without_classes_are_refused(tmp_path):
    class_folders(tmp_path / "train", range(100))
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match="test: has no images in 0/"):
        made(tmp_path)


@pytest.mark.parametrize("place", ["", "train", "test"])
def test_image_outside_the_folders_of_classes_is_refused_by_its_file(tmp_path, place):
    for part in ("train", "test") if place else ("",):
        class_folders(tmp_path / part, range(100))
    (tmp_path / place / "labels.csv").write_text("a list of the classes is no image\n")
    Image.fromarray(DIGITS.pixels[0, ..., 0]).save(tmp_path / place / "A.PNG")
    with pytest.raises(DataError, match=r"A.PNG: .*no folder of a class"):
        made(tmp_path)


def test_numbers_of_classes_with_a_hole_are_noted(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=DIGITS.pixels[:200, ..., 0], y_train=DIGITS.labels[:200] + 1)
    found = made(tmp_path / "a.npz")
    assert found.outputs == 11
    assert [note for note in found.card["notes"] if note.startswith("1 of 11 classes, the first is 0")]
    assert made("digits").card["notes"] == []
