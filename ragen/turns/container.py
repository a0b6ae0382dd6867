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
        return data.detach().cpu().numpy()
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, list | tuple | int | float | bool | np.generic):
        return np.array(data)
    raise InputError(f"{type(data).__name__} cannot be made an array; expected a tensor, array, number or list.")


class EnvironmentContainer(EnvSet):
    """Environments of one or several types, in groups of equal size; a context manager.

    Attributes:
        env_num: Number of groups.
        group_n: Environments of a group; environment ``i`` is in group ``i // group_n``.
        num_processes: Number of environments. (The name comes from containers with one process per environment.)
        seed: Seed of the first group at the first reset.
        is_train: Whether later resets use new seeds instead of the same ones.
        env_types: The type of each environment.
        tags: The tag of each environment.
        configs: The configuration of each environment.
        seed_counter: The offset of the seeds; set it to resume a run.
    """

    holder = "container"

    def __init__(
        self, read: ManagerConfig, seed: int, *, is_train: bool = True, settings: Settings | None = None
    ) -> None:
        """Register the environments; the first reset builds them.

        Args:
            read: The environments, groups one after the other. The last action that ``max_actions_per_traj`` allows
                ends an episode with ``info["truncated"]``.
            seed: Seed of the first group; each further group's is one higher.
            is_train: Whether later resets use new seeds; also sets the ``mode`` of resets.
            settings: Placement of environments, time-outs, and the treatment of failures; None for the configured ones.
        """
        self.group_n, self.env_num, self.num_processes = read.group_size, read.env_groups, len(read.entries)
        self.seed, self.is_train = checked_seed(seed), is_train
        self._specs = [replace(entry.spec, game=ACTIONS) for entry in read.entries]
        self._numbers = [number for number in read.group_numbers for _ in range(read.group_size)]
        self._limits = [entry.max_actions_per_traj for entry in read.entries]
        self.env_types, self.tags = [spec.env_type for spec in self._specs], [spec.tag for spec in self._specs]
        self.configs = [spec.config for spec in self._specs]
        self._hold(self._specs, settings or read.engine, on_failure=read.keep_failure())
        self._shown: list[Observed] = []
        self.seed_counter = 0

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
        given = self._one_each("options", [None] * len(self) if options is None else options)
        if counts := seeds is None:
            seeds = group_seeds(self.seed + self.seed_counter, self._numbers)
        chosen = dict(enumerate(self._one_each("seeds", seeds)))
        own = {i: {"mode": "train" if self.is_train else "val", **(each or {})} for i, each in enumerate(given)}
        chosen = {i: checked_seed(own[i].pop("seed", seed)) for i, seed in chosen.items()}
        self._shown = []
        shown = self._engine.reset(chosen, own_options=own)
        self._raise_failures(shown, at_build=True)
        self._shown, self._done = [Observed("", {}, [], {})] * len(self), [False] * len(self)
        self._played = [0] * len(self)
        for i, each in shown.items():
            self._take(i, each)
        if counts and self.is_train:
            self.seed_counter += self.env_num
        return [copied(each.raw) for each in self._shown], [dict(each.info) for each in self._shown]

    def _take(self, i: int, shown: Observed | EnvFailed, done: bool = False) -> None:
        self._done[i] = done or isinstance(shown, EnvFailed)
        if isinstance(shown, EnvFailed):
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
        actions = self._one_each("actions", actions)
        keys = {i: self._key(i, action) for i, action in enumerate(actions) if not self._done[i]}
        asked = {i: key for i, key in keys.items() if key is not None}
        results = self._engine.play(asked) if asked else {}
        answers = [self._answer(i, results.get(i)) for i in range(len(self))]
        self._raise_failures(results)
        observations, rewards, dones, infos = map(list, zip(*answers, strict=True))
        return observations, rewards, dones, infos

    def _answer(self, i: int, result: ActionResult | EnvFailed | None) -> tuple[Any, float, bool, dict[str, Any]]:
        reward = 0.0
        if isinstance(result, EnvFailed):
            self._take(i, result)
        elif result is not None:
            self._played[i] += 1
            shown, ends, reward = result.observation, self._played[i] >= self._limits[i], result.reward
            if ends and not result.done:
                shown = shown._replace(info={**shown.info, "truncated": True})
            self._take(i, shown, result.done or ends)
        raw, info, done = self._shown[i].raw, self._shown[i].info, self._done[i]
        if result is None:  # it was not stepped
            info = {**info, "finished": True} if done else {}
        return copied(raw), reward, done, dict(info)

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

    def _one_each(self, what: str, values: Any) -> Sequence[Any]:
        if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != len(self):
            raise InputError(f"{what} = {values!r}: expected one for each of {len(self)} environments.")
        return values

    def _key(self, i: int, action: Any) -> Any:
        """The key or text for the environment's ``step``; None for no action."""
        action = action.item() if isinstance(action, np.generic) else action
        spec, names = self._specs[i], self._shown[i].names
        is_known = any(type(action) is type(key) and action == key for key in names)  # True is no 1
        if is_known or action is None:
            return action
        if names and type(action) is int and action == NO_MOVE:
            return None
        if names or not (isinstance(action, str) or not issubclass(spec.env_class, BaseLanguageBasedEnv)):
            known = names or "text"
            raise InputError(f"{spec.describe()} has no action {action!r}; expected {known}. Nothing was stepped.")
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
        settings: Settings | Mapping[str, Any] | None = None,
    ) -> None:
        """Check everything; the first reset builds the environments.

        Args:
            env_type: A registered name, or ``"package.module:Class"``.
            env_num: Number of groups.
            group_n: Environments per group; they share the seeds of their episodes.
            seed: Seed of the first group; each further group's is one higher.
            env_kwargs: Fields of the type's configuration.
            is_train: Whether later resets use new seeds.
            settings: Placement of environments and treatment of failures, or keywords of
                :class:`~envlanes.settings.Settings`, such as ``{"use_lanes": True, "max_workers": 4}``.

        Raises:
            UnknownEnvError: There is no such type.
            ConfigError: A number or field is invalid; the message names it.
        """
        self.env_type = env_type
        groups = {"env_groups": env_num, "group_size": group_n, "env_configs": {"tags": [env_type]}}
        entry = {"env_type": env_type, "env_config": dict(env_kwargs or {}), "max_actions_per_traj": sys.maxsize}
        read = read_config({"es_manager": {"train": groups}, "custom_envs": {env_type: entry}}, "train")
        given = settings if isinstance(settings, Settings) else Settings.of(**(settings or {}))
        super().__init__(read, seed, is_train=is_train, settings=given)
