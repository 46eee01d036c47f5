"""The API server's own kinds: `kubernetes_validate`, which reads a file of all definitions for each document anew."""

import functools
from typing import Any

import kubernetes_validate
from kubernetes_validate import ValidationError, utils

utils.schema_contents = functools.cache(utils.schema_contents)


def validate(document: dict[str, Any], release: str) -> None:
    """Raise `ValidationError` where a release of Kubernetes would not take the document, unknown fields included."""
    kubernetes_validate.validate(document, release, strict=True)


__all__ = ["ValidationError", "validate"]
