"""The strict check of custom resources can fail."""

import crd_schema
import pytest

SCHEMA = crd_schema.closed(
    {
        "type": "object",
        "properties": {
            "size": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": r"^\d+(Mi|Gi)?$",
                "x-kubernetes-int-or-string": True,
            },
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "empty": {"type": "object"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "maybe": {"type": "object", "nullable": True, "properties": {"on": {"type": "boolean"}}},
            "ports": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {
                    "type": "object",
                    "required": ["port"],
                    "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}},
                },
            },
        },
    }
)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"size": 3},
        {"size": "3Gi"},
        {"free": {"any": {"thing": 1}}},
        {"empty": {}},
        {"labels": {"any/name": "x"}},
        {"maybe": None},
        {"maybe": {"on": True}},
        {"ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}, {"port": 2}]},
    ],
)
def test_document_of_the_schema_has_no_fault(document):
    assert crd_schema.faults(document, SCHEMA) == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"sise": 3}, "$"),
        ({"size": "3 GB"}, "$.size"),
        ({"size": True}, "$.size"),
        ({"empty": {"x": 1}}, "$.empty"),
        ({"labels": {"a": 1}}, "$.labels.a"),
        ({"labels": None}, "$.labels"),
        ({"maybe": {"off": True}}, "$.maybe"),
        ({"ports": [{"port": 1, "name": "x"}]}, "$.ports[0]"),
        ({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}, "$.ports"),
    ],
)
def test_fault_is_named_with_its_path(document, path):
    [fault] = crd_schema.faults(document, SCHEMA)
    assert fault.startswith(f"{path}: ")
