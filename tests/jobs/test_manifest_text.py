"""Manifests as YAML: what kubectl reads is what was written, whatever a value looks like."""

import json
import shutil
import subprocess

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sp500.jobs.manifests import manifest

# What YAML 1.1, YAML 1.2 or Go reads as a number, a truth value, a time or nothing where no quotes are around it.
NUMBERS = """
1 1e-3 1e3 1E5 +1e3 -2e-2 1.5e3 1.e5 12e03 1_e3 1e_3 1_0e3 .5 +.5 -.5e3 ._5 1. 0123 +1 1_000 685_230.15 0x10 -0x10 0X1F
0_x1 0xDEADBEEF 0o7 -0o7 0o8 0b1 +0b11 1:30 190:20:30 2026-01-01 2001-12-14t21:59:43.10-05:00 .inf -.inf .nan 1e400
"""
WORDS = "~ = << null Null NULL true TRUE false yes no on off Off y n Y N"
TEXTS = [
    "a: b",
    "- a",
    "#c",
    "a #b",
    " a ",
    "{a}",
    "[b]",
    "&a",
    "*b",
    "!x",
    "%c",
    "@d",
    "`e",
    '"q"',
    "'s'",
    "a\tb",
    "x\ny",
]


@pytest.fixture(scope="module")
def seen_by_kubectl():
    """The strings of a ConfigMap, as a value, a key, a label's value and an annotation, as kubectl reads them."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not on PATH")
    strings = [*NUMBERS.split(), *WORDS.split(), "", "inf", "NaN", *TEXTS]
    pairs = {f"k{number}": text for number, text in enumerate(strings)}
    keys = {f"{text}": "x" for text in ("on", "y", "1", "1e3", "0o7")}
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "annotations": pairs, "labels": {"b": "1e3", "c": "y"}},
        "data": pairs | keys,
    }
    command = ["kubectl", "label", "--local", "--filename=-", "--output=json", "added=1"]
    done = subprocess.run(command, input=manifest.text([document]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return document, json.loads(done.stdout)


def test_kubectl_reads_every_string_as_that_string(seen_by_kubectl):
    written, seen = seen_by_kubectl
    assert seen["data"] == written["data"]
    assert seen["metadata"]["annotations"] == written["metadata"]["annotations"]
    assert seen["metadata"]["labels"] == written["metadata"]["labels"] | {"added": "1"}


@pytest.mark.parametrize("text", [*NUMBERS.split(), *WORDS.split(), ""])
def test_what_looks_like_another_type_is_quoted(text):
    # Also where kubectl is not there to ask.
    assert manifest.text([{"a": text}]).splitlines()[-1] in {f"a: '{text}'", f'a: "{text}"'}


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12))
def test_python_reads_every_string_as_that_string(text):
    assert yaml.safe_load(manifest.text([{"a": text, text: "b"}])) == {"a": text, text: "b"}
