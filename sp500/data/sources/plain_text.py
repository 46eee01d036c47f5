"""Recognise files other than plain text by their bytes, since a name may be wrong."""

from __future__ import annotations

SIGNATURES = {
    b"\x1f\x8b": "compressed (gzip)",
    b"BZh": "compressed (bzip2)",
    b"\xfd7zXZ": "compressed (xz)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"PK\x03\x04": "a zip file or a workbook",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def find_other_kind(data: bytes) -> str:
    """Return the kind of a binary file by its first bytes, or all of them; empty if it may be plain text."""
    kind = next((kind for signature, kind in SIGNATURES.items() if data.startswith(signature)), "")
    return kind or ("UTF-16 or no text (it has bytes of 0)" if 0 in data else "")
