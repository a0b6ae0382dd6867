"""Many CAGE 2 environments, in workers or in the main process, stepped by batches of actions.

    ParallelEnvWrapper    seeds, sums of rewards; arrays
          |
       SubEnvs            autoresets, processes, time-outs, failures; shared with gymnasium's vector environments

An episode's seed depends on the wrapper's seed, its number of resets, the environment's index and the episode's number,
and is sent with the turn that may end the previous episode. Results are therefore equal for any number of workers,
whether some are killed or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envlanes import EnvSpec, Mode, Settings, holds_interrupts
from envlanes.gym import GYM, GymResult, SubEnvs
from envlanes.ragen.seeds import checked_seed
from ragen.cage2.env import Cage2Config
from ragen.cage2.layout import N_ACTIONS
from ragen.errors import ConfigError, EnvError, InputError, StateError
from ragen.validity import ENV_ERROR, env_error

Infos = list[dict[str, Any]]
Stepped = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], Infos]


class ParallelEnvWrapper(SubEnvs):
    """Environments of CAGE Challenge 2, stepped together; a context manager, also closed when garbage collected.

    Attributes:
        n_envs: Number of environments.
        simulator: ``"embedded"`` or ``"cage2"``.
        config: The arguments of each environment.
        closed: Whether it is closed.
    """

    holder = "ParallelEnvWrapper"

    def __init__(
        self,
        n_envs: int = 25,
        scenario_path: str | os.PathLike[str] | None = None,
        red_agent_type: str | type = "RedMeanderAgent",
        *,
        max_steps: int = 100,
        simulator: str = "auto",
        cage2_path: str | os.PathLike[str] | None = None,
        seed: int = 0,
        workers: int | None = None,
        backend: str = "process",
        use_multiprocessing: Mode = "auto",
        step_timeout: float = 60.0,
        reset_timeout: float = 120.0,
    ) -> None:
        """Register the environments; each is built in its process at its first reset.

        Args:
            n_envs: Number of environments.
            scenario_path: See :class:`~ragen.cage2.env.Cage2Env`.
            red_agent_type: Red's class, or its name.
            max_steps: Number of steps after which an episode ends.
            simulator: ``"embedded"``, ``"cage2"``, or ``"auto"``: the user's own CAGE 2 if found.
            cage2_path: Path of the user's CAGE 2.
            seed: The seed from which all episodes' seeds are derived, at least 0.
            workers: Maximum number of workers; None for ``min(8, usable processors)``, 0 for none.
            backend: Kind of workers, ``"process"`` or ``"executor"``.
            use_multiprocessing: True, False, or ``"auto"``: workers if measurements show a gain.
            step_timeout: Seconds for one step of one environment, with the reset that may follow it.
            reset_timeout: Seconds for one reset of one environment.

        Raises:
            ConfigError, InputError: An argument is invalid, or the seed is; nothing was started.
        """
        if n_envs < 1:
            raise ConfigError(f"n_envs = {n_envs!r}: expected a number of environments, at least 1.")
        self.n_envs = n_envs
        self.config = Cage2Config(red_agent_type, max_steps, simulator, cage2_path, scenario_path)
        self.simulator = self.config.simulator
        settings = Settings(
            use_lanes=use_multiprocessing if workers != 0 else False,
            max_workers=workers or None,
            backend=backend,
            step_timeout=step_timeout,
            reset_timeout=reset_timeout,
        )
        specs = [EnvSpec.of(self.config, env_id=i, tag="cage2", game=GYM) for i in range(self.n_envs)]
        self._base = [
            checked_seed(seed, limit=None),
            -1,
        ]  # seeds of episodes depend on both: the seed, and the resets since it was set
        next_seed = partial(episode_seed, self._base)
        super().__init__(specs, settings, AutoresetMode.SAME_STEP, next_seed=next_seed)
        self._is_begun = False

    # Episodes

    @holds_interrupts
    def reset(self, seed: int | None = None) -> NDArray[np.float32]:
        """Begin new episodes in all environments.

        Args:
            seed: Replaces the wrapper's seed; None continues with new episodes of the current seed.

        Returns:
            Observations, ``(n_envs, 52)``.

        Raises:
            InputError: The seed is negative, or not an integer; nothing was reset.
            EnvError: An environment could not be reset, even after it was rebuilt.
        """
        self._check_open()
        before, rounds = self._base
        base = (before, rounds + 1) if seed is None else (checked_seed(seed, limit=None), 0)
        shown = self.reset_envs({i: episode_seed(base, i, 1) for i in range(self.n_envs)}, {})
        self._refuse_lost(each.info for each in shown.values())
        self._base[:] = base
        self._is_begun = True
        return np.array(self.last, np.float32)

    @holds_interrupts
    def step(self, actions: Sequence[int] | NDArray[Any]) -> Stepped:
        """Step all environments; one whose episode ends is reset at once.

        Args:
            actions: A number from 0 to 144 for each environment.

        Returns:
            Four values:

            - observations ``(n_envs, 52)`` float32: the first one of the next episode if one has ended;
            - rewards ``(n_envs,)`` float64;
            - dones ``(n_envs,)`` bool: whether the episode has ended;
            - a dict for each environment: ``compromised_before`` and ``compromised`` (five booleans each, of the
              episode that was stepped); where it ended also ``final_observation``, ``episode`` (``r`` return, ``l``
              steps), ``truncated``, and ``reset_info`` of the next one. An environment that failed twice is truncated
              with reward 0 and its last observation, and has ``env_error``, the reason, instead of ``episode``.

        Raises:
            InputError: The actions are invalid; nothing was stepped.
            StateError: There was no reset yet, or it is closed.
            EnvError: An environment failed, and could not be reset either: reset all of them.
        """
        self._check_open()
        if not self._is_begun:
            raise StateError("ParallelEnvWrapper was stepped before a reset that worked: call reset first.")
        chosen = np.asarray(actions)
        if chosen.shape != (self.n_envs,) or not np.isin(chosen, np.arange(N_ACTIONS)).all():
            raise InputError(f"actions = {actions!r}: expected {self.n_envs} numbers from 0 to {N_ACTIONS - 1}.")
        results = list(self.step_envs(dict(enumerate(chosen.tolist()))).values())
        self._refuse_lost(each.info if each.final is None else {} for each in results)
        rewards = np.array([each.reward for each in results], np.float64)
        dones = np.array([each.final is not None for each in results])
        return np.array(self.last, np.float32), rewards, dones, list(map(_info, results))

    def _refuse_lost(self, infos: Iterable[Mapping[str, Any]]) -> None:
        """Raise the failure of the first environment that has no episode; all have to be reset then."""
        for index, error in enumerate(map(env_error, infos)):
            if error is not None:
                self._is_begun = False
                raise EnvError(f"env {index} could not be reset: {error}")

    # Queries

    def get_true_states(self) -> list[dict[str, str]]:
        """Red's access to each host of each environment: ``"None"``, ``"User"`` or ``"Privileged"`` by host name."""
        self._check_open()
        return list(self._values_of(self.engine.read(range(self.n_envs), "access_levels")))


def _info(result: GymResult) -> dict[str, Any]:
    """The info of a step, and of the episode that it ended."""
    if result.final is None:
        return result.info
    unknown = (False,) * 5  # at its failure
    return {
        "compromised_before": unknown,
        "compromised": unknown,
        **result.final.info,
        "final_observation": result.final.observation,
        "truncated": True,
        "reset_info": {name: value for name, value in result.info.items() if name != ENV_ERROR},
    }


def episode_seed(base: Sequence[int], index: int, episode: int) -> int:
    """The seed of an episode, counted from 1, for the wrapper's seed and the number of resets since that was set."""
    seed, rounds = base
    return int(np.random.SeedSequence(seed, spawn_key=(rounds, index, episode)).generate_state(1)[0])
