"""Builds the chat for a model from an environment's observations.

The prompt for the third turn, by role::

    system     <system message>
    user       <instruction, symbols, actions, limits>  Turn 1: State: ..  You have 10 actions left. Always output: ..
    assistant  <think>..</think><answer>..</answer>
    user       Reward: ..  Turn 2: State: ..
    assistant  ..
    user       Reward: ..  Turn 3: State: ..

:func:`tag_prompt` builds the parts that all environments of a tag share, :class:`ConversationBuilder` the chat of a
:class:`Row`, which is a span of turns of one trajectory. The texts are data; see
:mod:`ragen.llm_agent.prompts.templates`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

from ragen.env.registry import REGISTERED_ENV_CONFIGS, resolve_env
from ragen.errors import ConfigError, ContextFullError, InputError
from ragen.llm_agent.prompts.chat_template import Message
from ragen.llm_agent.prompts.replies import ControlTokens
from ragen.llm_agent.prompts.settings import MAX_MODEL_LEN, SINGLE, ContextSettings
from ragen.llm_agent.prompts.templates import (
    DEFAULT_PROMPTS,
    InstructionTemplate,
    PromptTemplate,
    WindowTemplate,
    fill,
)
from ragen.output import valid_text

IMAGE_MARK = "<images>"

# Shared by all environments of a tag


@dataclass(frozen=True)
class TagPrompt:
    """The parts of a prompt that all environments of a tag share.

    Attributes:
        instruction: The rules, before the first state.
        reply_format: The required form of a reply.
        max_tokens: The requested maximum length of a reply; None requests none.
        template: The texts.
    """

    instruction: str
    reply_format: str
    max_tokens: int | None = None
    template: PromptTemplate = DEFAULT_PROMPTS

    def turn(self, number: int, state: str, actions_left: int | None, invalid: bool = False) -> str:
        """The text that asks for one turn of a chat.

        Args:
            number: The turn's number in its episode, from 1.
            state: The observation.
            actions_left: Number of actions left in the episode; None omits it.
            invalid: Whether the previous turn had no valid action.
        """
        words = self.template
        parts = {
            "turn": number,
            "observation": state,
            "invalid": words.invalid if invalid else "",
            "actions_left": fill(words.actions_left, {"actions_left": actions_left}),
            "format": self.reply_format,
            "length": fill(words.length, {"max_tokens": self.max_tokens}),
        }
        return fill(words.turn, parts)


def tag_prompt(tag: str, entry: Mapping[str, Any], settings: ContextSettings, control: ControlTokens) -> TagPrompt:
    """The prompt of a tag.

    Of a registered environment, only the configuration class is imported.

    Args:
        tag: The name under ``custom_envs``.
        entry: The entry of that name, with ``env_type``, ``env_instruction``, ``env_config``,
            ``max_actions_per_traj`` and ``max_tokens``.
        settings: The context manager's settings.
        control: Control tokens, which are broken up in the instruction.

    Raises:
        ConfigError: ``env_type`` is missing, or ``env_config`` does not fit the environment's configuration.
        UnknownEnvError: There is no such environment type.
    """
    words = settings.template
    rules, game, limit = words.instruction, _env_config(tag, entry), entry.get("max_actions_per_traj")
    paragraphs = [
        str(entry.get("env_instruction") or ""),
        _symbols(rules, game),
        _actions(rules, game, settings.action_sep, limit),
        _limits(rules, settings.max_actions_per_turn, limit),
    ]
    return TagPrompt(
        instruction=control.defuse(_joined("\n", paragraphs)),
        reply_format=words.reply_format.think if settings.enable_think else words.reply_format.answer,
        max_tokens=entry.get("max_tokens") or settings.response_length,
        template=words,
    )


def _env_config(tag: str, entry: Mapping[str, Any]) -> Any:
    """The environment's configuration object, or its fields if there is no class to create."""
    env_type, given = entry.get("env_type"), entry.get("env_config") or {}
    if not isinstance(env_type, str):
        raise ConfigError(f"custom_envs.{tag}.env_type is {env_type!r}; expected the name of an environment type.")
    if not isinstance(given, Mapping):
        raise ConfigError(f"custom_envs.{tag}.env_config is {given!r}; expected a mapping of fields, or null.")
    known = env_type in REGISTERED_ENV_CONFIGS
    config_class = REGISTERED_ENV_CONFIGS[env_type] if known else resolve_env(env_type)[1]
    if config_class is None or not _describes(config_class):
        return SimpleNamespace(**{str(name): value for name, value in given.items()})
    try:
        return config_class(**given)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"custom_envs.{tag}.env_config does not fit {config_class.__name__}: {error}.") from error


def _describes(config_class: type) -> bool:
    """Whether a configuration may have fields that instructions show.

    Others are not created, since creating them may access files.
    """
    if not is_dataclass(config_class):
        return True
    return any(field.name in ("grid_vocab", "action_lookup", "observation_format") for field in fields(config_class))


def _symbols(rules: InstructionTemplate, game: Any) -> str:
    """The meaning of each symbol of the grid, if states show one."""
    vocabulary = getattr(game, "grid_vocab", None)
    if not vocabulary or getattr(game, "observation_format", "grid") == "coord":
        return ""
    symbols = ", ".join(f"{symbol} is {meaning}" for symbol, meaning in vocabulary.items())
    return fill(rules.symbols, {"symbols": symbols})


def _actions(rules: InstructionTemplate, game: Any, separator: str, per_trajectory: int | None) -> str:
    lookup = getattr(game, "action_lookup", None)
    if not lookup:
        return ""
    names = ", ".join(map(str, lookup.values()))
    return fill(rules.actions, {"actions": names, "action_sep": separator, "max_actions": per_trajectory})


def _limits(rules: InstructionTemplate, per_turn: int | None, per_trajectory: int | None) -> str:
    limits = {"in one turn": per_turn, "in the whole episode": per_trajectory}
    given = ", ".join(f"{limit} {where}" for where, limit in limits.items() if limit is not None)
    return fill(rules.limits, {"limits": given or None})


def _joined(separator: str, paragraphs: Sequence[str]) -> str:
    """Paragraphs as one text, stripped of blanks and without empty ones."""
    return separator.join(filter(None, map(str.strip, paragraphs)))


# Rows: the turns of a trajectory that become one chat


@dataclass(frozen=True)
class Row:
    """A span of turns of one trajectory that becomes one row of a batch.

    Attributes:
        episode: The index of its trajectory in the batch.
        rollout: The environment's rollout cache.
        start: The first turn shown, from 0.
        stop: The turn after the last one shown.
        is_prompt: Whether a reply is to follow; otherwise the row ends with a reply.
    """

    episode: int
    rollout: dict[str, Any]
    start: int
    stop: int
    is_prompt: bool

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The entries of the history that are shown."""
        return self.rollout["history"][self.start : self.stop]

    @property
    def name(self) -> str:
        """The row's name in error messages."""
        return f"env {self.rollout.get('env_id')} (tag {self.rollout.get('tag')!r}), turns {self.start + 1}-{self.stop}"

    def without_oldest(self, count: int) -> Row:
        """The row without its first ``count`` turns."""
        return replace(self, start=self.start + count)


def row_of(episode: int, rollout: dict[str, Any], stop: int, window: int | None, is_prompt: bool) -> Row:
    """The row of the last ``window`` turns before ``stop``; None for all turns."""
    return Row(episode, rollout, 0 if window is None else max(0, stop - window), stop, is_prompt)


def shortened(row: Row, limit: int, settings: ContextSettings, length: Callable[[Row], int]) -> Row:
    """The row without its oldest turns, as many as needed to fit.

    Args:
        row: A row that is too long.
        limit: Maximum number of tokens.
        settings: They name the model's context in the message.
        length: The number of tokens of a row.

    Raises:
        ContextFullError: The last turn alone is too long.
    """
    dropped = bisect_left(range(len(row.turns)), True, key=lambda count: length(row.without_oldest(count)) <= limit)
    if dropped == len(row.turns):
        raise ContextFullError(
            f"{row.name}: the last turn alone makes a context of {length(row.without_oldest(max(0, dropped - 1)))} "
            f"tokens, and {MAX_MODEL_LEN}={settings.max_model_len} leaves room for {limit}; raise it, or shorten the "
            "instruction or the observation.",
            row.rollout.get("env_id", -1),
        )
    return row.without_oldest(dropped)


def played_turns(rollout: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns that have a reply: all but the open one at the end."""
    return [turn for turn in rollout["history"] if "llm_response" in turn]


def prompt_rows(rollouts: Sequence[dict[str, Any]], window: int | None) -> list[Row]:
    """One row per trajectory, up to and including its open turn."""
    return [row_of(episode, rollout, len(rollout["history"]), window, True) for episode, rollout in enumerate(rollouts)]


def trajectory_rows(rollouts: Sequence[dict[str, Any]], window: int | None) -> list[Row]:
    """One row per trajectory, up to its last reply."""
    return [
        row_of(episode, rollout, len(played_turns(rollout)), window, False) for episode, rollout in enumerate(rollouts)
    ]


def turn_rows(rollouts: Sequence[dict[str, Any]], window: int | None) -> list[Row]:
    """One row per reply, with the same turns as its prompt; a trajectory without replies yields one row too."""
    return [
        row_of(episode, rollout, stop, window, False)
        for episode, rollout in enumerate(rollouts)
        for stop in range(1, len(played_turns(rollout)) + 1) or [0]
    ]


# Chats

Draft = list[tuple[str, list[str]]]
"""A chat under construction: each message's role and paragraphs."""


@dataclass(frozen=True)
class ConversationBuilder:
    """Builds the chats of rows.

    Attributes:
        settings: The context manager's settings.
        prompts: The prompt of each tag.
        tags: The tag of each environment id, for caches without one.
        control: Control tokens, which are removed from replies and broken up in states.
        opening_tag: The text that replaces an empty reply.
        with_images: Whether image observations become image items of a message; if not, they stay marks in the text.
    """

    settings: ContextSettings
    prompts: dict[str, TagPrompt]
    tags: dict[int, str]
    control: ControlTokens
    opening_tag: str
    with_images: bool = False

    def messages(self, row: Row) -> list[Message]:
        """The chat of a row; it ends with a user message if the row is a prompt, otherwise with a reply."""
        draft = self._opening(row)
        (self._write_one_message if self.settings.window_mode == SINGLE else self._write_turns)(draft, row)
        if not any(text.strip() for text in draft[0][1]):
            del draft[0]
        messages = [{"role": role, "content": _joined("\n\n", texts)} for role, texts in draft]
        return self._with_items(messages, row) if self.with_images else messages

    def tag_of(self, rollout: dict[str, Any]) -> str:
        """The tag of a rollout, from its cache or else from its environment id.

        Raises:
            InputError: The rollout's tag or environment id is not configured.
        """
        tag = rollout.get("tag", self.tags.get(rollout.get("env_id", -1)))
        if tag not in self.prompts:
            known = ", ".join(sorted(self.prompts))
            raise InputError(f"env_id={rollout.get('env_id')!r} has tag {tag!r}; this manager knows: {known}.")
        return tag

    @property
    def _words(self) -> PromptTemplate:
        return self.settings.template

    def _prompt(self, row: Row) -> TagPrompt:
        return self.prompts[self.tag_of(row.rollout)]

    def _opening(self, row: Row) -> Draft:
        """The system message, and the beginning of the first user message."""
        return [("system", [self._words.system]), ("user", [self._prompt(row).instruction])]

    def _write_turns(self, draft: Draft, row: Row) -> None:
        prompt, words = self._prompt(row), self._words
        for number, turn in enumerate(row.turns, row.start + 1):
            if draft[-1][0] == "assistant":
                draft.append(("user", []))
            draft[-1][1].append(prompt.turn(number, *self._shown(turn), _is_warned(turn)))
            if "llm_response" in turn:
                draft.append(("assistant", [self._reply(turn)]))
            is_shown = number < row.stop or row.is_prompt
            if "reward" in turn and is_shown and "llm_response" in turn:
                draft.append(("user", [fill(words.reward, {"reward": turn["reward"]})]))
        if row.is_prompt and draft[-1][0] == "assistant":
            draft.append(("user", []))
        if not row.is_prompt and row.turns and draft[-1][0] == "user":
            del draft[-1]

    def _write_one_message(self, draft: Draft, row: Row) -> None:
        """Write the last turn, with the earlier turns in the same message."""
        user, prompt = draft[-1][1], self._prompt(row)
        window = self._words.window
        *earlier, last = row.turns or [{}]
        if earlier:
            user.append(fill(window.before, {"completed": row.stop - 1, "shown": len(earlier)}))
            user += [self._earlier_turn(window, number, turn) for number, turn in enumerate(earlier, row.start + 1)]
            user.append(window.after)
        if last:
            user.append(prompt.turn(row.stop, *self._shown(last), _is_warned(last)))
        if "llm_response" in last:
            draft.append(("assistant", [self._reply(last)]))

    def _earlier_turn(self, window: WindowTemplate, number: int, turn: dict[str, Any]) -> str:
        """A finished turn as one paragraph."""
        reward = fill(window.reward, {"reward": turn["reward"], "turn": number}) if "reward" in turn else ""
        reply = self._reply(turn).replace(IMAGE_MARK, "")
        seen, _ = self._shown(turn)
        return fill(window.turn, {"turn": number, "observation": seen, "reply": reply, "reward": reward})

    def _shown(self, turn: dict[str, Any]) -> tuple[str, int | None]:
        """A turn's observation, and the number of actions left."""
        text, actions_left = str(turn.get("state", "")), turn.get("actions_left")
        return self.control.defuse(text if text.isascii() else valid_text(text)), actions_left

    def _reply(self, turn: dict[str, Any]) -> str:
        reply = self.control.remove(str(turn.get("llm_response", "")))
        return reply.strip() or self.opening_tag

    def _with_items(self, messages: list[Message], row: Row) -> list[Message]:
        """The messages with items as content, in which images replace the marks of user messages, in order."""
        images = [image for turn in row.turns for image in turn.get("images") or ()]
        marks = sum(message["content"].count(IMAGE_MARK) for message in messages if message["role"] == "user")
        if images and marks != len(images):
            raise InputError(f"{row.name} shows {marks} {IMAGE_MARK!r} marks for {len(images)} images.")
        source = iter(images)
        return [
            {**message, "content": list(_items(message["content"], source if message["role"] == "user" else iter(())))}
            for message in messages
        ]


def _is_warned(turn: dict[str, Any]) -> bool:
    return bool(turn.get("manager_invalid_action"))


def _items(text: str, images: Iterator[Any]) -> Iterator[Message]:
    """The items of a message's content: texts, and images in place of the marks between them while they last."""
    pending = ""
    for index, stretch in enumerate(text.split(IMAGE_MARK)):
        image = next(images, None) if index else None
        if image is not None:
            if pending.strip():
                yield {"type": "text", "text": pending}
            yield {"type": "image", "image": image}
            pending = stretch
        else:
            pending += (IMAGE_MARK if index else "") + stretch
    if pending.strip():
        yield {"type": "text", "text": pending}


def images_of(messages: Sequence[Message]) -> list[Any]:
    """All images of a chat, in order."""
    return [
        item["image"]
        for message in messages
        if isinstance(message["content"], list)
        for item in message["content"]
        if item["type"] == "image"
    ]
