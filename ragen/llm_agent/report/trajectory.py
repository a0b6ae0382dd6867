"""A trajectory as HTML: what each environment showed, what the model was told and wrote, and what came of it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ragen.llm_agent.backends.prompt import text_of
from ragen.llm_agent.report.episode import Episode
from ragen.llm_agent.report.grids import Palette, grid_of
from ragen.llm_agent.report.text import attribute, shown

MOST_IMAGES = 12_000_000  # characters of data URIs; further images are left out


class TrajectoryWriter:
    """Writes trajectories; symbols of a tag's boards have the same colours in all of them, images have bounded room."""

    def __init__(self, image_room: int | None = None) -> None:
        """Begin with all the room, or with so many characters of it."""
        self._image_room = MOST_IMAGES if image_room is None else image_room
        self._palettes: dict[str, Palette] = {}

    def body(self, episode: Episode) -> str:
        """All turns of a trajectory, and how it ended; its prompts are in it once, hidden until they are asked for."""
        history = episode.state["history"]
        parts = [self._turn(place, turn, episode) for place, turn in enumerate(history)]
        for why in (episode.error, episode.state.get("env_error")):
            if why is not None:
                parts.append(f'<p class="bad">It ended early: {shown(why, 2000)}</p>')
        return f'<div class="body"><div class="turns">{"".join(parts)}</div>{_chat(episode)}</div>'

    def _turn(self, place: int, turn: Mapping[str, Any], episode: Episode) -> str:
        left = _left(turn)
        state = f'<div class="state">{self._state(turn, episode.tag)}</div>'
        if "actions" not in turn:
            when = "In the end" if episode.is_over else "Now"
            return f'<section class="turn"><h4>{when}{left}</h4>{state}</section>'
        facts = {"reward": turn["reward"], **turn["info"]}
        said = _reply(str(turn.get("llm_raw_response", turn.get("llm_response", ""))))
        return (
            f'<section class="turn"><h4>Turn {place + 1}{left}{_asks_for_prompt(place, episode)}</h4>{state}'
            f"<div>{said}{_executed(turn['actions'], episode.names)}{_facts(facts)}</div></section>"
        )

    def _state(self, turn: Mapping[str, Any], tag: str) -> str:
        images = [self._image(image) for image in turn.get("images", ())]
        text = str(turn["state"]).replace("<images>", "") if images else str(turn["state"])
        if not text.strip():
            return "".join(images)
        palette = self._palettes.setdefault(tag, Palette())
        return "".join(images) + (grid_of(text, palette) or f'<pre dir="auto">{shown(text)}</pre>')

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


def _asks_for_prompt(place: int, episode: Episode) -> str:
    """A button for the prompt of a turn: how many messages of the chat it is, or which prompt of its own."""
    prompt = episode.prompt(place)
    if not prompt:
        return ""
    is_own = episode.asked is not None and place in episode.asked
    which = f'data-prompt="{place}"' if is_own else f'data-messages="{len(prompt)}"'
    return f' <button type="button" class="prompt" {which}>prompt</button>'


def _chat(episode: Episode) -> str:
    """The messages that prompts consist of, which are shown only on demand."""
    own = "".join(
        f'<div data-prompt="{place}">{_messages(prompt)}</div>' for place, prompt in (episode.asked or {}).items()
    )
    if not episode.chat and not own:
        return ""
    return f'<div class="chat" hidden><div>{_messages(episode.chat)}</div>{own}</div>'


def _messages(messages: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_block("message", str(message["role"]), text_of(message)) for message in messages)


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
    if not text.strip():
        return ""
    return f'<div class="text {kind}" dir="auto" data-label="{attribute(label)}">{shown(text)}</div>'


def _executed(actions: Sequence[Any], names: Mapping[Any, str] | None) -> str:
    if not actions:
        return '<p class="bad">nothing was executed</p>'
    known = names or {}
    chips = "".join(f"<span>{shown(known.get(action, action), 500)}</span>" for action in actions)
    return f'<div class="chips">executed: {chips}</div>'


def _facts(facts: Mapping[str, Any]) -> str:
    items = "".join(f"<div><dt>{shown(k, 200)}</dt><dd>{shown(v, 1000)}</dd></div>" for k, v in facts.items())
    return f"<dl>{items}</dl>"
