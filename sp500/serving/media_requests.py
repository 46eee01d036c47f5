"""Requests for the class of an image and for the continuation of a text."""

from __future__ import annotations

import base64
import binascii
import io
from typing import Annotated

import numpy as np
from pydantic import Field

from sp500.data.images import folders
from sp500.errors import DataError
from sp500.serving.predictor import Predictor
from sp500.serving.requests import Answer, Body, refuse
from sp500.training.task import Classifying, Continuing

MOST_IMAGES, MOST_LENGTH = 256, 500
MOST_PIXELS = 2**21
"""Numbers of all images of a request: files of one colour are small, and what the model makes of them is not."""


class ImagesBody(Body):
    """Images of the size that the model was trained on."""

    images: Annotated[list[str], Field(min_length=1, max_length=MOST_IMAGES)]
    """Each a PNG, JPEG or BMP file in base64, also as a data URI."""

    def pixels(self, predictor: Predictor) -> np.ndarray:
        """Return X [image, 1, height, width, channel] as bytes. Raises BadRequest."""
        height, width, channels = predictor.recipe.row
        most = max(MOST_PIXELS // (height * width * channels), 1)
        if len(self.images) > most:
            message = f"has {len(self.images)} images, this model accepts at most {most} at once"
            raise refuse("images", message)
        return np.stack([_pixels(text, number, (height, width, channels)) for number, text in enumerate(self.images)])


class Classes(Answer):
    """The most likely class of each image, and the probabilities [image][class]."""

    classes: list[int]
    probabilities: list[list[float]]


class TextBody(Body):
    """A text to continue."""

    text: str = Field(min_length=1, max_length=10_000)
    """The model reads its last bytes, as many as a window has."""
    length: int = Field(100, gt=0, le=MOST_LENGTH)
    """Bytes to write."""
    seed: int = Field(0, ge=0, lt=2**31)
    """The same seed writes the same text."""


class Text(Answer):
    """The continuation that the model writes."""

    text: str


def classify(predictor: Predictor, body: ImagesBody) -> dict[str, object]:
    """Return the classes of the images, without the model's name and version. Raises BadRequest."""
    if not isinstance(predictor.task, Classifying):
        raise refuse("images", "this model was not trained on images; see GET /v1/models")
    probabilities = predictor.task.probabilities(predictor.outputs(body.pixels(predictor)))
    if not np.isfinite(probabilities).all():
        raise refuse("images", "lead to an output that is not finite")
    return {"classes": probabilities.argmax(axis=1).tolist(), "probabilities": probabilities.tolist()}


def write(predictor: Predictor, body: TextBody) -> dict[str, object]:
    """Return the continuation of the text, without the model's name and version. Raises BadRequest."""
    if not isinstance(predictor.task, Continuing):
        raise refuse("text", "this model was not trained on text; see GET /v1/models")
    start = body.text.encode()
    try:
        dataset = predictor.recipe.dataset
        continuation = predictor.task.generate(predictor.model, dataset, start, body.length, body.seed)
    except RuntimeError as error:  # a model of the user's own may accept only whole windows; outputs may be infinite
        needed, why = predictor.recipe.window, str(error).splitlines()[0]
        hint = f"; it was trained on {needed} bytes, this text has {len(start)}" if len(start) < needed else ""
        raise refuse("text", f"the model cannot continue it ({why}){hint}") from None
    return {"text": continuation.decode(errors="replace")}


def _pixels(text: str, number: int, expected: tuple[int, int, int]) -> np.ndarray:
    field = f"images[{number}]"
    try:
        data = base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError):
        raise refuse(field, "is not base64") from None
    try:
        pixels = folders.decode(io.BytesIO(data), field, expected)
    except DataError as error:
        raise refuse(field, str(error).removeprefix(f"{field}: ")) from None
    return pixels[None]
