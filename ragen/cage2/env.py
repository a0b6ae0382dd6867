"""CAGE Challenge 2 as a gymnasium environment, on the embedded simulator or on the user's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envlanes.ragen.step import checked_reward
from ragen.cage2 import real
from ragen.cage2.layout import ACCESS_LEVELS, HOSTS, N_ACTIONS, N_BITS, compromised_types
from ragen.cage2.simulator import EmbeddedGame
from ragen.errors import ConfigError, EpisodeOverError, InputError

Observation = NDArray[np.float32]

SIMULATORS = ("auto", "embedded", "cage2")


@dataclass(unsafe_hash=True)  # the engine counts builders
class Cage2Config:
    """The arguments of an environment, which are checked and then sent to workers.

    Attributes:
        red_agent: Red's strategy: ``"b_line"``, ``"meander"`` or ``"sleep"``, or CAGE 2's class of it, or its name;
            then a key of :data:`ragen.cage2.real.CLASSES`.
        max_steps: Number of steps after which an episode is truncated.
        simulator: ``"embedded"``, ``"cage2"`` (the user's own), or ``"auto"``: the user's own if found; then which.
        cage2_path: Its path, see :func:`ragen.cage2.real.find`; then the folder of its package.
        scenario_path: A scenario file for it, with the hosts and actions of the second.

    Raises:
        ConfigError: A value is invalid; the message names it and what was expected.
    """

    red_agent: Any = "meander"
    max_steps: int = 100
    simulator: str = "auto"
    cage2_path: str | os.PathLike[str] | None = None
    scenario_path: Any = None

    # attributes that the engine reads from a builder
    uses_global_rng: ClassVar[bool] = False
    preload: ClassVar[tuple[str, ...]] = ("gymnasium", __name__)

    def __post_init__(self) -> None:
        names = {name: key for key, each in real.CLASSES.items() for name in (key, each)}
        name = getattr(self.red_agent, "__name__", self.red_agent)
        if name not in names:
            raise ConfigError(f"red_agent (red_agent_type) = {name!r}: expected one of {', '.join(names)}.")
        if self.simulator not in SIMULATORS:
            raise ConfigError(f"simulator = {self.simulator!r}: expected one of {', '.join(SIMULATORS)}.")
        if self.max_steps < 1:
            raise ConfigError(f"max_steps = {self.max_steps!r}: expected a number of steps, at least 1.")
        self.red_agent = names[name]
        self.cage2_path = None if self.simulator == "embedded" else real.find(self.cage2_path)
        if self.simulator == "cage2" and self.cage2_path is None:
            raise ConfigError(
                "simulator = 'cage2', and CAGE Challenge 2 is not here: give cage2_path or set the environment "
                f"variable {real.ENV_VAR} to a checkout of cage-challenge/cage-challenge-2, or take "
                "simulator = 'embedded'."
            )
        self.simulator = "embedded" if self.cage2_path is None else "cage2"
        if self.scenario_path is not None:
            scenario = self.scenario_path = Path(self.scenario_path).expanduser().resolve()
            if not (scenario.is_file() if self.cage2_path else scenario.name == real.SCENARIO.name):
                raise ConfigError(
                    f"scenario_path = {str(scenario)!r}: expected a file for CAGE 2 itself (simulator = 'cage2'); the "
                    f"embedded simulator plays {real.SCENARIO.name} alone."
                )

    def __call__(self) -> Cage2Env:
        """Build an environment."""
        return Cage2Env(config=self)


class Cage2Env(gymnasium.Env[Observation, Any]):
    """Blue defends a network of 13 hosts.

    Observations are ``(52,)`` float32 of 0 and 1, actions ``0`` to ``144`` (:mod:`ragen.cage2.layout`), rewards at
    most 0. Episodes never terminate; they are truncated after ``max_steps``. ``info`` of a reset and of a step has

    - ``compromised``: five booleans, whether Red has a session on a host of each of
      :data:`~ragen.cage2.layout.WORKFLOW_TYPES`, not counting its first one on User0;
    - ``compromised_before``: the same before the action (steps only);
    - ``episode``: return ``r`` and steps ``l`` of the episode (its last step only).

    Attributes:
        config: Its arguments.
        game: The game.
        simulator: ``"embedded"`` or ``"cage2"``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (as gymnasium declares it)
    uses_global_rng = False

    def __init__(self, *given: Any, config: Cage2Config | None = None, **named: Any) -> None:
        """Build it.

        Args:
            given: The arguments of :class:`Cage2Config`, as ``named``.
            config: The checked arguments, instead of all others.
            named: Likewise.

        Raises:
            ConfigError: An argument is invalid.
        """
        self.config = config or Cage2Config(*given, **named)
        self.simulator = self.config.simulator
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (N_BITS,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(N_ACTIONS)
        path, red = self.config.cage2_path, self.config.red_agent
        self.game: Any = real.Cage2Game(Path(path), red, self.config.scenario_path) if path else EmbeddedGame(red)
        self._steps = self.config.max_steps  # until its first reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Determines the episode together with the actions; None continues with the environment's generator.
            options: Ignored.
        """
        super().reset(seed=seed)
        bits = self.game.reset(int(self.np_random.integers(2**31)))
        self._steps, self._return, self._compromised = 0, 0.0, compromised_types(self.game.levels())
        return np.array(bits, np.float32), {"compromised": self._compromised}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play a step.

        Args:
            action: 0 to 144.

        Raises:
            InputError: There is no such action.
            EpisodeOverError: The episode is over, or has not begun.
            ReturnError: The reward is not a finite number.
        """
        if self._steps >= self.config.max_steps:
            raise EpisodeOverError("Cage2Env's episode is over, or has not begun: call reset first.")
        if action not in range(N_ACTIONS):
            raise InputError(f"action = {action!r}: expected a whole number from 0 to {N_ACTIONS - 1}.")
        before = self._compromised
        bits, reward = self.game.step(int(action))
        self._return += checked_reward(self, reward)
        self._steps += 1
        self._compromised = compromised_types(self.game.levels())
        info: dict[str, Any] = {"compromised_before": before, "compromised": self._compromised}
        if is_over := self._steps >= self.config.max_steps:
            info["episode"] = {"r": self._return, "l": self._steps}
        return np.array(bits, np.float32), reward, False, is_over, info

    def access_levels(self) -> dict[str, str]:
        """Red's access to each host: ``"None"``, ``"User"`` or ``"Privileged"`` by host name."""
        return {name: ACCESS_LEVELS[level] for name, level in zip(HOSTS, self.game.levels(), strict=True)}
