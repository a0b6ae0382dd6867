"""CAGE Challenge 2: an environment, many of them in workers, and a search over orders of defending a network.

    from ragen.cage2 import ParallelEnvWrapper

    with ParallelEnvWrapper(n_envs=25, red_agent_type="RedMeanderAgent", seed=0) as envs:
        observations = envs.reset()
        observations, rewards, dones, infos = envs.step(actions)

Reading order: ``layout`` (hosts, actions, observation), ``simulator`` (the network and both sides, as tables), ``real``
(the user's own CAGE 2), ``env`` (either of them as a gymnasium environment), ``wrapper`` (many in workers); then
``workflow`` (orders, and how far a defender complies with one), ``ppo``, ``order_search`` and ``trainer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.cage2.buffer import ParallelTrajectoryBuffer
    from ragen.cage2.env import Cage2Env
    from ragen.cage2.layout import WORKFLOW_TYPES
    from ragen.cage2.ppo import ParallelOrderConditionedPPO
    from ragen.cage2.trainer import ParallelWorkflowRLTrainer
    from ragen.cage2.workflow import WorkflowManager
    from ragen.cage2.wrapper import ParallelEnvWrapper

__all__ = [
    "WORKFLOW_TYPES",
    "Cage2Env",
    "ParallelEnvWrapper",
    "ParallelOrderConditionedPPO",
    "ParallelTrajectoryBuffer",
    "ParallelWorkflowRLTrainer",
    "WorkflowManager",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "WORKFLOW_TYPES": "layout",
        "Cage2Env": "env",
        "ParallelEnvWrapper": "wrapper",
        "ParallelOrderConditionedPPO": "ppo",
        "ParallelTrajectoryBuffer": "buffer",
        "ParallelWorkflowRLTrainer": "trainer",
        "WorkflowManager": "workflow",
    },
)
