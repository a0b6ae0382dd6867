"""From histories to chats, as RAGEN tells them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ragen.errors import InputError
from ragen.llm_agent.config.context import LIMITED, SINGLE, ContextSettings
from ragen.llm_agent.prompting.conversation import Message
from ragen.llm_agent.prompting.prompts import TagPrompt
from ragen.llm_agent.prompting.template import IN_SYSTEM, fill

History = list[dict[str, Any]]
Length = Callable[[list[Message], bool, bool], int]
"""How many tokens a chat has; whether a reply follows, and whether the tag that begins it counts."""


@dataclass(frozen=True)
class Chat:
    """A chat that becomes one row.

    Attributes:
        episode: Its trajectory, by its place in the batch.
        messages: The chat.
    """

    episode: int
    messages: list[Message]


@dataclass(frozen=True)
class RagenNarrator:
    """Tells rollout caches as RAGEN does.

    Attributes:
        settings: The context manager's settings.
        prompts: What each tag's environments are told.
        length: How many tokens a chat has.
    """

    settings: ContextSettings
    prompts: dict[str, TagPrompt]
    length: Length

    def prompt_chats(self, rollouts: Sequence[dict[str, Any]]) -> list[Chat]:
        """The chats that a reply is to follow, one of each trajectory."""
        return [Chat(episode, self._prompt_chat(rollout)) for episode, rollout in enumerate(rollouts)]

    def training_chats(self, rollouts: Sequence[dict[str, Any]]) -> list[Chat]:
        """The chats that are learnt: one of each trajectory, or in turn modes one of each reply.

        Raises:
            InputError: There is none.
        """
        chats = []
        for episode, rollout in enumerate(rollouts):
            history = self.learnt_history(rollout)
            if self._by_turns:
                ends = [place for place, turn in enumerate(history) if "llm_response" in turn]
                chats += [Chat(episode, self._turn_chat(rollout, history, place)) for place in ends]
            else:
                chats.append(Chat(episode, self._fitted(self._learnt_chat(rollout, history))))
        if not chats:
            raise InputError("no trajectory has a reply, so there is nothing to learn; play at least one turn.")
        return chats

    def learnt_history(self, rollout: dict[str, Any]) -> History:
        """The turns that are learnt. Generation 2025 leaves a trajectory's cache with these turns alone."""
        history = rollout["history"]
        if self.settings.generation.is_2026:
            open_end = history and "state" in history[-1] and "llm_response" not in history[-1]
            return history[:-1] if open_end else history
        if "state" in _last(rollout):
            history = rollout["history"] = history[:-1]
        return self._shortened(rollout)

    def chat(self, rollout: dict[str, Any], history: History, start: int = 0, **how: Any) -> list[Message]:
        """The turns of a history from ``start`` on; see :meth:`_chat` for how."""
        return self._chat(self.prompts[rollout["tag"]], history[start:], start + 1, **how)

    @property
    def _by_turns(self) -> bool:
        return self.settings.window_mode in (LIMITED, SINGLE)

    def _shortened(self, rollout: dict[str, Any]) -> History:
        """Cut the trajectory's history to the window, as RAGEN of 2025 does, for good."""
        if self.settings.window is not None:
            rollout["history"] = rollout["history"][-self.settings.window :]
        return rollout["history"]

    def _prompt_chat(self, rollout: dict[str, Any]) -> list[Message]:
        if not self.settings.generation.is_2026:
            _last(rollout)
            messages = self.chat(rollout, self._shortened(rollout), warned=False)
            if any(message["role"] != "assistant" for message in messages[2::2]):
                raise InputError(f"env {rollout.get('env_id')}: a turn has a reward and no reply; step it first.")
            return messages
        history = rollout["history"]
        start = max(0, len(history) - (self.settings.window or len(history)))
        if self.settings.window_mode != SINGLE:
            return self._fitted(self.chat(rollout, history, start), is_prompt=True)
        return self._single(rollout, history, len(history) - 1, start, is_prompt=True)

    def _turn_chat(self, rollout: dict[str, Any], history: History, place: int) -> list[Message]:
        start = max(0, place + 1 - (self.settings.window or place + 1))
        if self.settings.window_mode == SINGLE:
            return self._single(rollout, history, place, start, is_prompt=False)
        return self._fitted(self._learnt_chat(rollout, history[: place + 1], start))

    def _learnt_chat(self, rollout: dict[str, Any], history: History, start: int = 0) -> list[Message]:
        return self.chat(rollout, history, start, warned=False, with_last_reward=False)

    def _chat(
        self,
        prompt: TagPrompt,
        turns: History,
        number: int,
        warned: bool = True,
        with_last_reward: bool = True,
    ) -> list[Message]:
        """Turns as a chat of several rounds.

        Args:
            prompt: What the tag's environments are told.
            turns: The turns.
            number: The first one's number.
            warned: Whether turns without valid actions are told so.
            with_last_reward: Whether the last turn's reward is told.
        """
        told = self._opening(prompt)
        for place, turn in enumerate(turns):
            if "state" in turn:
                told[-1][1].append(prompt.turn(number + place, *_shown(turn), place == 0, warned and _invalid(turn)))
            if "llm_response" in turn:
                told.append(("assistant", [turn["llm_response"]]))
            if "reward" in turn and (with_last_reward or place < len(turns) - 1):
                told.append(("user", [fill(self.settings.template.reward, {"reward": turn["reward"]})]))
        return self._messages(told)

    def _single(
        self, rollout: dict[str, Any], history: History, place: int, start: int, is_prompt: bool
    ) -> list[Message]:
        """A turn as one message, with as many turns before it as are in the window and fit."""
        while True:
            messages = self._single_chat(self.prompts[rollout["tag"]], history, place, start, is_prompt)
            if start >= place or self._fits(messages, is_prompt, with_tag=is_prompt):
                return messages
            start += 1

    def _single_chat(
        self, prompt: TagPrompt, history: History, place: int, start: int, is_prompt: bool
    ) -> list[Message]:
        told = self._opening(prompt)
        if place < 0:
            return self._messages(told)
        user, window, turn = told[-1][1], self.settings.template.window, history[place]
        if start < place:
            user.append(fill(window.before, {"completed": place, "shown": place - start}))
            user += [self._told(number, each) for number, each in enumerate(history[start:place], start + 1)]
            user.append(window.after)
        invalid = is_prompt and _invalid(turn)
        user.append(prompt.current_turn(place + 1, *_shown(turn), start >= place, invalid))
        if not is_prompt:
            told.append(("assistant", [turn["llm_response"]]))
        return self._messages(told)

    def _told(self, number: int, turn: dict[str, Any]) -> str:
        window = self.settings.template.window
        values = {"turn": number, "observation": turn.get("state", ""), "reply": turn.get("llm_response", "")}
        reward = fill(window.reward, {"turn": number, "reward": turn["reward"]}) if "reward" in turn else ""
        return fill(window.turn, values | {"reward": reward})

    def _opening(self, prompt: TagPrompt) -> list[tuple[str, list[str]]]:
        words = self.settings.template
        if words.instruction_in == IN_SYSTEM:
            return [("system", [words.system, prompt.instruction]), ("user", [])]
        return [("system", [words.system]), ("user", [prompt.instruction])]

    def _messages(self, told: list[tuple[str, list[str]]]) -> list[Message]:
        return [{"role": role, "content": self.settings.template.joined(texts)} for role, texts in told]

    def _fits(self, messages: list[Message], is_prompt: bool, with_tag: bool = False) -> bool:
        limit = self.settings.max_model_len
        return limit is None or self.length(messages, is_prompt, with_tag) <= limit

    def _fitted(self, messages: list[Message], is_prompt: bool = False) -> list[Message]:
        """The chat without as many of its oldest messages as it takes to fit (2026).

        Whole rounds go: a question, its answer, and the message behind it where that tells a reward, though it asks the
        next question too.
        """
        if not self.settings.generation.is_2026:
            return messages
        system, *rest = messages
        while len(rest) > 2 and not self._fits([system, *rest], is_prompt):
            rest = rest[_oldest(rest) :]
        return [system, *rest]


def _oldest(messages: Sequence[Message]) -> int:
    """How many messages go at once."""
    roles = [message["role"] for message in messages[:3]]
    if roles[:2] != ["user", "assistant"]:
        return 1
    return 3 if roles[2] == "user" and "Reward" in messages[2]["content"] else 2


def _last(rollout: dict[str, Any]) -> dict[str, Any]:
    if not rollout["history"]:
        raise InputError(f"env {rollout.get('env_id')} has no history; reset it first.")
    return rollout["history"][-1]


def _shown(turn: dict[str, Any]) -> tuple[str, int | None]:
    return str(turn["state"]), turn.get("actions_left")


def _invalid(turn: dict[str, Any]) -> bool:
    return bool(turn.get("manager_invalid_action"))
