"""The ordinary loop: a turn of all environments together, then the next."""

from __future__ import annotations

from ragen.llm_agent.rollout.player import Rollout, RolloutLoop
from ragen.llm_agent.rollout.worker_modes import WorkerModes


class LockstepLoop(RolloutLoop):
    """Every turn waits for the slowest reply and for the slowest environment."""

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.RolloutLoop`."""
        player, active = rollout.player, rollout.episodes
        modes = WorkerModes.of(player.generation, player.max_turn, rollout.meta_info)
        for turn in range(player.max_turn):
            rollout.tell_turn(turn, len(active))
            told = rollout.meta_info if modes is None else modes.of_turn(turn)
            playing, active = active, player.play_turn(rollout.es_manager, rollout.ctx_manager, active, told)
            rollout.tell_over(playing, active if turn + 1 < player.max_turn else [])
            if not active:
                break
        if modes is not None:
            player.end_turns(modes)
        rollout.tell_turn(turn + 1, len(active))
