"""From an environment's history to chat messages, all of it or the last few turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ragen.errors import InputError
from ragen.llm_agent.backends.base import valid_text
from ragen.llm_agent.config.context import SINGLE, ContextSettings
from ragen.llm_agent.prompting.control_tokens import ControlTokens
from ragen.llm_agent.prompting.prompts import TagPrompt
from ragen.llm_agent.prompting.template import IN_SYSTEM, PromptTemplate, fill

Message = dict[str, Any]
IMAGE_MARK = "<images>"


@dataclass(frozen=True)
class Row:
    """A stretch of one trajectory that becomes one row of a batch.

    Attributes:
        episode: Its position among the trajectories of the batch.
        rollout: The environment's rollout cache.
        start: The first turn shown, from 0.
        stop: The turn after the last one shown.
        is_prompt: Whether a reply is to follow; else the row ends with one.
    """

    episode: int
    rollout: dict[str, Any]
    start: int
    stop: int
    is_prompt: bool

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The history's entries shown."""
        return self.rollout["history"][self.start : self.stop]

    @property
    def name(self) -> str:
        """How an error message calls the row."""
        return f"env {self.rollout.get('env_id')} (tag {self.rollout.get('tag')!r}), turns {self.start + 1}-{self.stop}"

    def without_oldest(self, count: int) -> Row:
        """The row without its first ``count`` turns."""
        return replace(self, start=self.start + count)


def played_turns(rollout: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns that have a reply: all but the open one at the end."""
    return [turn for turn in rollout["history"] if "llm_response" in turn]


def prompt_rows(rollouts: Sequence[dict[str, Any]], window: int | None) -> list[Row]:
    """One row a trajectory, up to and with its open turn."""
    return [_row(episode, rollout, len(rollout["history"]), window, True) for episode, rollout in enumerate(rollouts)]


def trajectory_rows(rollouts: Sequence[dict[str, Any]], window: int | None) -> list[Row]:
    """One row a trajectory, up to its last reply."""
    return [
        _row(episode, rollout, len(played_turns(rollout)), window, False) for episode, rollout in enumerate(rollouts)
    ]


def turn_rows(rollouts: Sequence[dict[str, Any]], window: int | None) -> list[Row]:
    """One row a reply, as its prompt was; a trajectory without replies still gives one row."""
    return [
        _row(episode, rollout, stop, window, False)
        for episode, rollout in enumerate(rollouts)
        for stop in range(1, len(played_turns(rollout)) + 1) or [0]
    ]


def _row(episode: int, rollout: dict[str, Any], stop: int, window: int | None, is_prompt: bool) -> Row:
    return Row(episode, rollout, 0 if window is None else max(0, stop - window), stop, is_prompt)


@dataclass(frozen=True)
class Narrator:
    """Tells rows as chat messages.

    Attributes:
        settings: The context manager's settings.
        prompts: What each tag's environments are told.
        tags: The tag of each environment id, for caches that do not name it.
        control: Removed from replies, broken up in states.
        opening_tag: Stands for a reply that is empty.
        with_images: Whether image observations become image items of a message, or stay marks in the text.
    """

    settings: ContextSettings
    prompts: dict[str, TagPrompt]
    tags: dict[int, str]
    control: ControlTokens
    opening_tag: str
    with_images: bool = False

    def messages(self, row: Row) -> list[Message]:
        """The chat of a row; it ends with the user's message if the row is a prompt, else with a reply."""
        one_message = self.settings.window_mode == SINGLE
        parts = self._single_turn(row) if one_message else self._turn_by_turn(row)
        told = [("system", self._system(row)), *parts] if self._has_system(row) else parts
        messages = [{"role": role, "content": self._words.joined(texts)} for role, texts in told]
        return self._with_items(messages, row) if self.with_images else messages

    def tag_of(self, rollout: dict[str, Any]) -> str:
        """The tag of a rollout, by its name or else by its environment id.

        Raises:
            InputError: The rollout's tag or environment id is not among the configured ones.
        """
        tag = rollout.get("tag", self.tags.get(rollout.get("env_id", -1)))
        if tag not in self.prompts:
            known = ", ".join(sorted(self.prompts))
            raise InputError(f"env_id={rollout.get('env_id')!r} has tag {tag!r}; this manager knows: {known}.")
        return tag

    @property
    def _words(self) -> PromptTemplate:
        return self.settings.template

    def _system(self, row: Row) -> list[str]:
        """The paragraphs of the system message."""
        return [self._words.system, *(self._opening(row) if self._words.instruction_in == IN_SYSTEM else ())]

    def _has_system(self, row: Row) -> bool:
        return any(text.strip() for text in self._system(row))

    def _opening(self, row: Row) -> list[str]:
        """The instruction, where there is one."""
        prompt = self.prompts[self.tag_of(row.rollout)]
        return [prompt.instruction] if prompt.instruction else []

    def _head(self, row: Row) -> list[str]:
        """What the first user message begins with."""
        return [] if self._words.instruction_in == IN_SYSTEM else self._opening(row)

    def _turn_by_turn(self, row: Row) -> Iterator[tuple[str, list[str]]]:
        prompt = self.prompts[self.tag_of(row.rollout)]
        user = self._head(row)
        for number, turn in enumerate(row.turns, row.start + 1):
            user.append(prompt.turn(number, *self._shown(turn), number == row.start + 1, _invalid(turn)))
            if "llm_response" in turn:
                yield "user", user
                yield "assistant", [self._reply(turn)]
                user = [fill(self._words.reward, {"reward": turn["reward"]})] if "reward" in turn else []
        if row.is_prompt or not row.turns:
            yield "user", user

    def _single_turn(self, row: Row) -> Iterator[tuple[str, list[str]]]:
        prompt = self.prompts[self.tag_of(row.rollout)]
        user, window = self._head(row), self._words.window
        *earlier, last = row.turns or [{}]
        if earlier:
            told = [self._told(number, turn) for number, turn in enumerate(earlier, row.start + 1)]
            before = fill(window.before, {"completed": row.stop - 1, "shown": len(earlier)})
            user += [before, *told, window.after]
        if last:
            user.append(prompt.current_turn(row.stop, *self._shown(last), not earlier, _invalid(last)))
        yield "user", user
        if "llm_response" in last:
            yield "assistant", [self._reply(last)]

    def _told(self, number: int, turn: dict[str, Any]) -> str:
        """A turn that is over, as one paragraph."""
        window, reward = self._words.window, ""
        if "reward" in turn:
            reward = fill(window.reward, {"reward": turn["reward"], "turn": number})
        reply = self._reply(turn).replace(IMAGE_MARK, "")
        values = {"turn": number, "observation": self._shown(turn)[0], "reply": reply, "reward": reward}
        return fill(window.turn, values)

    def _shown(self, turn: dict[str, Any]) -> tuple[str, int | None]:
        """A turn's observation, and how many actions it leaves."""
        text = str(turn.get("state", ""))
        return self.control.defuse(text if text.isascii() else valid_text(text)), turn.get("actions_left")

    def _reply(self, turn: dict[str, Any]) -> str:
        reply = self.control.remove(str(turn.get("llm_response", "")))
        return (reply.strip() if self._words.trim else reply) or self.opening_tag

    def _with_items(self, messages: list[Message], row: Row) -> list[Message]:
        """The messages with lists of items for content, and images where the marks of user messages were, in order."""
        images = [image for turn in row.turns for image in turn.get("images") or ()]
        marks = sum(message["content"].count(IMAGE_MARK) for message in messages if message["role"] == "user")
        if images and marks != len(images):
            raise InputError(f"{row.name} shows {marks} {IMAGE_MARK!r} marks for {len(images)} images.")
        source = iter(images)
        return [
            {**message, "content": list(_items(message["content"], source if message["role"] == "user" else iter(())))}
            for message in messages
        ]


def _invalid(turn: dict[str, Any]) -> bool:
    """Whether the turn before had no valid action; generation 2026 marks that."""
    return bool(turn.get("manager_invalid_action"))


def _items(text: str, images: Iterator[Any]) -> Iterator[Message]:
    """The items of a message's content: stretches of text, and images for the marks between them while they last."""
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


def plain_messages(messages: Sequence[Message]) -> list[Message]:
    """Messages as text, in which marks stand for images."""
    return [{**message, "content": _plain(message["content"])} for message in messages]


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(IMAGE_MARK if item["type"] == "image" else item["text"] for item in content)


def images_of(messages: Sequence[Message]) -> list[Any]:
    """All images of a chat, in order."""
    return [
        item["image"]
        for message in messages
        if isinstance(message["content"], list)
        for item in message["content"]
        if item["type"] == "image"
    ]
