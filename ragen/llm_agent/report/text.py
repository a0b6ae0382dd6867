"""Untrusted text for a page: escaped, limited in length, and with invisible characters made visible.

Models and environments may write anything. Markup becomes visible text. Characters that would rearrange or hide the
text around them (directional controls, zero-width and other control characters, lone surrogates) become visible codes.
"""

from __future__ import annotations

import re
from html import escape

from ragen.errors import steady_text

MOST = 20_000  # characters of a text that a page shows
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufe00-\ufe0d\ufeff\ufff0-\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def shown(text: object, most: int = MOST) -> str:
    """HTML that shows a text literally; only its beginning and end if it has more than ``most`` characters."""
    plain = steady_text(text).replace("\r\n", "\n")
    if len(plain) <= most:
        return _escaped(plain)
    tail = most // 4
    left_out = f'<span class="code">{len(plain) - most:,} characters left out</span>'
    return f"{_escaped(plain[: most - tail])}\n{left_out}\n{_escaped(plain[-tail:])}"


def visible(text: object, most: int = MOST) -> str:
    """A text without markup, limited in length, with invisible characters made visible; for scripts that show it."""
    plain = steady_text(text)
    return _UNSEEN.sub(lambda found: f"U+{ord(found[0]):04X}", plain if len(plain) <= most else f"{plain[:most]}..")


def attribute(text: object) -> str:
    """A text as the value of an attribute in double quotes."""
    plain = steady_text(text)
    return escape(visible(plain, len(plain)), quote=True)


def _escaped(text: str) -> str:
    return _UNSEEN.sub(_code, escape(text, quote=True))


def _code(found: re.Match[str]) -> str:
    return f'<span class="code">U+{ord(found[0]):04X}</span>'
