"""Meta reinforcement learning: rollouts over many tasks, collected from environments in workers.

    from ragen.meta import Learner, MemoryAgent, make_env, make_parallel_env

    env = make_env("ragen/PointRobot-v0", episodes_per_task=2, seed=0, n_tasks=40)
    learner = Learner(MemoryAgent.of(env), env, seed=0)
    with make_parallel_env("ragen/PointRobot-v0", 2, num_workers=8, seed=0, n_tasks=40) as parallel_env:
        steps = learner.collect_rollouts_parallel(64, parallel_env=parallel_env)

Tasks are sampled once, in the main process, and sent as parameters in ``reset(options={"task": ...})``. The task of a
rollout, the seed of its environment and the noise of its agent depend only on the learner's seed and the rollout's
index, so that the buffer is the same, bit for bit, for any number of environments and workers, killed or not.

Reading order: ``tasks`` (environments and their tasks), ``varibad`` (k episodes as one), ``manager``, ``learner``. Only
``agents`` and ``learner`` import torch. ``examples/rl2.py`` trains an agent on the rollouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.meta.agents import AGENT_ARCHS, MarkovAgent, MemoryAgent, MemoryMarkovAgent
    from ragen.meta.learner import Learner
    from ragen.meta.making import make_env, make_parallel_env
    from ragen.meta.manager import ParallelEnvManager
    from ragen.meta.varibad import VariBadWrapper

__all__ = [
    "AGENT_ARCHS",
    "Learner",
    "MarkovAgent",
    "MemoryAgent",
    "MemoryMarkovAgent",
    "ParallelEnvManager",
    "VariBadWrapper",
    "make_env",
    "make_parallel_env",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("AGENT_ARCHS", "MarkovAgent", "MemoryAgent", "MemoryMarkovAgent"), "agents"),
        **dict.fromkeys(("make_env", "make_parallel_env"), "making"),
        "Learner": "learner",
        "ParallelEnvManager": "manager",
        "VariBadWrapper": "varibad",
    },
)
