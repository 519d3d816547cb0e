"""What the scripts that make these pages share."""

from __future__ import annotations

import re


def between(text: str, name: str, content: str) -> str:
    """The page with another content between a pair of markers."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{content}{found[2]}", text, flags=re.DOTALL)
