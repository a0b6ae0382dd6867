"""What a page lists and opens on demand: an index of all rows, and their bodies, compressed.

A page with ten thousand trajectories is there at once because it has none of them among its elements: the script draws
the rows that are looked at, from the index, and unpacks a body when its row is opened. Text written by models and
environments stands in the index as text, which the script shows as text, and in bodies as escaped HTML.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragen.llm_agent.report.text import visible

MOST_PACKED = 24_000_000  # characters that packed bodies may take; further bodies are left out
PACK = 1_000_000  # characters of bodies that are packed together, about
_LONGEST = 300  # characters of a text in the index

Part = str | tuple[str, str]


@dataclass(frozen=True)
class Row:
    """A line of the list.

    Attributes:
        values: What it is filtered by: a filter's name to a value, or to several.
        parts: Its words, each a text or a text and a class of the style.
    """

    values: Mapping[str, str | Sequence[str]]
    parts: Sequence[Part]

    def plain(self, filters: Iterable[str]) -> list[Any]:
        """The row as the script reads it, values in the order of the filters."""
        values = [self.values.get(name, "") for name in filters]
        told = [value if isinstance(value, str) else list(value) for value in values]
        return [
            [visible(each, _LONGEST) if isinstance(each, str) else each for each in told],
            [visible(p, _LONGEST) if isinstance(p, str) else [visible(p[0], _LONGEST), p[1]] for p in self.parts],
        ]


def list_of(
    noun: str, filters: Mapping[str, tuple[str, Mapping[str, str]]], rows: Sequence[Row], bodies: Iterable[str]
) -> str:
    """A list that the page's script draws.

    Args:
        noun: What its rows are, in the plural.
        filters: A filter's name to its label, and to words for its values where they are others.
        rows: In their order.
        bodies: Their HTML, one for each row; taken one after the other, as long as there is room.
    """
    packs, left_out = _packed(bodies, len(rows))
    note = f'<p class="soft">{left_out} are listed alone, to keep the page small.</p>' if left_out else ""
    return (
        f'<div id="list"><noscript><p class="bad">This list needs its script.</p></noscript></div>{note}'
        f"{index_of(noun, filters, rows)}{''.join(packs)}"
    )


def index_of(noun: str, filters: Mapping[str, tuple[str, Mapping[str, str]]], rows: Sequence[Row]) -> str:
    """The index of a list, as a block of data."""
    index = {
        "noun": noun,
        "filters": [[name, label, dict(words)] for name, (label, words) in filters.items()],
        "rows": [row.plain(filters) for row in rows],
    }
    return f'<script type="application/json" id="index">{in_script(index)}</script>'


def in_script(value: Any) -> str:
    """A value as JSON that cannot end the element in which it stands."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def _packed(bodies: Iterable[str], count: int) -> tuple[list[str], int]:
    """Packs of bodies as blocks of data, and how many bodies had no room."""
    packs: list[str] = []
    waiting: list[str] = []
    first, room = 0, MOST_PACKED
    for body in bodies:
        waiting.append(body)
        if sum(map(len, waiting)) < PACK and first + len(waiting) < count:
            continue
        data = packed(waiting)
        room -= len(data)
        if room < 0 and packs:
            break
        packs.append(f'<script type="text/plain" class="pack" data-first="{first}">{data}</script>')
        first, waiting = first + len(waiting), []
    return packs, count - first


def packed(bodies: Sequence[str]) -> str:
    """Some bodies as one text: JSON, compressed, in base 64."""
    return base64.b64encode(zlib.compress(json.dumps(bodies).encode("ascii"), 6)).decode("ascii")


def unpacked(data: str) -> list[str]:
    """What :func:`packed` has packed."""
    return json.loads(zlib.decompress(base64.b64decode(data)))
