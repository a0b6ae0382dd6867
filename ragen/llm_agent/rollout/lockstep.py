"""The ordinary loop: a turn of all environments together, then the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragen.llm_agent.rollout.player import OverCallback, RolloutPlayer, TurnCallback
from ragen.llm_agent.rollout.worker_modes import WorkerModes

if TYPE_CHECKING:
    from ragen.llm_agent.es_manager import EnvStateManager


class LockstepLoop:
    """Every turn waits for the slowest reply and for the slowest environment."""

    def new_es_manager(self, config: Any, mode: str) -> EnvStateManager:
        """See :class:`~ragen.llm_agent.rollout.player.RolloutLoop`."""
        from ragen.llm_agent.es_manager import EnvStateManager

        return EnvStateManager(config, mode=mode)

    def play(
        self,
        player: RolloutPlayer,
        val: bool,
        active: Sequence[dict[str, Any]],
        meta_info: Mapping[str, Any],
        on_turn: TurnCallback | None,
        on_over: OverCallback | None,
    ) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.RolloutLoop`."""
        es_manager, ctx_manager = player.prepare(val)
        modes = WorkerModes.of(player.generation, player.max_turn, meta_info)
        for turn in range(player.max_turn):
            if on_turn is not None:
                on_turn(turn, len(active))
            told = meta_info if modes is None else modes.of_turn(turn)
            playing, active = active, player.play_turn(es_manager, ctx_manager, active, told)
            if on_over is not None:
                on_over(player.over(es_manager, playing, active if turn + 1 < player.max_turn else []))
            if not active:
                break
        if modes is not None:
            player.end_turns(modes)
        if on_turn is not None:
            on_turn(turn + 1, len(active))
