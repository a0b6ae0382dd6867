"""The settings of a search: the keys of ``config/cage2/search.yaml``, with their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragen import settings
from ragen.cage2.compliance import DEFINITIONS
from ragen.errors import ConfigError
from ragen.tracking import check_loggers

FREE = (
    *("checkpoint_dir", "n_workflows", "workers", "backend", "use_multiprocessing", "cage2_path"),
    *("logger", "project_name"),
)
"""What a search that goes on may have otherwise: where it lies, how long it is, and what only decides how fast."""


@dataclass(frozen=True)
class SearchSettings:
    """A search over workflows.

    Attributes:
        n_envs: Environments that play a workflow, side by side.
        n_workflows: How many workflows are trained.
        train_episodes_per_env: Episodes of each environment, at most, for a workflow.
        max_steps: Steps of an episode.
        scenario_path: CAGE 2's scenario; None for Scenario2.
        red_agent_type: Who attacks: the name of a class, or the class.
        alignment_alpha, alignment_beta: What keeping to the workflow is worth; see :mod:`ragen.cage2.compliance`.
        gp_beta: Standard deviations that are added to the mean of what is believed of an order.
        checkpoint_dir: Where everything is written, and gone on from; None for a new folder.
        compliance_threshold: A training ends early where the mean over environments of the last five episodes'
            compliance reaches it.
        min_episodes: But not before each environment has played so many.
        update_every_steps: Steps of all environments for an update of the policy.
        parallel_workflows: How many workflows are trained at once, in one set of environments.
        compliance_definition: Which fixes comply.
        lr, gamma, k_epochs, eps_clip: PPO's.
        seed: What everything follows from.
        simulator: "embedded", "cage2", or "auto": CAGE 2 where it is found.
        cage2_path: Where CAGE 2 lies.
        bugs: Whether the embedded one keeps the original's quirks: "faithful" or "fixed".
        workers, backend, use_multiprocessing: Where environments live; see ``ParallelEnvWrapper``.
        logger: Names of :data:`ragen.tracking.PACKAGES`; ``results.json`` is always written.
        project_name: For trackers.
        threads: Of torch; how a sum is split over them decides how it is rounded.
    """

    n_envs: int = 25
    n_workflows: int = 20
    train_episodes_per_env: int = 50
    max_steps: int = 100
    scenario_path: str | None = None
    red_agent_type: str = "RedMeanderAgent"
    alignment_alpha: float = 10.0
    alignment_beta: float = 10.0
    gp_beta: float = 2.0
    checkpoint_dir: str | None = None
    compliance_threshold: float = 0.95
    min_episodes: int = 10
    update_every_steps: int = 100
    parallel_workflows: int = 1
    compliance_definition: str = "first_compromised"
    lr: float = 0.002
    gamma: float = 0.99
    k_epochs: int = 4
    eps_clip: float = 0.2
    seed: int = 0
    simulator: str = "auto"
    cage2_path: str | None = None
    bugs: str = "faithful"
    workers: int | None = None
    backend: str = "process"
    use_multiprocessing: bool | str = "auto"
    threads: int = 1
    logger: list[str] = field(default_factory=list)
    project_name: str = "ragen"

    def __post_init__(self) -> None:
        """Check what could not work.

        Raises:
            ConfigError: A value is out of range, or there is no such logger.
        """
        check_loggers(self.logger, "logger")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected an integer of at least 1.")
        if self.n_envs < 2:
            raise ConfigError("n_envs = 1: expected at least 2, since the noise of a result is its spread over them.")
        if self.seed < 0:
            raise ConfigError(f"seed = {self.seed}: expected an integer of at least 0.")
        if not 0 <= self.compliance_threshold <= 1:
            raise ConfigError(f"compliance_threshold = {self.compliance_threshold}: expected a share, 0 to 1.")
        for name in ("gp_beta", "alignment_alpha", "alignment_beta"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a number of at least 0.")
        if self.compliance_definition not in DEFINITIONS:
            choices = ", ".join(DEFINITIONS)
            raise ConfigError(f"compliance_definition = {self.compliance_definition!r}: expected one of {choices}.")
        if self.use_multiprocessing not in (True, False, "auto"):
            raise ConfigError(f"use_multiprocessing = {self.use_multiprocessing!r}: expected true, false or 'auto'.")
        steps = self.train_episodes_per_env * self.max_steps
        if self.update_every_steps > steps:
            raise ConfigError(
                f"update_every_steps = {self.update_every_steps}: expected at most train_episodes_per_env * max_steps "
                f"= {steps}, else nothing is ever learnt."
            )

    def followed(self) -> dict[str, Any]:
        """What results follow from: all that a search which goes on must have in common with the one before."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in FREE}


_AT_LEAST_ONE = (
    *("n_envs", "n_workflows", "train_episodes_per_env", "max_steps", "min_episodes", "update_every_steps"),
    *("parallel_workflows", "k_epochs", "threads"),
)


def load_settings(overrides: Sequence[str] = ()) -> SearchSettings:
    """The configuration of a search.

    Args:
        overrides: ``key=value``.

    Raises:
        ConfigError: There is no such key, or a value cannot work.
    """
    return settings.load_settings(SearchSettings, settings.config_directory() / "cage2" / "search.yaml", overrides)


def settings_of(values: Mapping[str, Any]) -> SearchSettings:
    """Settings from keys and values; who attacks may be a class.

    Raises:
        ConfigError: There is no such key, or a value cannot work.
    """
    red = values.get("red_agent_type")
    return settings.settings_of(
        SearchSettings, {**values, "red_agent_type": red.__name__} if isinstance(red, type) else values
    )
