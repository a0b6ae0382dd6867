"""The settings of an environment manager, as its reader returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envlanes.episode.spec import EnvSpec
from envlanes.failures import OnFailure, ignore
from envlanes.ragen.metrics import RULES, Rules
from envlanes.settings import Settings


@dataclass(frozen=True)
class EnvEntry:
    """One environment to manage.

    Attributes:
        spec: How to build it.
        max_actions_per_traj: Maximum number of actions per episode.
    """

    spec: EnvSpec
    max_actions_per_traj: int


@dataclass(frozen=True)
class ManagerSettings:
    """The settings of an ``EnvStateManager``.

    Attributes:
        entries: The environments, by env_id.
        env_groups: Number of groups.
        group_size: Environments per group.
        group_numbers: Number of each group, which is added to the first seed: 0, 1, 2, .. unless some are left out.
        format_penalty: Added to ``penalty`` for a turn with invalid actions.
        base_seed: The mode's configured seed; None if there is none.
        engine: Placement, time-outs and handling of failures.
        env_state_hash: Whether each turn of a history has the hash of its initial state.
        rules: The generation of RAGEN whose histories and metrics are shown.
        journal: Folder of the journals from which a later process goes on; None for none.
    """

    entries: tuple[EnvEntry, ...]
    env_groups: int
    group_size: int
    group_numbers: tuple[int, ...]
    format_penalty: float
    base_seed: int | None
    engine: Settings
    env_state_hash: bool = False
    rules: Rules = RULES
    journal: str | None = None

    def about(self) -> dict[str, Any]:
        """What decides the environments, by tag."""
        return {
            f"custom_envs.{entry.spec.tag}": {
                "env_type": entry.spec.env_type,
                "env_config": entry.spec.env_config,
                "max_actions_per_traj": entry.max_actions_per_traj,
            }
            for entry in self.entries
        }

    def keep_failure(self) -> OnFailure:
        """A function that is called with each failure of an environment; its text is added to the message."""
        return ignore
