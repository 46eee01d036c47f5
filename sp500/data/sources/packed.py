"""Files that hold what was asked for, but packed: told apart by their first bytes, since a name may say anything."""

from __future__ import annotations

SIGNATURES = {
    b"\x1f\x8b": "compressed (gzip)",
    b"BZh": "compressed (bzip2)",
    b"\xfd7zXZ": "compressed (xz)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"PK\x03\x04": "a zip file or a workbook",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file",
}


def find_packing(start: bytes) -> str:
    """What a file is that begins with these bytes; empty for all that may be plain text."""
    return next((kind for signature, kind in SIGNATURES.items() if start.startswith(signature)), "")
