"""Passwords in addresses: refused without being repeated, and masked in what is printed."""

import subprocess
import sys
from pathlib import Path

import pytest

from sp500.credentials import has_password, mask, without_password

ROOT = Path(__file__).parents[1]
WITH = [
    "s3://AKIA:secret@bucket/x",
    "s3://AKIA:se/cret@bucket/x",
    "gs://me:pw@bucket",
    "https://bot:ghp_1@github.com/a/b",
    "http://:pw@127.0.0.1:8265",
    "s3://bucket/x?region=eu-west-1&secret_key=abc",
    "https:/me:pw@host/x.npz",
]
WITHOUT = [
    "s3://bucket/x",
    "s3://bucket/x?region=eu-west-1",
    "gs://bucket/a@b",
    "https://host:80/a@b",
    "/folder/a:b@c",
    "me@host",
    "C:/x",
    "",
]


@pytest.mark.parametrize("address", WITH)
def test_address_with_a_password_is_refused_and_not_repeated(address):
    with pytest.raises(ValueError, match="holds a password") as raised:
        without_password(address)
    assert address not in str(raised.value)


@pytest.mark.parametrize("address", WITHOUT)
def test_other_addresses_pass_unchanged(address):
    assert without_password(address) == address
    assert mask(address) == address


def test_mask_reaches_every_depth_of_plain_data():
    masked = mask({"a": [{"b": address} for address in WITH], "n": 1, "none": None})
    texts = [part["b"] for part in masked["a"]]
    assert texts[0] == "s3://***@bucket/x"
    assert not any(has_password(text.replace("***", "")) for text in texts)
    assert masked["n"] == 1
    assert masked["none"] is None


@pytest.mark.parametrize(
    "argv",
    [
        ("experiments/scale.py", "--shards", "s3://AKIA:S3CR3T@bucket/x", "--print-config"),
        ("experiments/scale.py", "--shards", "s3://AKIA:S3CR3T@bucket/x", "--dry-run", "--json"),
        ("experiments/prepare.py", "--out", "s3://AKIA:S3CR3T@bucket/x"),
        ("experiments/train.py", "--io.archive", "s3://AKIA:S3CR3T@bucket/x"),
        ("experiments/train.py", "--io.archive", "s3://bucket/x?access_key=AKIA&secret_key=S3CR3T", "--print-config"),
        ("experiments/train.py", "--data.source", "https://me:S3CR3T@host/p.csv"),
        ("experiments/train.py", "--data.npz-path", "https://me:S3CR3T@host/p.npz"),
        ("-m", "sp500.cli", "jobs", "submit", "--on", "ray", "--address", "http://me:S3CR3T@host:1", "--", "python"),
    ],
    ids=lambda argv: f"{Path(argv[0]).stem} {argv[1]}",
)
def test_no_script_prints_or_keeps_a_password_of_an_address(tmp_path, argv):
    command = [sys.executable, *[str(ROOT / word) if word.startswith("experiments/") else word for word in argv]]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert "S3CR3T" not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"S3CR3T" in path.read_bytes()]
    assert done.returncode == 2
    assert "holds a password" in " ".join(done.stderr.split())
