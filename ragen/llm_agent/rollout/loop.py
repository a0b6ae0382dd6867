"""A rollout as a value, and what plays it: a loop, which says how the turns of many environments follow on one another.

A loop is given the player for the time of a rollout, and keeps none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.es_manager import EnvStateManager
    from ragen.llm_agent.rollout.player import RolloutPlayer
    from ragen.llm_agent.rollout.trees import Growth

TurnCallback = Callable[[int, int], None]
OverCallback = Callable[[list[dict[str, Any]]], None]


@dataclass(frozen=True)
class Rollout:
    """One rollout: whose parts play it, what is played, and who is told.

    Attributes:
        player: Its ``failures`` and ``timeline`` are told what happens.
        es_manager: The environments, as :meth:`RolloutLoop.new_es_manager` made them.
        ctx_manager: Writes their prompts and reads the replies.
        episodes: The caches of those that play; they were just reset.
        meta_info: See :meth:`~ragen.llm_agent.rollout.player.RolloutPlayer.play`, as for the rest.
        on_turn: See there.
        on_over: See there; of trees, it is told when a whole one is over, its root last.
        growth: How its episodes branch; None where they are chains.
    """

    player: RolloutPlayer
    es_manager: EnvStateManager
    ctx_manager: ContextManager
    episodes: Sequence[dict[str, Any]]
    meta_info: Mapping[str, Any]
    on_turn: TurnCallback | None = None
    on_over: OverCallback | None = None
    growth: Growth | None = None

    def tell_turn(self, turn: int, active: int) -> None:
        """Tell ``on_turn`` which turn comes next, and how many environments are active."""
        if self.on_turn is not None:
            self.on_turn(turn, active)

    def tell_over(self, playing: Sequence[dict[str, Any]], active: Sequence[dict[str, Any]]) -> None:
        """Tell ``on_over`` of the episodes that were played until now and are not any more."""
        if self.on_over is not None:
            with self.player.timed("environments"):
                states = self.over(playing, active)
            self.on_over(states)

    def over(self, playing: Sequence[dict[str, Any]], active: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The states of the episodes that were played until now and are not any more."""
        going_on = {cache["env_id"] for cache in active}
        over = [cache["env_id"] for cache in playing if cache["env_id"] not in going_on]
        if self.growth is not None:
            over = self.growth.whole(over, going_on)
        return self.es_manager.episode_states(over) if over else []


class RolloutLoop(ABC):
    """How the turns of many environments follow on one another."""

    def new_es_manager(self, config: Any, mode: str) -> EnvStateManager:
        """The environments of a mode, in the form in which this loop steps them."""
        from ragen.llm_agent.es_manager import EnvStateManager

        return EnvStateManager(config, mode=mode)

    @abstractmethod
    def play(self, rollout: Rollout) -> None:
        """Play a rollout's episodes to their end."""
