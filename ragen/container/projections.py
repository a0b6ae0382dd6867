"""From a model's replies to actions: a projection for each type of environment, in two styles.

A projection takes a list of texts, and what each environment can do if that is known, and returns actions and valids,
one for each text; it changes nothing that it is given. A text of None, from an environment that was not asked, gives
the action None. The style ``"ragen"`` reads what is there, and an invalid reply becomes the type's first action;
``"verl-agent"`` demands ``<think>`` and ``</think>``, and an invalid reply becomes 0, which does nothing. In both the
last tag counts, over several lines or not, and names count as whole words, the first in the text. Where ``"ragen"``
looks for ``<action>`` it takes ``<answer>`` too, which RAGEN's models are used to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ragen.container.container import NO_MOVE
from ragen.container.replies import first_name, has_chinese, tagged, thinks_first
from ragen.env.countdown.arithmetic import ExpressionError, evaluate
from ragen.errors import ConfigError

Style = Literal["ragen", "verl-agent"]
STYLES = ("ragen", "verl-agent")

ActionSpace = Any  # a mapping of keys to names, a list of texts or of keys, or None
Projection = Callable[..., tuple[list[Any], list[Any]]]
Read = Callable[[str, ActionSpace], tuple[Any, bool]]

SOKOBAN_NAMES = {1: "up", 2: "down", 3: "left", 4: "right"}
FROZEN_LAKE_NAMES = {1: "left", 2: "down", 3: "right", 4: "up"}
BANDIT_NAMES = {1: "phoenix", 2: "dragon"}
_COMPASS = {"north": "up", "south": "down", "west": "left", "east": "right"}

_SHOP_ACTION = re.compile(r"search\[[^\[\]\n]*\]")
_SHOP_CLICK = re.compile(r"click\[[^\[\]\n]*\]")
_TO_SEARCH, _TO_RESULTS, _BUY = "click[back to search]", "click[< prev]", "click[buy now]"
_BACK = (_TO_RESULTS, _TO_SEARCH)
_VERL_SHOP_TAIL = 20  # characters of a reply without tags that verl-agent takes for its action

_ARITHMETIC = re.compile(r"[\d+\-*/(). \t]+")
_EXPRESSION = frozenset("0123456789+-*/(). \t")


def create_projection_function(env_type: str, style: Style = "ragen") -> Projection:
    """The projection of a type of environment; types without one of their own get the generic one.

    Args:
        env_type: Such as ``sokoban``.
        style: ``"ragen"``, or ``"verl-agent"`` for its rules.

    Returns:
        A function ``(texts, action_spaces=None) -> (actions, valids)``: ``action_spaces`` holds for each text a mapping
        of keys to names, or the actions that can be done now; valids are bools, in verl-agent's style 0 and 1.

    Raises:
        ConfigError: There is no such style.
    """
    if style not in STYLES:
        raise ConfigError(f"style = {style!r}: expected one of {', '.join(map(repr, STYLES))}.")
    read = _READERS.get(env_type, _read_any)
    return _projection(_VERL_READERS.get(env_type, _thinking(read)) if style == "verl-agent" else read, style)


def mixed_projection(env_types: Sequence[str], style: Style = "ragen") -> Projection:
    """A projection of rows of several types.

    Args:
        env_types: The type of each row.
        style: See :func:`create_projection_function`.
    """
    by_type = {env_type: create_projection_function(env_type, style) for env_type in env_types}

    def project(texts: Sequence[str | None], action_spaces: Sequence[Any] | None = None) -> tuple[list[Any], list[Any]]:
        spaces = [None] * len(texts) if action_spaces is None else action_spaces
        rows = zip(env_types, texts, spaces, strict=True)
        read = [by_type[env_type]([text], [space]) for env_type, text, space in rows]
        return [actions[0] for actions, _ in read], [valids[0] for _, valids in read]

    return _marked(project, style)


def _projection(read: Read, style: Style) -> Projection:
    kind = int if style == "verl-agent" else bool

    def project(texts: Sequence[str | None], action_spaces: Sequence[Any] | None = None) -> tuple[list[Any], list[Any]]:
        spaces = [None] * len(texts) if action_spaces is None else action_spaces
        pairs = [(None, True) if text is None else read(text, space) for text, space in zip(texts, spaces, strict=True)]
        return [action for action, _ in pairs], [kind(valid) for _, valid in pairs]

    return _marked(project, style)


def _marked(project: Projection, style: Style) -> Projection:
    """A projection that says which rules it follows."""
    project.style = style  # type: ignore[attr-defined]
    return project


# Numbered actions


def _keys(space: ActionSpace, default: Mapping[Any, str]) -> dict[str, Any]:
    """Names in lower case with their keys; points of the compass stand for up, down, left and right."""
    known = space if isinstance(space, Mapping) and space else default
    keys = {str(name).lower(): key for key, name in known.items()}
    return {point: keys[name] for point, name in _COMPASS.items() if name in keys} | keys


def _moves(default: Mapping[Any, str]) -> Read:
    def read(text: str, space: ActionSpace) -> tuple[Any, bool]:
        keys, content = _keys(space, default), tagged(text, "action", "answer")
        key = None if content is None else first_name(content, keys)
        return (min(keys.values()), False) if key is None else (key, True)

    return read


def _verl_moves(default: Mapping[Any, str]) -> Read:
    def read(text: str, space: ActionSpace) -> tuple[Any, bool]:
        content = tagged(text, "action")
        key = None if content is None else first_name(content, {"still": NO_MOVE} | _keys(space, default))
        return (NO_MOVE, False) if key is None else (key, thinks_first(text))

    return read


def _read_arm(text: str, space: ActionSpace) -> tuple[Any, bool]:
    """An arm's name in the answer, or else anywhere; the names are those of this very bandit."""
    keys = _keys(space, BANDIT_NAMES)
    content = tagged(text, "answer", "action")
    key = first_name(text if content is None else content, keys)
    return (min(keys.values()), False) if key is None else (key, True)


# Texts


def _read_purchase(text: str, space: ActionSpace) -> tuple[str, bool]:
    content = tagged(text, "action")
    if content is None:
        found = _SHOP_ACTION.search(text) or _SHOP_CLICK.search(text)
        content = found[0] if found else "buy now" if first_name(text, {"buy": True}) else _TO_SEARCH
        if not found and content == _TO_SEARCH:
            return content, False
    said = content.lower()
    if said == "buy now":
        return _BUY, True
    if said == "back":
        return _way_back(space), True
    return content, said.startswith(("search[", "click["))


def _way_back(space: ActionSpace) -> str:
    """Which of the links that lead back the page has."""
    return next((link for link in _BACK if link in (space or ())), _TO_SEARCH)


def _verl_purchase(text: str, space: ActionSpace) -> tuple[str, bool]:
    content = tagged(text, "action")
    if content is None:
        return text[-_VERL_SHOP_TAIL:].lower(), False
    return content.lower(), thinks_first(text) and not has_chinese(text)


def _read_expression(text: str, space: ActionSpace) -> tuple[str, bool]:
    """The answer's arithmetic; without tags the first in the text, rather one with an operator than a lone number."""
    content = tagged(text, "answer", "action")
    told = text if content is None else content
    runs = [run.strip(" \t.") for run in _ARITHMETIC.findall(told) if any(map(str.isdigit, run))]
    run = next((run for run in runs if any(sign in run.lstrip("+-") for sign in "+-*/")), runs[0] if runs else None)
    return (run, True) if run is not None and _has_value(run) else (told.strip() or text, False)


def _has_value(text: str) -> bool:
    if not _EXPRESSION.issuperset(text):
        return False
    try:
        evaluate(text)
    except (ExpressionError, ArithmeticError):
        return False
    return True


def _read_result(text: str, space: ActionSpace) -> tuple[str, bool]:
    """The answer's content; without tags the whole reply."""
    content = tagged(text, "answer")
    said = text.strip() if content is None else content
    return said, bool(said)


def _read_any(text: str, space: ActionSpace) -> tuple[Any, bool]:
    """The tag's content; for numbered actions the key of its name, and None, which does nothing, without one."""
    content = tagged(text, "action", "answer")
    if not isinstance(space, Mapping) or not space:
        return (text, False) if content is None else (content, True)
    key = None if content is None else first_name(content, _keys(space, {}))
    return key, key is not None


def _thinking(read: Read) -> Read:
    """A rule that demands a thought as well, and makes a numbered action that is invalid one that does nothing."""

    def read_strictly(text: str, space: ActionSpace) -> tuple[Any, bool]:
        action, valid = read(text, space)
        if not valid and not isinstance(action, str):
            action = NO_MOVE if action is not None else None
        return action, valid and thinks_first(text)

    return read_strictly


_READERS: dict[str, Read] = {
    "sokoban": _moves(SOKOBAN_NAMES),
    "frozen_lake": _moves(FROZEN_LAKE_NAMES),
    "webshop": _read_purchase,
    "countdown": _read_expression,
    "metamathqa": _read_result,
    "bandit": _read_arm,
}
_VERL_READERS: dict[str, Read] = {
    "sokoban": _verl_moves(SOKOBAN_NAMES),
    "frozen_lake": _verl_moves(FROZEN_LAKE_NAMES),
    "webshop": _verl_purchase,
}

sokoban_projection = create_projection_function("sokoban")
frozen_lake_projection = create_projection_function("frozen_lake")
webshop_projection = create_projection_function("webshop")
countdown_projection = create_projection_function("countdown")
metamathqa_projection = create_projection_function("metamathqa")
bandit_projection = create_projection_function("bandit")
generic_projection = create_projection_function("generic")
