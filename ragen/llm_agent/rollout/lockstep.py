"""The ordinary loop: a turn of all environments together, then the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragen.llm_agent.rollout.player import Rollout, RolloutLoop
from ragen.llm_agent.rollout.worker_modes import WorkerModes

Cache = dict[str, Any]
PlayTurn = Callable[[Sequence[Cache], Mapping[str, Any]], tuple[Sequence[Cache], Sequence[Cache]]]


class LockstepLoop(RolloutLoop):
    """Every turn waits for the slowest reply and for the slowest environment."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.RolloutLoop`."""

        def play_turn(active: Sequence[Cache], told: Mapping[str, Any]) -> tuple[Sequence[Cache], Sequence[Cache]]:
            return active, rollout.player.play_turn(rollout.es_manager, rollout.ctx_manager, active, told)

        play_in_lockstep(rollout, play_turn)


def play_in_lockstep(rollout: Rollout, play_turn: PlayTurn) -> None:
    """Play turns until no episode goes on, or there were as many as may be.

    Args:
        rollout: What is played.
        play_turn: Plays a turn of those that are active, with what the actor is told; gives those that played it, who
            may be more, and those that go on.
    """
    player, active = rollout.player, rollout.episodes
    modes = WorkerModes.of(player.generation, player.max_turn, rollout.meta_info)
    for turn in range(player.max_turn):
        rollout.tell_turn(turn, len(active))
        playing, active = play_turn(active, rollout.meta_info if modes is None else modes.of_turn(turn))
        rollout.tell_over(playing, active if turn + 1 < player.max_turn else [])
        if not active:
            break
    if modes is not None:
        player.end_turns(modes)
    rollout.tell_turn(turn + 1, len(active))
