"""Parses the replies of models into actions. All replies are parsed here, and any string is a legal reply.

There are three conventions for the form of a reply, each with its own parser:

:class:`ReplyParser`
    RAGEN's convention. ``<think>..</think><answer>a || b</answer>``, or only ``<answer>..</answer>`` without
    ``enable_think``, is parsed into the names of several actions, which the environment manager maps to keys. The
    prompt already ends with the first tag, so that tag is put before replies that lack it.
:func:`create_projection_function`
    verl-agent's convention. ``<action>a</action>`` is parsed into the single action of a container's environment, by a
    rule for each type of environment. A projection takes a list of texts, optionally with the actions available in each
    environment, and returns a list of actions and a list of flags, whether each is valid. Its arguments are not
    modified. The text None, of an environment that was not asked, yields the action None.

    The style ``"ragen"`` is lenient; an invalid reply becomes the first action of the type. ``"verl-agent"`` requires
    ``<think>`` and ``</think>``; an invalid reply becomes 0, which does nothing. Both use the last tag, whose content
    may have several lines, and the first name in it that is a whole word. Where ``"ragen"`` expects ``<action>``, it
    also accepts ``<answer>``, which models trained with RAGEN write.
:func:`sent_actions`
    The actions that clients of a served environment send: as they are, or as a reply in either form.

Parsing takes time linear in the length of a reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from ragen.env.countdown.arithmetic import ExpressionError, evaluate
from ragen.errors import ConfigError, InputError

ALWAYS = ("<|im_start|>", "<|im_end|>")
NO_MOVE = 0
"""The no-op action, for environments with numbered actions in which it has no other meaning."""
SHORTEST = 3  # shorter ones, such as the padding token "!", are plain punctuation


class ControlTokens:
    """The strings that a tokenizer treats as control tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Treat these strings as control tokens."""
        self.tokens = frozenset(token for token in tokens if len(token.strip()) >= SHORTEST)
        longest_first = sorted(self.tokens, key=lambda token: (-len(token), token))
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @classmethod
    def of(cls, tokenizer: Any) -> ControlTokens:
        """The control tokens of a tokenizer: its special tokens, and always those of ChatML."""
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special = [token.content for token in added if token.special]
        return cls([*ALWAYS, *special, *tokenizer.all_special_tokens])

    def plus(self, *tokens: str) -> ControlTokens:
        """These control tokens and further ones."""
        return ControlTokens([*self.tokens, *tokens])

    def remove(self, text: str) -> str:
        """The text without control tokens, including those formed by the removal of others."""
        if self.pattern.search(text):
            text = self.pattern.sub(" ", self.pattern.sub("", text))
        return text

    def defuse(self, text: str) -> str:
        """The text with every control token broken after its first character."""
        return self.pattern.sub(lambda found: f"{found.group()[0]} {found.group()[1:]}", text)


THINK, END_THINK, ANSWER, END_ANSWER = REPLY_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_TURN_TO_ANSWER = re.compile(rf"{END_THINK}\s*{ANSWER}")


def thought_of(reply: str) -> str:
    """The text between a reply's first pair of thinking tags, without tags; empty if there is no pair."""
    _, tag, rest = reply.partition(THINK)
    text, end, _ = rest.partition(END_THINK)
    if not (tag and end):
        return ""
    for each in (*REPLY_TAGS, "<|im_start|>", "<|im_end|>"):
        text = text.replace(each, "")
    return text.strip()


def reply_texts(outputs: Any, tokenizer: Any) -> list[str]:
    """The replies in the output of an actor, as texts.

    Args:
        outputs: A batch with ``non_tensor_batch["response_texts"]``, or with tokens in ``batch["responses"]``.
        tokenizer: Decodes tokens.

    Raises:
        InputError: The batch has neither.
    """
    texts = outputs.non_tensor_batch.get("response_texts")
    if texts is not None:
        return ["" if text is None else str(text) for text in texts]
    if outputs.batch is None or "responses" not in set(outputs.batch.keys()):
        raise InputError("the model's output has neither response_texts nor responses.")
    return tokenizer.batch_decode(outputs.batch["responses"], skip_special_tokens=True)


# RAGEN's tags


@dataclass(frozen=True)
class ParsedReply:
    """A reply and its actions.

    Attributes:
        raw: The reply as the model wrote it, after the opening tag of the prompt.
        text: The reply for the history: rebuilt from its parts, or if malformed, without control tokens.
        actions: The actions in order, at most ``max_actions``; empty if the reply is malformed.
        tag_added: Whether the first tag is from the prompt and was not written by the model.
    """

    raw: str
    text: str
    actions: list[str]
    tag_added: bool = False


class ReplyParser:
    """Parses replies with RAGEN's tags.

    Attributes:
        opening_tag: The tag at the end of prompts, with which replies therefore begin.
    """

    def __init__(
        self,
        control: ControlTokens,
        enable_think: bool = True,
        action_sep: str = "||",
        max_actions: int | None = None,
    ) -> None:
        """Set the rules.

        Args:
            control: Control tokens, which are removed from replies.
            enable_think: Whether a reply must contain a thought before its answer.
            action_sep: The separator of actions.
            max_actions: Further actions are dropped; None keeps all.
        """
        self.opening_tag = THINK if enable_think else ANSWER
        self._control = control
        self._inner = control.plus(*REPLY_TAGS)
        self._enable_think = enable_think
        self._action_sep = action_sep
        self._max_actions = max_actions

    def parse(self, reply: str) -> ParsedReply:
        """Parse one reply; a malformed one has no actions."""
        tag_added = not reply.lstrip().startswith(self.opening_tag)
        raw = self.opening_tag + reply if tag_added else reply
        parts = split_reply(raw, self._enable_think)
        if isinstance(parts, str):
            return ParsedReply(raw, self._control.remove(raw).strip(), [], tag_added)
        thought, answer = (self._inner.remove(part).strip() for part in parts)
        actions = split_actions(answer, self._action_sep)
        if self._max_actions is not None and len(actions) > self._max_actions:
            actions = actions[: self._max_actions]
            answer = f" {self._action_sep} ".join(actions)
        text = f"{ANSWER}{answer}{END_ANSWER}"
        text = f"{THINK}{thought}{END_THINK}{text}" if self._enable_think else text
        return ParsedReply(raw, text, actions, tag_added)


def split_reply(reply: str, enable_think: bool) -> tuple[str, str] | str:
    """The thought and the answer of a reply, or if it is malformed, the first tag that it lacks.

    Args:
        reply: The reply, with its opening tag.
        enable_think: Whether it must contain a thought before its answer.
    """
    opening_tag = THINK if enable_think else ANSWER
    start = reply.find(opening_tag)
    if start < 0:
        return opening_tag
    start = think_end = answer_start = start + len(opening_tag)
    if enable_think:
        turn = _TURN_TO_ANSWER.search(reply, start)
        if turn is None:
            return END_THINK if reply.find(END_THINK, start) < 0 else f"{ANSWER} right after {END_THINK}"
        think_end, answer_start = turn.span()
    answer_end = reply.find(END_ANSWER, answer_start)
    return END_ANSWER if answer_end < 0 else (reply[start:think_end], reply[answer_start:answer_end])


# Projections

Style = Literal["ragen", "verl-agent"]
STYLES = ("ragen", "verl-agent")

ActionSpace = Any  # a mapping of keys to names, a list of texts or keys, or None
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
_VERL_SHOP_TAIL = 20  # characters at the end of a reply without tags that verl-agent uses as its action
_CHINESE = re.compile("[\u4e00-\u9fff]")

_NUMBER = re.compile(r"(?<![\w.-])\d+(?!\w|\.\d)")
_LONE_ARM = re.compile(r"\barms? *#?(\d+)(?!\w|\.\d)|^\W*(\d+)\W*$", re.I)
_STATES = re.compile(r"\banswer(?: is|:)[ :]*|####", re.I)
_WORDS = re.compile(r"(?<![\\a-z])[a-z]{2,}", re.I)  # not LaTeX's commands, nor variables
_AMOUNT = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")

_ARITHMETIC = re.compile(r"[\d+\-*/(). \t]+")
_EXPRESSION = frozenset("0123456789+-*/(). \t")


def create_projection_function(env_type: str | Sequence[str], style: Style = "ragen") -> Projection:
    """The projection for a type of environment; the generic one for types without their own.

    Args:
        env_type: Such as ``sokoban``; or the type of each row.
        style: The rules: ``"ragen"`` or ``"verl-agent"``.

    Returns:
        A function ``(texts, action_spaces=None) -> (actions, valids)``. ``action_spaces`` has for each text a mapping
        of keys to names, or a list of the available actions. ``valids`` are bools; in verl-agent's style, 0 and 1.

    Raises:
        ConfigError: There is no such style.
    """
    if style not in STYLES:
        raise ConfigError(f"style = {style!r}: expected one of {', '.join(map(repr, STYLES))}.")
    is_strict = style == "verl-agent"
    kind, readers = int if is_strict else bool, list[Read]()
    for name in [env_type] if isinstance(env_type, str) else env_type:
        read = _READERS.get(name, _read_any)
        readers.append(_VERL_READERS.get(name, _thinking(read)) if is_strict else read)

    def project(texts: Sequence[str | None], action_spaces: Sequence[Any] | None = None) -> tuple[list[Any], list[Any]]:
        spaces = [None] * len(texts) if action_spaces is None else action_spaces
        rows = zip(readers * len(texts) if isinstance(env_type, str) else readers, texts, spaces, strict=True)
        found = [(None, True) if text is None else read(text, space) for read, text, space in rows]
        return [action for action, _ in found], [kind(valid) for _, valid in found]

    project.style = style  # type: ignore[attr-defined]  # managers choose prompts accordingly
    return project


def split_actions(answer: str, separator: str) -> list[str]:
    """The actions of an answer, split at separators; blank ones are ignored."""
    return [action for part in answer.split(separator) if (action := part.strip())]


def sent_actions(text: str, separator: str | None) -> list[str]:
    """The actions in a text that a client sends: in its last ``<answer>`` or ``<action>``, or else the whole text.

    Args:
        text: The text.
        separator: Text between several actions; None for an environment that takes free text, which is one action.
    """
    content = tagged(text, "answer", "action")
    content = text.strip() if content is None else content
    return [content] if separator is None else split_actions(content, separator)


def tagged(text: str, *tags: str) -> str | None:
    """The content of the last complete pair of one of these tags; None if there is none.

    Args:
        text: The reply.
        tags: Names, such as ``action``; case is ignored, except in texts whose length in lower case differs.
    """
    searched = text.lower()
    if len(searched) != len(text):
        searched = text
    found = [span for tag in tags if (span := _last_span(searched, tag)) is not None]
    return text[slice(*max(found, key=lambda span: span[1]))].strip() if found else None


def _last_span(text: str, tag: str) -> tuple[int, int] | None:
    end = text.rfind(f"</{tag}>")
    start = -1 if end < 0 else text.rfind(f"<{tag}>", 0, end)
    return None if start < 0 else (start + len(tag) + 2, end)


def first_name(text: str, names: Mapping[str, Any]) -> Any:
    """The value of the first of these names that is a whole word in a text; None if there is none.

    Args:
        text: Any text.
        names: Values by name, in lower case.
    """
    match = _any_of(tuple(names)).search(text.lower()) if names else None
    return names[match[0]] if match else None


@lru_cache(maxsize=1024)
def _any_of(names: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?![\w'])")


def _thinks_first(text: str) -> bool:
    """Whether a reply has both thinking tags, as verl-agent's rules require."""
    return THINK in text and END_THINK in text


def _keys(space: ActionSpace, default: Mapping[Any, str]) -> dict[str, Any]:
    """Keys by name in lower case; points of the compass are synonyms of up, down, left and right."""
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
        return (NO_MOVE, False) if key is None else (key, _thinks_first(text))

    return read


def _read_arm(text: str, space: ActionSpace) -> tuple[Any, bool]:
    """An arm's name or number in the answer; without tags, a name anywhere, ``arm 2``, or a number alone."""
    keys = _keys(space, BANDIT_NAMES)
    content = tagged(text, "answer", "action")
    key = first_name(text if content is None else content, keys)
    if key is None:
        numbers = _NUMBER.findall(content) if content is not None else map("".join, _LONE_ARM.findall(text))
        key = next((key for number in numbers for key in keys.values() if str(key) == number), None)
    return (min(keys.values()), False) if key is None else (key, True)


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
    """The page's link that leads back."""
    return next((link for link in _BACK if link in (space or ())), _TO_SEARCH)


def _verl_purchase(text: str, space: ActionSpace) -> tuple[str, bool]:
    content = tagged(text, "action")
    if content is None:
        return text[-_VERL_SHOP_TAIL:].lower(), False
    return content.lower(), _thinks_first(text) and not _CHINESE.search(text)


def _read_expression(text: str, space: ActionSpace) -> tuple[str, bool]:
    """The first arithmetic expression in the answer, or without tags, in the text; preferably with an operator."""
    content = tagged(text, "answer", "action")
    searched = text if content is None else content
    runs = [run.strip(" \t.") for run in _ARITHMETIC.findall(searched) if any(map(str.isdigit, run))]
    run = next((run for run in runs if any(sign in run.lstrip("+-") for sign in "+-*/")), runs[0] if runs else None)
    return (run, True) if run is not None and _has_value(run) else (searched.strip() or text, False)


def _has_value(text: str) -> bool:
    if not _EXPRESSION.issuperset(text):
        return False
    try:
        evaluate(text)
    except (ExpressionError, ArithmeticError):
        return False
    return True


def _read_result(text: str, space: ActionSpace) -> tuple[str, bool]:
    """The result that a reply states, in tags or after "the answer is", without words around it.

    Of several numbers among words it is the first after "the answer is", otherwise the last, to which a computation
    leads. An expression or a single word is a result too, if it is stated; other words without a number are none.
    """
    content = tagged(text, "answer", "action")
    *before, result = _STATES.split(text if content is None else content)
    result = result.strip().strip("$").removesuffix(".").strip()
    words = _WORDS.findall(result)
    if not words and result:
        return result, True
    numbers = _AMOUNT.findall(result)
    if numbers:
        return (numbers[0] if before else numbers[-1]).replace(",", ""), True
    is_stated = len(result.split()) == 1 and (bool(before) or content is not None)
    return (result, True) if is_stated else (text.strip() if content is None else content, False)


def _read_any(text: str, space: ActionSpace) -> tuple[Any, bool]:
    """The tag's content; for numbered actions, the key of the first name in it, or None, which does nothing."""
    content = tagged(text, "action", "answer")
    if not isinstance(space, Mapping) or not space:
        return (text, False) if content is None else (content, bool(content))
    key = None if content is None else first_name(content, _keys(space, {}))
    return key, key is not None


def _thinking(read: Read) -> Read:
    """A rule that also requires a thought, and replaces an invalid numbered action with one that does nothing."""

    def read_strictly(text: str, space: ActionSpace) -> tuple[Any, bool]:
        action, valid = read(text, space)
        if not valid and not isinstance(action, str):
            action = NO_MOVE if action is not None else None
        return action, valid and _thinks_first(text)

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
