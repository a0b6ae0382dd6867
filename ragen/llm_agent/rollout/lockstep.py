"""The ordinary loop: a turn of all environments together, then the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragen.llm_agent.rollout.growth import PromptWriter
from ragen.llm_agent.rollout.player import Rollout, RolloutLoop
from ragen.llm_agent.rollout.worker_modes import WorkerModes

Cache = dict[str, Any]


class LockstepLoop(RolloutLoop):
    """Every turn waits for the slowest reply and for the slowest environment."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.RolloutLoop`."""
        player, active = rollout.player, rollout.episodes
        modes = WorkerModes.of(player.generation, player.max_turn, rollout.meta_info)
        for turn in range(player.max_turn):
            rollout.tell_turn(turn, len(active))
            told = rollout.meta_info if modes is None else modes.of_turn(turn)
            playing, active = play_together(rollout, active, told)
            rollout.tell_over(playing, active if turn + 1 < player.max_turn else [])
            if not active:
                break
        if modes is not None:
            player.end_turns(modes)
        rollout.tell_turn(turn + 1, len(active))


def play_together(
    rollout: Rollout, active: Sequence[Cache], told: Mapping[str, Any]
) -> tuple[Sequence[Cache], Sequence[Cache]]:
    """Play a turn of some environments, branching first where the rollout does.

    Args:
        rollout: What is played.
        active: Those that go on.
        told: What the actor is told.

    Returns:
        Those that played it, who may be more, and those that go on.
    """
    player, es_manager = rollout.player, rollout.es_manager
    playing: Sequence[Cache] = active
    talks: PromptWriter = rollout.ctx_manager
    if rollout.growth is not None:
        with player.timed("environments"), player.timeline.lanes(es_manager.lane_stats):
            playing, talks = rollout.growth.begin_turn(active)
    return playing, player.play_turn(es_manager, talks, playing, told)
