"""RAGEN-compatible environments, and rollouts that step them in worker processes.

There are three layers, and imports only point down: ``ragen.llm_agent`` (prompts, models, ``DataProto``) uses
``envlanes`` (processes, time-outs, failures), which uses ``ragen.env`` (environments). Importing ``ragen`` itself
imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.config import load_config
    from ragen.llm_agent.es_manager import EnvStateManager
    from ragen.vector import LaneVectorEnv

__all__ = ["EnvStateManager", "LaneVectorEnv", "load_config"]

__getattr__, __dir__ = attach(
    __name__, {"EnvStateManager": "llm_agent.es_manager", "LaneVectorEnv": "vector", "load_config": "config"}
)

__version__ = "0.2.0"
