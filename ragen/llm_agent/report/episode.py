"""A trajectory as a report knows it: what was played, by whom, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragen.llm_agent.evaluation.replies import JUDGED, kinds_of, outcome
from ragen.llm_agent.rollout.trajectories import played_turns

Messages = Sequence[Mapping[str, Any]]


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
        chat: All messages of it, the replies too; none where they are not known.
        asked: What the model was shown at some turns, by their place from 0, where that is not the chat up to there.
        is_over: Whether it has ended.
    """

    state: Mapping[str, Any]
    seed: int | None = None
    home: str = "main"
    names: Mapping[Any, str] | None = None
    error: str | None = None
    replies: Sequence[Mapping[str, Any]] = ()
    chat: Messages = ()
    asked: Mapping[int, Messages] | None = None
    is_over: bool = True

    @property
    def tag(self) -> str:
        """Its tag."""
        return str(self.state["tag"])

    @property
    def turns(self) -> list[Mapping[str, Any]]:
        """The turns that were played."""
        return played_turns(self.state)

    @property
    def outcome(self) -> str:
        """What became of it; see :func:`~ragen.llm_agent.evaluation.replies.outcome`."""
        return outcome({**self.state, **({} if self.error is None else {"error": self.error})})

    @property
    def success(self) -> bool:
        """Whether the goal was reached."""
        return bool(self.state.get("metrics", {}).get(f"{self.state['tag']}/success", 0.0))

    @property
    def told_outcome(self) -> str:
        """What became of it: ``success``, ``no success``, ``env error``, ``missing reply``, or ``under way``."""
        if not self.is_over:
            return "under way"
        return self.outcome if self.outcome != JUDGED else "success" if self.success else "no success"

    @property
    def invalid(self) -> bool:
        """Whether a reply was penalised, or gave nothing to execute."""
        return bool(self.state["penalty"]) or any(not turn["actions"] for turn in self.turns)

    @property
    def kinds(self) -> list[str]:
        """What is wrong with some of its replies; see ``evaluation.replies.KINDS``."""
        return kinds_of(self.replies)

    @property
    def reward(self) -> float:
        """The sum of its rewards, penalties left out."""
        return float(sum(turn["reward"] for turn in self.turns))

    def prompt(self, place: int) -> Messages:
        """What the model was shown at a turn, as far as it is known.

        Args:
            place: The turn, from 0.
        """
        if self.asked is not None and place in self.asked:
            return self.asked[place]
        replies = [at for at, message in enumerate(self.chat) if message["role"] == "assistant"]
        return self.chat[: replies[place]] if place < len(replies) else ()
