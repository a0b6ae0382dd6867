"""Environments in groups that are stepped together: takes a list of actions, and returns lists of results.

    envs = MultiProcessEnvironmentContainer("sokoban", env_num=4, group_n=8, seed=42)
    observations, infos = envs.reset()                         # 32 each; groups of 8 begin with the same level
    observations, rewards, dones, infos = envs.step([1] * 32)  # one action each: 1 is up

Environments live in workers of :class:`~envlanes.engine.Engine`, many per worker process rather than one
process each; there are no pipes to access. Results do not depend on where environments live, nor on killed workers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from envlanes.env_set import EnvSet
from envlanes.environments import EnvFailed
from envlanes.episode.values import copied
from envlanes.interrupts import holds_interrupts
from envlanes.ragen.seeds import checked_seed, group_seeds
from envlanes.settings import Settings
from ragen.env.base import BaseLanguageBasedEnv
from ragen.errors import InputError, StateError
from ragen.llm_agent.environments import ManagerConfig, read_config
from ragen.llm_agent.prompts.replies import NO_MOVE
from ragen.turns.game import ACTIONS, ActionResult, Observed
from ragen.validity import is_valid


def to_numpy(data: Any) -> np.ndarray:
    """A tensor, array, number, flag or list as an array; a number becomes an array without dimensions.

    Raises:
        InputError: It is of another type.
    """
    if hasattr(data, "detach"):  # a torch tensor, wherever it is
        data = data.detach().cpu().numpy()
    if not isinstance(data, np.ndarray | np.generic | list | tuple | int | float):
        raise InputError(f"{type(data).__name__} cannot be made an array; expected a tensor, array, number or list.")
    return np.asarray(data)


def one_each(what: str, values: Any, count: int) -> Sequence[Any]:
    """Values for environments, one for each.

    Raises:
        InputError: There are more or fewer.
    """
    if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != count:
        raise InputError(f"{what} = {values!r}: expected one for each of {count} environments.")
    return list(values)


class EnvironmentContainer(EnvSet):
    """Environments of one or several types, in groups of equal size; a context manager.

    Attributes:
        env_num: Number of groups.
        group_n: Environments of a group; environment ``i`` is in group ``i // group_n``.
        num_processes: Number of environments. (The name comes from containers with one process per environment.)
        seed: Seed of the first group at the first reset.
        is_train: Whether later resets use new seeds instead of the same ones.
        specs: The specification of each environment, with its ``env_type``, ``tag`` and ``config``.
        seed_counter: The offset of the seeds; set it to resume a run.
    """

    holder = "container"

    def __init__(self, read: ManagerConfig, seed: int, *, is_train: bool = True) -> None:
        """Register the environments; the first reset builds them.

        Args:
            read: The environments, groups one after the other, and the engine's settings. The last action that
                ``max_actions_per_traj`` allows ends an episode with ``info["truncated"]``.
            seed: Seed of the first group; each further group's is one higher.
            is_train: Whether later resets use new seeds; also sets the ``mode`` of resets.
        """
        self.group_n, self.env_num, self.num_processes = read.group_size, read.env_groups, len(read.entries)
        self.seed, self.is_train, self.seed_counter = checked_seed(seed), is_train, 0
        self.specs = [replace(entry.spec, game=ACTIONS) for entry in read.entries]
        self._groups = [number for number in read.group_numbers for _ in range(read.group_size)]
        self._limits = [entry.max_actions_per_traj for entry in read.entries]
        self._shown: list[Observed] = []
        self._left: list[int] = []  # actions until each episode ends
        self._hold(self.specs, read.engine, on_failure=read.keep_failure())

    # Episodes

    @holds_interrupts
    def reset(
        self,
        seeds: Sequence[int] | None = None,
        options: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Begin a new episode in every environment.

        Args:
            seeds: One for each environment. None uses ``seed + i // group_n`` at the first reset; at later ones
                ``env_num`` more each time in training, and the same again otherwise. A reset with given seeds does not
                advance the offset.
            options: Further arguments of ``reset`` for each environment, if it accepts them; ``seed`` among them is its
                seed.

        Returns:
            Observations and infos, one for each environment; the info is empty if the environment returns none.

        Raises:
            InputError: There are too few or too many seeds or options, or a seed is invalid; nothing was reset.
            EnvError: An environment could not be built, or failed with ``on_env_failure="raise"``.
        """
        self._check_open()
        advances = seeds is None and self.is_train
        if seeds is None:
            seeds = group_seeds(self.seed + self.seed_counter, self._groups)
        chosen = dict(enumerate(map(checked_seed, one_each("seeds", seeds, len(self)))))
        given = one_each("options", [None] * len(self) if options is None else options, len(self))
        own = {i: {"mode": "train" if self.is_train else "val", **(each or {})} for i, each in enumerate(given)}
        self._shown = []
        found = self._engine.reset(chosen, own_options=own)
        self._raise_failures(found, at_build=True)
        self._shown, self._left = [Observed("", {}, [], {})] * len(self), list(self._limits)
        for i, shown in found.items():
            self._take(i, shown)
        self.seed_counter += advances * self.env_num
        return [copied(each.raw) for each in self._shown], [dict(each.info) for each in self._shown]

    def _take(self, i: int, shown: Observed | EnvFailed) -> None:
        if isinstance(shown, EnvFailed):
            self._left[i] = 0
            shown = self._shown[i]._replace(info={"env_error": shown.text, "error": shown.text})
        self._shown[i] = shown

    @holds_interrupts
    def step(self, actions: Sequence[Any]) -> tuple[list[Any], list[float], list[bool], list[dict[str, Any]]]:
        """Execute exactly one action in each environment.

        Args:
            actions: For each environment, the key or text for its ``step``. None skips an environment, as does
                :data:`NO_MOVE` if 0 is not a key: its result is its last observation, 0.0, whether it is over, and an
                empty info.

        Returns:
            Observations, rewards, dones and infos. A finished environment is not stepped: its result is its last
            observation, 0.0, True and its last info with ``finished``. The same holds for one that has failed for good,
            with ``env_error`` and ``error`` in its info.

        Raises:
            InputError: There are too few or too many actions, or one cannot be executed; nothing was stepped.
            StateError: There was no reset yet.
            EnvError, LaneError: An environment failed with ``on_env_failure="raise"``; all others were stepped.
        """
        self._check_reset()
        asked = enumerate(one_each("actions", actions, len(self)))
        keys = {i: key for i, action in asked if self._left[i] and (key := self._key(i, action)) is not None}
        results: dict[int, ActionResult | EnvFailed] = self._engine.play(keys) if keys else {}
        rewards = [0.0] * len(self)
        both = zip(self._shown, self._left, strict=True)
        infos: list[dict[str, Any]] = [{} if left else {**each.info, "finished": True} for each, left in both]
        for i, result in results.items():
            if isinstance(result, EnvFailed):
                self._take(i, result)
            else:
                rewards[i], self._left[i] = result.reward, 0 if result.done else self._left[i] - 1
                if not (result.done or self._left[i]):
                    result.observation.info["truncated"] = True
                self._take(i, result.observation)
            infos[i] = dict(self._shown[i].info)
        self._raise_failures(results)
        return [copied(each.raw) for each in self._shown], rewards, [left == 0 for left in self._left], infos

    # Queries

    def render(self, mode: str | None = "text") -> list[Any]:
        """The rendering of all environments; of one that has failed, its last observation.

        Args:
            mode: Passed to ``render``.

        Raises:
            StateError: There was no reset yet.
            EnvError: An environment cannot render in this mode.
        """
        self._check_reset()
        shown = self._engine.read([i for i, each in enumerate(self._shown) if is_valid(each.info)], "render", mode)
        self._values_of(shown)
        return [shown.get(i, each.raw) for i, each in enumerate(self._shown)]

    def get_available_actions(self) -> list[list[Any]]:
        """The available actions of each environment: keys, texts, or empty if it accepts any text."""
        self._check_reset()
        return [list(each.actions) for each in self._shown]

    def action_names(self) -> list[dict[Any, str]]:
        """The name of each key, for each environment; a bandit's depend on its seed. Empty where actions are text."""
        self._check_reset()
        return [dict(each.names) for each in self._shown]

    def __len__(self) -> int:
        return self.num_processes

    # Checks

    def _check_reset(self) -> None:
        self._check_open()
        if not self._shown:
            raise StateError("there is no episode yet, or the last reset failed; call reset() first.")

    def _key(self, i: int, action: Any) -> Any:
        """The key or text for the environment's ``step``; None for no action."""
        action = action.item() if isinstance(action, np.generic) else action
        spec, names = self.specs[i], self._shown[i].names
        said = type(action), action  # True is no 1
        if action is None or said in [(type(key), key) for key in names]:
            return action
        if names and said == (int, NO_MOVE):
            return None
        if names or (issubclass(spec.env_class, BaseLanguageBasedEnv) and not isinstance(action, str)):
            raise InputError(
                f"{spec.describe()} has no action {action!r}; expected {names or 'text'}. Nothing was stepped."
            )
        return action


class MultiProcessEnvironmentContainer(EnvironmentContainer):
    """Environments of one type.

    Attributes:
        env_type: Its name.
    """

    def __init__(
        self,
        env_type: str,
        env_num: int,
        group_n: int,
        seed: int,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        is_train: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Check everything; the first reset builds the environments.

        Args:
            env_type: A registered name, or ``"package.module:Class"``.
            env_num: Number of groups.
            group_n: Environments per group; they share the seeds of their episodes.
            seed: Seed of the first group; each further group's is one higher.
            env_kwargs: Fields of the type's configuration.
            is_train: Whether later resets use new seeds.
            settings: Keywords of :class:`~envlanes.settings.Settings`: placement of environments and treatment of
                failures, such as ``{"use_lanes": True, "max_workers": 4}``.

        Raises:
            UnknownEnvError: There is no such type.
            ConfigError: A number or field is invalid; the message names it.
        """
        self.env_type = env_type
        groups = {"env_groups": env_num, "group_size": group_n, "env_configs": {"tags": [env_type]}}
        entry = {"env_type": env_type, "env_config": dict(env_kwargs or {}), "max_actions_per_traj": sys.maxsize}
        read = read_config({"es_manager": {"train": groups}, "custom_envs": {env_type: entry}}, "train")
        super().__init__(replace(read, engine=Settings.of(**(settings or {}))), seed, is_train=is_train)
