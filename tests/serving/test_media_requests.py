"""Images and text over HTTP: the answers of the model, and a clear no to everything else."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from http_server import Client, serving
from PIL import ExifTags, Image

from sp500.serving.predictor import Predictor


@pytest.fixture(scope="module")
def images(served_runs: Path) -> Iterator[Client]:
    with serving(served_runs, "images") as (client, *_):
        yield client


@pytest.fixture(scope="module")
def language(served_runs: Path) -> Iterator[Client]:
    with serving(served_runs, "language") as (client, *_):
        yield client


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: object) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def problem(client: Client, path: str, body: dict[str, object]) -> str:
    answer = client.post(path, body)
    assert answer.status_code == 422, answer.text
    return str(answer.json()["error"])


def test_images_get_the_classes_of_training(served_runs, images):
    predictor = Predictor(served_runs / "images")
    test = predictor.task.prepare(predictor.config).test
    outputs = predictor.predict(test)
    pixels = test.rows[:40, :, :, 0]
    answer = images.post("/v1/images", {"images": [encoded(one) for one in pixels]}).json()
    assert answer["classes"] == outputs[:40].argmax(axis=1).tolist()
    chances = np.array(answer["probabilities"])
    expected = np.exp(outputs[:40].astype(np.float64))
    assert chances == pytest.approx(expected / expected.sum(axis=1, keepdims=True), abs=1e-5)
    assert (answer["run"], answer["model"]) == ("images", "images")


def test_bmp_is_the_same_image(images):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    given = encoded(pixels), encoded(pixels, "BMP"), f"data:image/png;base64,{encoded(pixels)}"
    png, bmp, uri = (images.post("/v1/images", {"images": [one]}).content for one in given)
    assert png == bmp == uri


def test_image_that_says_how_the_camera_was_held_is_turned(images):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # the first row of the file is the right side of the picture
    given = encoded(pixels), encoded(np.rot90(pixels), exif=exif)
    upright, turned = (images.post("/v1/images", {"images": [one]}).content for one in given)
    assert upright == turned


def test_what_is_no_such_image_is_named(images):
    good = encoded(np.zeros((8, 8), np.uint8))
    larger, colour = encoded(np.zeros((9, 8), np.uint8)), encoded(np.zeros((8, 8, 3), np.uint8))
    gif, noise = encoded(np.zeros((8, 8), np.uint8), "GIF"), np.random.default_rng(1).integers(0, 256, (8, 8), np.uint8)
    cut = base64.b64encode(base64.b64decode(encoded(noise))[:80]).decode()
    found = {
        "images[1]: is 8 x 9 pixels in grey, expected 8 x 8 pixels in grey": [good, larger],
        "images[0]: is 8 x 8 pixels in colour, expected 8 x 8 pixels in grey": [colour],
        "images[0]: is no image in PNG, JPEG, BMP; convert it": [gif],
        "images[0]: is not base64": ["%%%"],
        "images[1]: is no image in PNG, JPEG, BMP; convert it": [good, base64.b64encode(b"hello").decode()],
    }
    assert {message: problem(images, "/v1/images", {"images": given}) for message, given in found.items()} == {
        message: message for message in found
    }
    assert "images[0]: cannot be read" in problem(images, "/v1/images", {"images": [cut]})
    assert "images: List should have at least 1 item" in problem(images, "/v1/images", {"images": []})
    assert "not trained on text" in problem(images, "/v1/text", {"text": "a"})


def test_more_pixels_than_a_model_takes_at_once_are_refused(images, monkeypatch):
    monkeypatch.setattr("sp500.serving.media_requests.MOST_PIXELS", 200)
    good = [encoded(np.zeros((8, 8), np.uint8))] * 4
    assert "has 4 images" in problem(images, "/v1/images", {"images": good})
    assert images.post("/v1/images", {"images": good[:3]}).status_code == 200


def test_text_goes_on_as_the_sample_of_the_record(served_runs, language):
    predictor = Predictor(served_runs / "language")
    dataset = predictor.task.prepare(predictor.config)
    sample = json.loads((served_runs / "language" / "record.json").read_text())["metrics"]["test"]["sample"]
    body = {"text": dataset.test.rows[:16].tobytes().decode(), "length": 200, "seed": predictor.config.train.seed}
    assert language.post("/v1/text", body).json()["text"] == sample


def test_short_text_is_enough_and_the_seed_decides(language):
    first, again, other = (
        language.post("/v1/text", {"text": "é", "length": 30, "seed": seed}).json()["text"] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_bad_text_is_named(language):
    assert "text: String should have at least 1 character" in problem(language, "/v1/text", {"text": ""})
    assert "length: Input should be less than or equal to 500" in problem(
        language, "/v1/text", {"text": "a", "length": 501}
    )
    half = {"data": b'{"text": "\\ud800"}', "headers": {"content-type": "application/json"}, "timeout": 60}
    raw = language.session.post(f"{language.url}/v1/text", **half)
    assert (raw.status_code, raw.json()["error"]) == (
        422,
        "text: Input should be a valid string, unable to parse raw data as a unicode string",
    )
    assert "not trained on images" in problem(language, "/v1/images", {"images": ["aaaa"]})
