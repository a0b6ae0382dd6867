"""``LLMAgentProxy``: a player whose loop the configuration chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.rollout.lockstep import LockstepLoop
from ragen.llm_agent.rollout.player import RolloutPlayer

if TYPE_CHECKING:
    from ragen.llm_agent.rollout.overlapping import OverlappingLoop


class LLMAgentProxy(RolloutPlayer):
    """Plays rollouts by the loop that ``agent_proxy.use_parallel_rollout`` names.

    A context manager; ``close`` may be called twice. The rest of its attributes are those of
    :class:`~ragen.llm_agent.rollout.player.RolloutPlayer`.

    Attributes:
        parallel: The loop, where ``agent_proxy.use_parallel_rollout`` is true; else None.
    """

    def __init__(self, config: Any, actor_rollout_wg: Any, tokenizer: Any) -> None:
        """Take the parts; the managers of a mode are made when they are first needed.

        Args:
            config: The whole configuration.
            actor_rollout_wg: A :class:`~ragen.llm_agent.backends.Backend`, or anything with
                ``generate_sequences(DataProto) -> DataProto``, such as a verl worker group or RAGEN's wrappers.
            tokenizer: The actor's tokenizer.

        Raises:
            ConfigError: ``agent_proxy.max_turn`` is missing or less than 1, or a key of parallel rollouts cannot work.
        """
        self.parallel = _overlapping(config)
        super().__init__(config, actor_rollout_wg, tokenizer, self.parallel or LockstepLoop())


def _overlapping(config: Any) -> OverlappingLoop | None:
    """The loop whose turns overlap, where the configuration wants it; it imports more than the other."""
    if not setting(config, "agent_proxy.use_parallel_rollout", bool, False):
        return None
    from ragen.llm_agent.rollout.overlapping import OverlappingLoop

    return OverlappingLoop(config)
