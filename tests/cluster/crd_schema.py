"""A CRD's OpenAPI schema as a JSON schema that refuses what the API server prunes or refuses.

Unknown fields are errors unless the CRD keeps them, `nullable` admits null, and lists that are maps hold each key once.
The CRD's CEL rules and number formats are not evaluated.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, ValidationError, validators

Schema = dict[str, Any]

TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
# The CRD leaves an object's own metadata to the API server.
METADATA: Schema = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": TEXTS,
        "annotations": TEXTS,
    },
}


def closed(schema: Any) -> Any:
    """The schema, and all within it, with unknown fields refused."""
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    if "properties" in schema:
        result["properties"] = {name: closed(part) for name, part in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            result[key] = closed(schema[key])
    if schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if schema.get("nullable"):
        result["type"] = [schema["type"], "null"]
    return result


@functools.cache
def of_crd(path: Path, version: str = "v1") -> Schema:
    """The closed schema of one version of the resource that the file defines; read once, so not to be changed."""
    crd = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [schema] = [one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"] if one["name"] == version]
    result = closed(schema)
    result["properties"]["metadata"] = METADATA
    return result


def faults(document: Any, schema: Schema) -> list[str]:
    """Each fault with its path; empty when there is none."""
    return sorted(f"{error.json_path}: {error.message}" for error in _Validator(schema).iter_errors(document))


def _each_key_once(_: Any, keys: list[str], items: Any, schema: Schema) -> Iterator[ValidationError]:
    properties = schema["items"]["properties"]
    seen = [tuple(item.get(key, properties[key].get("default")) for key in keys) for item in items]
    for one in sorted({str(one) for one in seen if seen.count(one) > 1}):
        yield ValidationError(f"{one} stands twice by {keys}")


_Validator = validators.extend(Draft202012Validator, {"x-kubernetes-list-map-keys": _each_key_once})
