"""Trajectories as HTML, and the list in which they are filtered, searched and opened.

A page with ten thousand trajectories opens at once because they are not among its elements: an index of all rows and
their compressed bodies are data, and the script draws only the visible rows. Text written by models and environments is
plain text in the index, which the script shows as text, and escaped HTML in bodies. A board (rows of equal length with
few distinct symbols) is drawn as a grid, each symbol in its own color.
"""

from __future__ import annotations

import base64
import io
import json
import unicodedata
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragen.files import json_text
from ragen.llm_agent.backends.prompt import text_of
from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED
from ragen.llm_agent.report.contents import Episode
from ragen.llm_agent.report.text import attribute, shown, visible
from ragen.llm_agent.rollout.trajectories import tag_and_reply

_MOST_CELLS = 30 * 40
_MOST_SYMBOLS = 9
COLOURS = 8
_FIRST = {"#": 0, "_": 1, " ": 1, ".": 1}  # walls and floors


class Palette:
    """The colors of symbols. They do not change: a board that lacks a symbol is drawn like those that have it."""

    def __init__(self) -> None:
        """Begin with only walls and floors."""
        self._colours = dict(_FIRST)
        self._next = max(_FIRST.values())

    def colours_of(self, symbols: str) -> dict[str, int]:
        """The colors of all symbols of a board, from 0; new symbols get the next ones, in alphabetical order."""
        for symbol in sorted(set(symbols) - self._colours.keys()):
            self._next = self._next + 1 if self._next + 1 < COLOURS else max(_FIRST.values()) + 1
            self._colours[symbol] = self._next
        return {symbol: self._colours[symbol] for symbol in set(symbols)}


def grid_of(text: str, palette: Palette) -> str:
    """A board as HTML; empty if the text is not a board."""
    lines = [line.strip() for line in text.strip("\n").splitlines()]
    if not _is_board(lines):
        return ""
    if all(set(line[1::2]) <= {" "} for line in lines):
        lines = [line[::2] for line in lines]  # symbols with blanks between them
    colours = palette.colours_of("".join(lines))
    cells = "".join(f'<span class="c{colours[symbol]}">{shown(symbol)}</span>' for line in lines for symbol in line)
    return f'<div class="grid" style="grid-template-columns:repeat({len(lines[0])},auto)">{cells}</div>'


def _is_board(lines: Sequence[str]) -> bool:
    width = len(lines[0]) if lines else 0
    return (
        len(lines) > 1
        and width > 1
        and len(lines) * width <= _MOST_CELLS
        and all(len(line) == width and all(map(_is_tile, line)) for line in lines)
        and len(set("".join(lines))) <= _MOST_SYMBOLS
    )


def _is_tile(symbol: str) -> bool:
    """Whether a character is one cell wide: Sokoban's √ is, a wide or combining one is not."""
    if symbol.isascii():
        return symbol.isprintable()
    kind, width = unicodedata.category(symbol), unicodedata.east_asian_width(symbol)
    return kind[0] in "SN" and width not in ("W", "F")


# Trajectories

MOST_IMAGES = 12_000_000  # characters of data URIs; further images are omitted


class TrajectoryWriter:
    """Writes trajectories; symbols of a tag's boards have the same colors in all of them, and images share a limit."""

    def __init__(self) -> None:
        self._image_room = MOST_IMAGES
        self._palettes: dict[str, Palette] = {}

    def body(self, episode: Episode) -> str:
        """All turns of a trajectory, and how it ended; its prompts are included once, hidden until requested."""
        history = episode.state["history"]
        parts = [self._turn(place, turn, episode) for place, turn in enumerate(history)]
        for why in (episode.error, episode.state.get("env_error")):
            if why is not None:
                parts.append(f'<p class="bad">It ended early: {shown(why, 2000)}</p>')
        return f'<div class="body"><div class="turns">{"".join(parts)}</div>{_chat(episode)}</div>'

    def _turn(self, place: int, turn: Mapping[str, Any], episode: Episode) -> str:
        left = _left(turn)
        state = f'<div class="state">{self.state(turn, episode.tag)}</div>'
        if "actions" not in turn:
            return f'<section class="turn"><h4>In the end{left}</h4>{state}</section>'
        facts = {"reward": turn["reward"], **turn["info"]}
        said = _reply(*tag_and_reply(turn))
        return (
            f'<section class="turn"><h4>Turn {place + 1}{left}{_prompt_button(place, episode)}</h4>{state}'
            f"<div>{said}{_executed(turn['actions'], episode.names)}{_facts(facts)}</div></section>"
        )

    def state(self, turn: Mapping[str, Any], tag: str) -> str:
        """The state before a turn: its images, and its text, drawn as a board if it is one."""
        images = [self._image(image) for image in turn.get("images", ())]
        text = str(turn["state"]).replace("<images>", "") if images else str(turn["state"])
        if not text.strip():
            return "".join(images)
        return "".join(images) + (self._board(text, tag) or f'<pre dir="auto">{shown(text)}</pre>')

    def _board(self, text: str, tag: str) -> str:
        return grid_of(text, self._palettes.setdefault(tag, Palette()))

    def _image(self, image: Any) -> str:
        file = io.BytesIO()
        image.save(file, "PNG", optimize=False)
        data = base64.b64encode(file.getvalue()).decode()
        if len(data) > self._image_room:
            return '<p class="soft">An image, left out to keep the page small.</p>'
        self._image_room -= len(data)
        size = f'width="{max(96, image.width)}"'
        return f'<img alt="state" {size} src="data:image/png;base64,{data}">'


def _left(turn: Mapping[str, Any]) -> str:
    left = turn.get("actions_left")
    return "" if left is None else f", {shown(left)} {'action' if left == 1 else 'actions'} left"


def _prompt_button(place: int, episode: Episode) -> str:
    """A button for the prompt of a turn: a number of the chat's messages, or a separate prompt."""
    prompt = episode.prompt(place)
    if not prompt:
        return ""
    is_own = episode.asked is not None and place in episode.asked
    which = f'data-prompt="{place}"' if is_own else f'data-messages="{len(prompt)}"'
    return f' <button type="button" class="prompt" {which}>prompt</button>'


def _chat(episode: Episode) -> str:
    """The messages of the prompts, which are shown on demand."""
    own = "".join(
        f'<div data-prompt="{place}">{_messages(prompt)}</div>' for place, prompt in (episode.asked or {}).items()
    )
    if not episode.chat and not own:
        return ""
    return f'<div class="chat" hidden><div>{_messages(episode.chat)}</div>{own}</div>'


def _messages(messages: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_block("message", str(message["role"]), text_of(message)) for message in messages)


def _reply(tag: str, said: str) -> str:
    """A reply with its thought and answer marked; the text around them is shown too.

    Args:
        tag: The opening tag that the parser put before it, which is not shown. A reply is malformed if the tag opens
            neither the thought nor the answer.
        said: What the model wrote.
    """
    tag = "" if said.lstrip().startswith(tag) else tag
    raw, found, position = tag + said, [], 0
    for kind, name in (("thought", "think"), ("answer", "answer")):
        if (span := _tagged(raw, name, position)) is not None:
            found.append((kind, *span))
            position = span[-1]
    if tag and not (found and found[0][1] == 0):
        return _block("rest", "malformed reply", said) or '<p class="bad">the reply is empty</p>'
    parts, position = [], 0
    for kind, start, inside, end, stop in found:
        parts += [_block("rest", "outside of tags", raw[position:start]), _block(kind, kind, raw[inside:end])]
        position = stop
    parts.append(_block("rest", "outside of tags" if found else "malformed reply", raw[position:]))
    return "".join(parts)


def _tagged(raw: str, tag: str, position: int) -> tuple[int, int, int, int] | None:
    """The start of a tag's first pair, the start and end of its text, and its end; None if there is no complete pair.

    Two searches take time linear in the text's length, unlike a lazy pattern on unclosed tags.
    """
    start = raw.find(f"<{tag}>", position)
    inside = start + len(tag) + 2
    end = -1 if start < 0 else raw.find(f"</{tag}>", inside)
    return None if end < 0 else (start, inside, end, end + len(tag) + 3)


def _block(kind: str, label: str, text: str) -> str:
    if not text.strip():
        return ""
    keeps = " lines" if kind == "answer" and _has_lines(text) else ""
    return f'<div class="text {kind}{keeps}" dir="auto" data-label="{attribute(label)}">{shown(text)}</div>'


def _has_lines(text: str) -> bool:
    """Whether a text has several lines, as a program has, whose indentation must be seen."""
    return "\n" in text.strip()


def _executed(actions: Sequence[Any], names: Mapping[Any, str] | None) -> str:
    if not actions:
        return '<p class="bad">nothing was executed</p>'
    return f'<div class="chips">executed: {chips_of(actions, names)}</div>'


def chips_of(actions: Sequence[Any], names: Mapping[Any, str] | None) -> str:
    """The names of actions, each in a frame; empty without any. None is a text that rows do not have."""
    known = {None: "a text"} | dict(names or {})
    return "".join(_chip(str(known.get(action, action))) for action in actions)


def _chip(text: str) -> str:
    frame = '<span class="lines">' if _has_lines(text) else "<span>"
    return f"{frame}{shown(text, 500)}</span>"


def _facts(facts: Mapping[str, Any]) -> str:
    short = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in facts.items()}
    items = "".join(f"<div><dt>{shown(k, 200)}</dt><dd>{shown(v, 1000)}</dd></div>" for k, v in short.items())
    return f"<dl>{items}</dl>"


# The list, whose rows open

MOST_PACKED = 24_000_000  # characters of packed bodies; further bodies are omitted
PACK = 1_000_000  # approximate characters of bodies that are packed together
_LONGEST = 300  # characters of a text in the index
FILTERS: dict[str, tuple[str, dict[str, str]]] = {
    "tag": ("Tag", {}),
    "outcome": ("Outcome", {}),
    "invalid": ("Replies", {"yes": "with invalid", "no": "all valid"}),
    "kinds": ("Some reply", {}),
    "lane": ("Worker", {}),
}
"""Label, and display names of values, by filter name."""

Part = str | tuple[str, str]


def browser_of(episodes: Sequence[Episode]) -> str:
    """The list of all trajectories that the page's script draws, with bodies up to the size limit."""
    packs, left_out = _packed(map(TrajectoryWriter().body, episodes), len(episodes))
    note = f'<p class="soft">{left_out} are listed alone, to keep the page small.</p>' if left_out else ""
    index = {
        "filters": [[name, label, words] for name, (label, words) in FILTERS.items()],
        "rows": [row_of(episode) for episode in episodes],
    }
    return (
        f'<div id="list"><noscript><p class="bad">This list needs its script.</p></noscript></div>{note}'
        f'<script type="application/json" id="index">{in_script(index)}</script>{"".join(packs)}'
    )


def row_of(episode: Episode) -> list[Any]:
    """A trajectory's line in the list: its values in the order of the filters, and its texts with a CSS class each."""
    state, turns = episode.state, len(episode.turns)
    told, kinds = episode.outcome_label, [kind.replace("_", " ") for kind in episode.kinds]
    good_or_bad = "yes" if episode.success and episode.outcome == JUDGED else "no"
    parts: list[Part] = [
        (episode.tag, "name"),
        f"env {state['env_id']}",
        f"group {state['group_id']}" + ("" if episode.seed is None else f", seed {episode.seed}"),
        (told, good_or_bad),
        f"reward {episode.reward:.4g}",
        *([f"penalty {float(state['penalty']):.4g}"] if state["penalty"] else []),
        f"{turns} {'turn' if turns == 1 else 'turns'}",
    ]
    if episode.invalid and episode.outcome != ENV_ERROR:
        parts.append(("invalid reply", "bad"))
    parts += [(kind, "bad") for kind in kinds]
    if episode.home:
        parts.append((episode.home, "soft"))
    values = [episode.tag, told, "yes" if episode.invalid else "no", kinds, episode.home]
    return [
        [visible(each, _LONGEST) if isinstance(each, str) else each for each in values],
        [visible(p, _LONGEST) if isinstance(p, str) else [visible(p[0], _LONGEST), p[1]] for p in parts],
    ]


def in_script(value: Any) -> str:
    """A value as JSON that cannot close its surrounding element."""
    return json.dumps(json.loads(json_text(value)), separators=(",", ":")).replace("<", "\\u003c")


def _packed(bodies: Iterable[str], count: int) -> tuple[list[str], int]:
    """Packs of bodies as blocks of data, and the number of bodies beyond the size limit."""
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
    """Bodies as one text: compressed JSON in base 64."""
    return base64.b64encode(zlib.compress(json.dumps(bodies).encode("ascii"), 6)).decode("ascii")


def unpacked(data: str) -> list[str]:
    """The inverse of :func:`packed`."""
    return json.loads(zlib.decompress(base64.b64decode(data)))
