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
from typing import Any, NamedTuple

from ragen.env.registry import REGISTERED_ENV_CONFIGS, resolve_env
from ragen.errors import ConfigError, ContextFullError, InputError
from ragen.files import valid_text
from ragen.llm_agent.prompts.chat_template import Message
from ragen.llm_agent.prompts.replies import ControlTokens
from ragen.llm_agent.prompts.settings import MAX_MODEL_LEN, SINGLE, ContextSettings
from ragen.llm_agent.prompts.templates import WindowTemplate, fill

IMAGE_MARK = "<images>"

# Shared by all environments of a tag


class TagPrompt(NamedTuple):
    """The parts of a prompt that all environments of a tag share.

    Attributes:
        instruction: The rules, before the first state.
        reply_format: The required form of a reply.
        max_tokens: The requested maximum length of a reply; None requests none.
    """

    instruction: str
    reply_format: str
    max_tokens: int | None = None


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
        ConfigError: ``env_config`` does not fit the environment's configuration.
        UnknownEnvError: There is no such environment type.
    """
    forms, limit = settings.template.reply_format, entry.get("max_actions_per_traj")
    rules = instruction(entry.get("env_instruction") or "", _env_config(tag, entry), settings, limit)
    form = forms.think if settings.enable_think else forms.answer
    return TagPrompt(control.defuse(rules), form, entry.get("max_tokens") or settings.response_length)


def instruction(text: str, game: Any, settings: ContextSettings, per_trajectory: int | None = None) -> str:
    """The rules before the first state.

    Args:
        text: The description of the environment.
        game: The environment's configuration, with the symbols of its states and the names of its actions, if any.
        settings: The texts, and the limit of a turn.
        per_trajectory: Maximum number of actions of an episode.
    """
    words, symbols, actions = settings.template.instruction, None, None
    if (vocabulary := getattr(game, "grid_vocab", None)) and getattr(game, "observation_format", "grid") != "coord":
        symbols = ", ".join(f"{symbol} is {meaning}" for symbol, meaning in vocabulary.items())
    if lookup := getattr(game, "action_lookup", None):
        actions = ", ".join(map(str, lookup.values()))
    limits = {"in one turn": settings.max_actions_per_turn, "in the whole episode": per_trajectory}
    given = ", ".join(f"{limit} {where}" for where, limit in limits.items() if limit is not None)
    values: dict[str, Any] = {"symbols": symbols, "actions": actions, "limits": given or None}
    values |= {"action_sep": settings.action_sep, "max_actions": per_trajectory}
    return _joined("\n", [text, *(fill(part, values) for part in (words.symbols, words.actions, words.limits))])


def _env_config(tag: str, entry: Mapping[str, Any]) -> Any:
    """The environment's configuration object, or its fields if there is no class to create."""
    env_type, given = entry["env_type"], entry.get("env_config") or {}
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


def asked(rollout: dict[str, Any], place: int) -> Row:
    """The whole prompt for a turn, counted from 0: the earlier turns, and the turn's state."""
    history = rollout["history"]
    open_turn = [{key: value for key, value in turn.items() if key in _OPEN} for turn in history[place : place + 1]]
    return Row(0, rollout | {"history": [*history[:place], *open_turn]}, 0, place + 1, True)


_OPEN = ("state", "images", "actions_left", "manager_invalid_action")


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
        words, prompt = self.settings.template, self.prompts[self.tag_of(row.rollout)]
        draft: Draft = [("system", [words.system]), ("user", [prompt.instruction])]
        write = self._write_one_message if self.settings.window_mode == SINGLE else self._write_turns
        write(draft, row, prompt)
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

    def _write_turns(self, draft: Draft, row: Row, prompt: TagPrompt) -> None:
        for number, turn in enumerate(row.turns, row.start + 1):
            if draft[-1][0] == "assistant":
                draft.append(("user", []))
            draft[-1][1].append(self._asked(number, turn, prompt))
            if "llm_response" in turn:
                draft.append(("assistant", [self._reply(turn)]))
            is_shown = number < row.stop or row.is_prompt
            if "reward" in turn and is_shown and "llm_response" in turn:
                draft.append(("user", [fill(self.settings.template.reward, {"reward": turn["reward"]})]))
        if row.is_prompt and draft[-1][0] == "assistant":
            draft.append(("user", []))
        if not row.is_prompt and row.turns and draft[-1][0] == "user":
            del draft[-1]

    def _write_one_message(self, draft: Draft, row: Row, prompt: TagPrompt) -> None:
        """Write the last turn, with the earlier turns in the same message."""
        user, window = draft[-1][1], self.settings.template.window
        *earlier, last = row.turns or [{}]
        if earlier:
            user.append(fill(window.before, {"completed": row.stop - 1, "shown": len(earlier)}))
            user += [self._earlier_turn(window, number, turn) for number, turn in enumerate(earlier, row.start + 1)]
            user.append(window.after)
        if last:
            user.append(self._asked(row.stop, last, prompt))
        if "llm_response" in last:
            draft.append(("assistant", [self._reply(last)]))

    def _asked(self, number: int, turn: dict[str, Any], prompt: TagPrompt) -> str:
        """The text that asks for a turn."""
        words = self.settings.template
        parts = {
            "turn": number,
            "observation": self._state(turn),
            "invalid": words.invalid if turn.get("manager_invalid_action") else "",
            "actions_left": fill(words.actions_left, {"actions_left": turn.get("actions_left")}),
            "format": prompt.reply_format,
            "length": fill(words.length, {"max_tokens": prompt.max_tokens}),
        }
        return fill(words.turn, parts)

    def _earlier_turn(self, window: WindowTemplate, number: int, turn: dict[str, Any]) -> str:
        """A finished turn as one paragraph."""
        reward = fill(window.reward, {"reward": turn["reward"], "turn": number}) if "reward" in turn else ""
        reply = self._reply(turn).replace(IMAGE_MARK, "")
        return fill(window.turn, {"turn": number, "observation": self._state(turn), "reply": reply, "reward": reward})

    def _state(self, turn: dict[str, Any]) -> str:
        text = str(turn.get("state", ""))
        return self.control.defuse(text if text.isascii() else valid_text(text))

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
            {
                **message,
                "content": list(items_of(message["content"], source if message["role"] == "user" else iter(()))),
            }
            for message in messages
        ]


def items_of(text: str, images: Iterator[Any]) -> Iterator[Message]:
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
