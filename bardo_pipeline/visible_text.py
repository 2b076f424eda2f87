"""Texts without control characters: names and texts come from other programs, and a terminal obeys such characters."""

from __future__ import annotations

_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that reorder the text around them."""

_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *_BIDI) if code not in (0x09, 0x0A)]
_VISIBLE = dict.fromkeys(_CONTROLS)
_ESCAPED = {code: f"\\u{code:04x}" for code in _CONTROLS}


def visible(text: str) -> str:
    """Return a text without control characters: C0 except tab and newline, DEL, C1, separators, marks of direction."""
    return text if text.isprintable() else text.translate(_VISIBLE)


def escaped(json: str) -> str:
    """Return a JSON text with the control characters of its strings escaped; JSON itself escapes C0 only."""
    return json if json.isprintable() else json.translate(_ESCAPED)
