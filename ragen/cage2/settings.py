"""The settings of a search: the keys of ``config/cage2/search.yaml``, with their defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ragen.cage2.workflow import DEFINITIONS
from ragen.config import Amount, Count, Natural, Section, Share, as_model, load_file
from ragen.files import config_directory

FREE = ("checkpoint_dir", "n_workflows", "workers", "use_multiprocessing", "cage2_path")
"""Settings that a resumed search may change: its folder, its length, and those that only affect speed."""


class SearchSettings(Section):
    """A search over workflows.

    Attributes:
        n_envs: Parallel environments per workflow; at least two, since the noise is estimated from their spread.
        n_workflows: Number of workflows to train.
        train_episodes_per_env: Maximum number of episodes per environment and workflow.
        max_steps: Steps of an episode.
        scenario_path: CAGE 2's scenario; None for Scenario2.
        red_agent_type: The attacker.
        alignment_alpha, alignment_beta: The reward for compliance; see :mod:`ragen.cage2.workflow`.
        gp_beta: Standard deviations that are added to an order's posterior mean.
        checkpoint_dir: The folder to write to and to resume from; a new one by default.
        compliance_threshold: A training ends early if the mean over environments of the last five episodes' compliance
            reaches it.
        min_episodes: Minimum number of episodes of each environment before that.
        update_every_steps: Steps of all environments for an update of the policy.
        compliance_definition: The fixes that comply.
        lr, gamma, k_epochs, eps_clip: Hyperparameters of PPO.
        seed: Seed of the whole search.
        simulator: "embedded", "cage2", or "auto": CAGE 2 if found.
        cage2_path: Path of CAGE 2.
        workers, use_multiprocessing: Placement of environments; see ``ParallelEnvWrapper``.
    """

    n_envs: Annotated[int, Field(ge=2)] = 25
    n_workflows: Count = 20
    train_episodes_per_env: Count = 50
    max_steps: Count = 100
    scenario_path: str | None = None
    red_agent_type: str = "RedMeanderAgent"
    alignment_alpha: Amount = 50.0
    alignment_beta: Amount = 50.0
    gp_beta: Amount = 2.0
    checkpoint_dir: str | None = None
    compliance_threshold: Share = 0.95
    min_episodes: Count = 10
    update_every_steps: Count = 25
    compliance_definition: Literal[DEFINITIONS] = "first_compromised"  # type: ignore[valid-type]
    lr: float = 0.002
    gamma: float = 0.99
    k_epochs: Count = 8
    eps_clip: float = 0.2
    seed: Natural = 0
    simulator: str = "auto"
    cage2_path: str | None = None
    workers: int | None = None
    use_multiprocessing: bool | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _some_update(self) -> SearchSettings:
        if self.update_every_steps > (steps := self.train_episodes_per_env * self.max_steps):
            raise ValueError(
                f"update_every_steps = {self.update_every_steps}: expected at most train_episodes_per_env * max_steps "
                f"= {steps}, else nothing is ever learnt."
            )
        return self

    def followed(self) -> dict[str, Any]:
        """The settings that determine the results, which a resumed search must share with the first one."""
        return {name: value for name, value in self if name not in FREE}


def load_settings(overrides: Sequence[str] = ()) -> SearchSettings:
    """The configuration of a search.

    Args:
        overrides: ``key=value``.

    Raises:
        ConfigError: There is no such key, or a value is invalid.
    """
    return as_model(SearchSettings, load_file(config_directory() / "cage2" / "search.yaml", overrides))
