"""Environments that cost a known amount, and a manager full of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ragen.env import BaseEnv

if TYPE_CHECKING:
    from ragen.llm_agent.es_manager import EnvStateManager

ROOM = "######\n#O____#\n#_####\n#X_###\n#_P_##\n######\n"


@cache
def _loops_per_second() -> float:
    start = time.thread_time()
    _loop(2_000_000)
    return 2_000_000 / (time.thread_time() - start)


def _loop(times: int) -> None:
    total = 0
    for number in range(times):
        total += number


def loops(microseconds: float) -> int:
    """Rounds of the loop that take this long on this machine, now; measured once and then given to all."""
    return round(microseconds * 1e-6 * _loops_per_second())


@dataclass
class WorkConfig:
    """The cost of a turn.

    Attributes:
        loops: Rounds of computing per turn.
        wait: Seconds of waiting per turn.
        reset_loops: Rounds of computing per reset.
    """

    loops: int = 0
    wait: float = 0.0
    reset_loops: int = 0


class Work(BaseEnv):
    """Computes or waits, and shows a small text."""

    config_class = WorkConfig
    uses_global_rng = False

    def __init__(self, config: WorkConfig) -> None:
        """Remember what to cost."""
        self.config = config
        self.turn = 0

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        """Cost a reset."""
        self.turn = 0
        _loop(self.config.reset_loops)
        return self.render()

    def save(self) -> int:
        """The turn, which is all that changes."""
        return self.turn

    def load(self, state: int) -> None:
        """Stand where another was saved."""
        self.turn = state

    def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:
        """Cost a turn."""
        self.turn += 1
        if self.config.wait:
            time.sleep(self.config.wait)
        _loop(self.config.loops)
        return self.render(), -0.1, False, {"action_is_effective": True, "action_is_valid": True, "success": False}

    def render(self, mode: str | None = None) -> str:
        """A text as long as a small Sokoban room."""
        return f"{ROOM}{self.turn}"


def configuration(envs: int, env_config: dict[str, Any], group_size: int = 8, **es_manager: Any) -> dict[str, Any]:
    """A configuration of one tag."""
    groups = envs // group_size
    return {
        "es_manager": {
            "crash_report_dir": None,
            "train": {
                "env_groups": groups,
                "group_size": group_size,
                "env_configs": {"tags": ["Work"], "n_groups": [groups]},
            },
            **es_manager,
        },
        "custom_envs": {"Work": {"env_type": "workload:Work", "max_actions_per_traj": 10**9, "env_config": env_config}},
        "seed": {"train": 10_000},
    }


def inputs(envs: int) -> list[dict[str, Any]]:
    """One action for each environment."""
    reply = {"llm_response": "<answer>Up</answer>", "llm_raw_response": "<answer>Up</answer>"}
    return [{"env_id": env_id, "actions": ["Up"], **reply} for env_id in range(envs)]


def manager(envs: int, env_config: dict[str, Any], **settings: Any) -> EnvStateManager:
    """A manager of such environments."""
    from ragen.llm_agent.es_manager import EnvStateManager  # late: workers import this module for its environment

    return EnvStateManager(configuration(envs, env_config, **settings))
