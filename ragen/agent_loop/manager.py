"""The agent loop manager for verl's V1 trainer: verl's own, extended by RAGEN's parts of a training step.

verl loads the class in the trainer's process, by ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``. The
trainer has no hooks for these parts, so its methods are extended: :mod:`ragen.agent_loop.v1_trainer`.
"""

from __future__ import annotations

from typing import Any

from ragen.agent_loop.v1_trainer import extend
from ragen.extras import needs

with needs("verl", "verl's agent loop"):
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer


class RagenLoopManager(AgentLoopManagerTQ):
    """verl's manager; creating one extends the trainer's steps by RAGEN's parts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See ``AgentLoopManagerTQ``; nothing is added to its arguments."""
        super().__init__(*args, **kwargs)
        extend(PPOTrainer)
