"""The browser of trajectories: what each environment showed, what the model wrote, and what came of it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED, KINDS, MISSING_REPLY, kinds_of, outcome
from ragen.llm_agent.report.text import attribute, shown
from ragen.llm_agent.rollout.trajectories import played_turns

MOST_TEXT = 20_000_000  # characters of HTML that trajectories may take; further ones are left out
MOST_IMAGES = 30_000_000  # characters of data URIs; further images are left out
_MOST_CELLS = 30 * 40
_COLOURS = 8


@dataclass(frozen=True)
class Episode:
    """A trajectory to show.

    Attributes:
        state: Its rollout cache, as ``EnvStateManager.get_rollout_states()`` gives it.
        seed: What it was reset with.
        home: Where its environment lives.
        names: The names of its actions by key, where it has any.
        error: Why it ended early; None if it did not.
        replies: What is known of each of its replies; see :func:`~ragen.llm_agent.backends.base.reply_facts`.
    """

    state: Mapping[str, Any]
    seed: int | None = None
    home: str = "main"
    names: Mapping[Any, str] | None = None
    error: str | None = None
    replies: Sequence[Mapping[str, Any]] = ()

    @property
    def outcome(self) -> str:
        """What became of it; see :func:`~ragen.llm_agent.evaluation.replies.outcome`."""
        return outcome({**self.state, **({} if self.error is None else {"error": self.error})})

    @property
    def success(self) -> bool:
        """Whether the goal was reached."""
        return bool(self.state.get("metrics", {}).get(f"{self.state['tag']}/success", 0.0))

    @property
    def invalid(self) -> bool:
        """Whether a reply was penalised, or gave nothing to execute."""
        return bool(self.state["penalty"]) or any(not turn["actions"] for turn in played_turns(self.state))

    @property
    def reward(self) -> float:
        """The sum of its rewards, penalties left out."""
        return float(sum(turn["reward"] for turn in played_turns(self.state)))


class Browser:
    """Writes trajectories as HTML, as long as there is room for them."""

    def __init__(self) -> None:
        """Begin with all the room."""
        self._image_room = MOST_IMAGES
        self._text_room = MOST_TEXT

    def render(self, episodes: Sequence[Episode]) -> str:
        """The filters, and all trajectories for which there is room."""
        shown_episodes: list[str] = []
        for episode in episodes:
            html = self._episode(episode)
            self._text_room -= len(html)
            if self._text_room < 0 and shown_episodes:
                break
            shown_episodes.append(html)
        left = len(episodes) - len(shown_episodes)
        note = f'<p class="soft">{left} more are left out here, to keep the page small.</p>' if left else ""
        return f"{_filters(episodes)}{''.join(shown_episodes)}{note}"

    def _episode(self, episode: Episode) -> str:
        state, turns = episode.state, played_turns(episode.state)
        data = {
            "tag": state["tag"],
            "success": "yes" if episode.success else "no",
            "outcome": episode.outcome,
            "invalid": "yes" if episode.invalid else "no",
            "kinds": " ".join(kinds_of(episode.replies)),
            "lane": episode.home,
        }
        attributes = " ".join(f'data-{name}="{attribute(value)}"' for name, value in data.items())
        head = [
            f"<b>{shown(state['tag'])}</b> env {shown(state['env_id'])}",
            f"group {shown(state['group_id'])}, seed {shown(episode.seed)}",
            _told_outcome(episode),
            f"reward {episode.reward:.4g}",
            f"penalty {float(state['penalty']):.4g}",
            f"{len(turns)} turns",
            f'<span class="soft">{shown(episode.home)}</span>',
        ]
        if episode.invalid and episode.outcome != ENV_ERROR:
            head.append('<span class="bad">invalid reply</span>')
        head += [f'<span class="bad">{kind.replace("_", " ")}</span>' for kind in kinds_of(episode.replies)]
        body = [self._turn(number, turn, episode) for number, turn in enumerate(state["history"], 1)]
        if episode.error is not None:
            body.append(f'<p class="bad">It ended early: {shown(episode.error, 2000)}</p>')
        summary = "".join(f"<span>{part}</span>" for part in head)
        return (
            f'<details class="episode" {attributes}><summary>{summary}</summary>'
            f'<div class="turns">{"".join(body)}</div></details>'
        )

    def _turn(self, number: int, turn: Mapping[str, Any], episode: Episode) -> str:
        if "actions" not in turn:
            left = f"<h4>In the end, {shown(turn.get('actions_left', '?'))} actions left</h4>"
            return f'<section class="turn">{left}<div class="state">{self._state(turn)}</div></section>'
        facts = {"reward": turn["reward"], **turn["info"]}
        said = _reply(str(turn.get("llm_raw_response", turn.get("llm_response", ""))))
        return (
            f'<section class="turn"><h4>Turn {number}, {shown(turn.get("actions_left", "?"))} actions left</h4>'
            f'<div class="state">{self._state(turn)}</div>'
            f"<div>{said}{_executed(turn['actions'], episode.names)}{_facts(facts)}</div></section>"
        )

    def _state(self, turn: Mapping[str, Any]) -> str:
        images = [self._image(image) for image in turn.get("images", ())]
        text = str(turn["state"]).replace("<images>", "") if images else str(turn["state"])
        return "".join(images) + (_text_state(text) if text.strip() else "")

    def _image(self, image: Any) -> str:
        file = io.BytesIO()
        image.save(file, "PNG", optimize=False)
        data = base64.b64encode(file.getvalue()).decode()
        self._image_room -= len(data)
        if self._image_room < 0:
            return '<p class="soft">An image, left out to keep the page small.</p>'
        size = f'width="{max(96, image.width)}"'
        return f'<img alt="state" {size} src="data:image/png;base64,{data}">'


def _told_outcome(episode: Episode) -> str:
    if episode.outcome != JUDGED:
        return f'<span class="bad">{episode.outcome}</span>'
    return '<span class="yes">success</span>' if episode.success else '<span class="no">no success</span>'


def _filters(episodes: Iterable[Episode]) -> str:
    tags = dict.fromkeys(str(episode.state["tag"]) for episode in episodes)
    homes = sorted({episode.home for episode in episodes})
    choices = [
        _select("tag", "Tag", [(tag, tag) for tag in tags]),
        _select("success", "Success", [("yes", "success"), ("no", "no success")]),
        _select("outcome", "Outcome", [(JUDGED, "judged"), (ENV_ERROR, "env error"), (MISSING_REPLY, "missing reply")]),
        _select("invalid", "Replies", [("yes", "with invalid"), ("no", "all valid")]),
        _select("kinds", "Some reply", [(kind, kind.replace("_", " ")) for kind in KINDS]),
        _select("lane", "Lane", [(home, home) for home in homes]),
        '<label>Text<br><input name="words" type="search" size="14"></label>',
    ]
    return f'<form id="filters" class="filters">{"".join(choices)}<span id="count" class="soft"></span></form>'


def _select(name: str, label: str, choices: Iterable[tuple[str, str]]) -> str:
    options = "".join(f'<option value="{attribute(value)}">{attribute(words)}</option>' for value, words in choices)
    return f'<label>{label}<br><select name="{name}"><option value="">all</option>{options}</select></label>'


def _reply(raw: str) -> str:
    """A reply, its thought and its answer told apart; whatever stands around them is shown too."""
    parts, position = [], 0
    for kind, tag in (("thought", "think"), ("answer", "answer")):
        found = _tagged(raw, tag, position)
        if found is None:
            continue
        start, inside, end, stop = found
        parts.append(_block("rest", "outside of tags", raw[position:start]))
        parts.append(_block(kind, kind, raw[inside:end]))
        position = stop
    parts.append(_block("rest", "outside of tags" if parts else "malformed reply", raw[position:]))
    return "".join(parts)


def _tagged(raw: str, tag: str, position: int) -> tuple[int, int, int, int] | None:
    """Where the first pair of a tag begins, its text begins and ends, and it ends; None if there is no whole pair.

    Two searches in a row take time linear in the text's length, which a lazy pattern does not where nothing closes.
    """
    start = raw.find(f"<{tag}>", position)
    inside = start + len(tag) + 2
    end = -1 if start < 0 else raw.find(f"</{tag}>", inside)
    return None if end < 0 else (start, inside, end, end + len(tag) + 3)


def _block(kind: str, label: str, text: str) -> str:
    return f'<div class="text {kind}" dir="auto" data-label="{label}">{shown(text)}</div>' if text.strip() else ""


def _executed(actions: Sequence[Any], names: Mapping[Any, str] | None) -> str:
    if not actions:
        return '<p class="bad">nothing was executed</p>'
    known = names or {}
    chips = "".join(f"<span>{shown(known.get(action, action), 500)}</span>" for action in actions)
    return f'<div class="chips">executed: {chips}</div>'


def _facts(facts: Mapping[str, Any]) -> str:
    items = "".join(f"<div><dt>{shown(k, 200)}</dt><dd>{shown(v, 1000)}</dd></div>" for k, v in facts.items())
    return f"<dl>{items}</dl>"


def _text_state(text: str) -> str:
    lines = [line.strip() for line in text.strip("\n").splitlines()]
    if _is_grid(lines):
        return _grid(lines)
    return f'<pre dir="auto">{shown(text)}</pre>'


def _is_grid(lines: Sequence[str]) -> bool:
    """Whether a text is a board: rows of equal length, of few different symbols."""
    width = len(lines[0]) if lines else 0
    return (
        len(lines) > 1
        and width > 1
        and len(lines) * width <= _MOST_CELLS
        and all(len(line) == width and line.isascii() and line.isprintable() for line in lines)
        and len(set("".join(lines))) <= _COLOURS + 1
    )


def _grid(lines: Sequence[str]) -> str:
    if all(set(line[1::2]) <= {" "} for line in lines):
        lines = [line[::2] for line in lines]  # symbols with blanks between them
    symbols = sorted(set("".join(lines)), key=lambda s: (s not in "#", s not in "_. ", s))
    colours = {symbol: index % _COLOURS for index, symbol in enumerate(symbols)}
    cells = "".join(f'<span class="c{colours[symbol]}">{shown(symbol)}</span>' for line in lines for symbol in line)
    return f'<div class="grid" style="grid-template-columns:repeat({len(lines[0])},auto)">{cells}</div>'
