"""What a text of --help may not show."""

import re


def empty_defaults(text: str) -> list[str]:
    """Defaults and values that say nothing; lines are broken at any blank, in a box."""
    words = " ".join(text.replace("│", " ").split())
    return re.findall(r"\(default: (?:None|False|''|'\{\}')?\)|\{None\}|\{None,", words)
