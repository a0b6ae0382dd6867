"""Environments in groups that are stepped together: takes a list of actions, and returns lists of results.

    envs = MultiProcessEnvironmentContainer("sokoban", env_num=4, group_n=8, seed=42)
    observations, infos = envs.reset()                         # 32 each; groups of 8 begin with the same level
    observations, rewards, dones, infos = envs.step([1] * 32)  # one action each: 1 is up

Environments live in workers of :class:`~envlanes.engine.Engine`, many per worker process rather than one
process each; there are no pipes to access. Results do not depend on where environments live, nor on killed workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envlanes.env_set import EnvSet
from envlanes.environments import EnvFailed
from envlanes.episode.spec import EnvSpec
from envlanes.episode.values import copied
from envlanes.failures import OnFailure, ignore
from envlanes.interrupts import holds_interrupts
from envlanes.ragen.seeds import checked_seed, group_seeds
from envlanes.settings import Settings
from ragen.env.base import BaseLanguageBasedEnv
from ragen.env.fields import check_kinds
from ragen.env.registry import resolve_env
from ragen.errors import ConfigError, InputError, StateError, did_you_mean
from ragen.llm_agent.prompts.replies import NO_MOVE
from ragen.turns.game import ACTIONS, ActionResult, Shown
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


def env_specs(env_type: str, env_num: int, group_n: int, env_kwargs: Mapping[str, Any] | None = None) -> list[EnvSpec]:
    """Specs of environments of one type, groups one after the other.

    Raises:
        UnknownEnvError: There is no such type.
        ConfigError: It has no such field, or a value is invalid.
    """
    env_class, config_class = resolve_env(env_type)
    fields = dict(env_kwargs or {})
    if config_class is None and fields:
        raise ConfigError(f"env_kwargs = {fields!r}: {env_type!r} has no configuration class, so it takes none.")
    if dataclasses.is_dataclass(config_class):
        known = sorted(each.name for each in dataclasses.fields(config_class) if each.init)
        for name in fields:
            if name not in known:
                meant = did_you_mean(name, known) or f" It has {', '.join(known)}."
                raise ConfigError(f"env_kwargs.{name} = {fields[name]!r}: {env_type!r} has no such field.{meant}")
    try:
        configs = [config_class and config_class(**copied(fields)) for _ in range(env_num * group_n)]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env_kwargs = {fields!r}: {error}") from error
    check_kinds("env_kwargs.", env_type, configs[0], fields)
    return [
        EnvSpec(i, i // group_n, env_type, env_type, env_class, config, ACTIONS) for i, config in enumerate(configs)
    ]


@dataclass(slots=True)
class _State:
    """The main process's record of one environment between two actions."""

    raw: Any = ""
    info: dict[str, Any] = field(default_factory=dict)
    actions: list[Any] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)
    done: bool = False
    played: int = 0

    def take(self, shown: Shown | EnvFailed) -> None:
        if isinstance(shown, EnvFailed):
            self.info, self.done = {"env_error": shown.text, "error": shown.text}, True
            return
        self.raw, self.info = shown.raw, shown.info
        self.actions = self.actions if shown.actions is None else shown.actions
        self.names = self.names if shown.names is None else shown.names


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
        self,
        specs: Sequence[EnvSpec],
        group_n: int,
        seed: int,
        *,
        is_train: bool = True,
        limits: Sequence[int] | None = None,
        settings: Settings | None = None,
        on_failure: OnFailure = ignore,
    ) -> None:
        """Register the environments; the first reset builds them.

        Args:
            specs: One for each environment, groups one after the other, with env_ids from 0; their game is replaced.
            group_n: Environments per group.
            seed: Seed of the first group; each further group's is one higher.
            is_train: Whether later resets use new seeds; also sets the ``mode`` of resets.
            limits: Maximum number of actions of an episode, for each environment; the last one ends it with
                ``info["truncated"]``.
            settings: Placement of environments, time-outs, and the treatment of failures.
            on_failure: See :class:`~envlanes.engine.Engine`.

        Raises:
            ConfigError: The number of environments is not a multiple of the group size.
        """
        if not specs or len(specs) % group_n:
            raise ConfigError(f"{len(specs)} environments cannot be divided into groups of {group_n}.")
        self.num_processes, self.group_n, self.env_num = len(specs), group_n, len(specs) // group_n
        self.seed, self.is_train = checked_seed(seed), is_train
        self.env_types, self.tags = [spec.env_type for spec in specs], [spec.tag for spec in specs]
        self.configs = [spec.config for spec in specs]
        self._specs = [dataclasses.replace(spec, game=ACTIONS) for spec in specs]
        self._limits = limits
        self._hold(self._specs, settings, on_failure=on_failure)
        self._states: list[_State] = []
        self.seed_counter = 0

    # Episodes

    @holds_interrupts
    def reset(
        self,
        seeds: Sequence[int] | None = None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Begin a new episode in every environment.

        Args:
            seeds: One for each environment. None uses ``seed + i // group_n`` at the first reset; at later ones
                ``env_num`` more each time in training, and the same again otherwise. A reset with given seeds does not
                advance the offset.
            options: Further arguments of ``reset``, for all or for each environment, if it accepts them; ``seed`` in an
                environment's options is its seed.

        Returns:
            Observations and infos, one for each environment; the info is empty if the environment returns none.

        Raises:
            InputError: There are too few or too many seeds or options, or a seed is invalid; nothing was reset.
            EnvError: An environment could not be built, or failed with ``on_env_failure="raise"``.
        """
        self._check_open()
        chosen = self._seeds(seeds)
        each = self._options(options)
        chosen = [checked_seed(given.get("seed", seed)) for given, seed in zip(each, chosen, strict=True)]
        self._states = []
        mode = {"mode": "train" if self.is_train else "val"}
        own = {i: {**mode, **{key: given[key] for key in given if key != "seed"}} for i, given in enumerate(each)}
        shown = self._engine.reset(dict(enumerate(chosen)), own_options=own)
        self._raise_failures(shown, at_build=True)
        self._states = [_State() for _ in self._specs]
        for i, state in enumerate(self._states):
            state.take(shown[i])
        if seeds is None and self.is_train:
            self.seed_counter += self.env_num
        return [copied(state.raw) for state in self._states], [dict(state.info) for state in self._states]

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
        self._check_count("actions", actions)
        keys = {i: self._key(i, action) for i, action in enumerate(actions) if not self._states[i].done}
        asked = {i: key for i, key in keys.items() if key is not None}
        results = self._engine.play(asked) if asked else {}
        answers = [self._answer(i, results.get(i)) for i in range(self.num_processes)]
        self._raise_failures(results)
        observations, rewards, dones, infos = map(list, zip(*answers, strict=True))
        return observations, rewards, dones, infos

    def _answer(self, i: int, result: ActionResult | EnvFailed | None) -> tuple[Any, float, bool, dict[str, Any]]:
        state, reward = self._states[i], 0.0
        if result is None:  # it was not stepped
            return copied(state.raw), reward, state.done, {**state.info, "finished": True} if state.done else {}
        if isinstance(result, EnvFailed):
            state.take(result)
        else:
            state.take(result.observation)
            state.played, state.done, reward = state.played + 1, result.done, result.reward
            if not state.done and self._limits is not None and state.played >= self._limits[i]:
                state.done, state.info = True, {**state.info, "truncated": True}
        return copied(state.raw), reward, state.done, dict(state.info)

    # Queries

    def render(self, mode: str | None = "text", env_idx: int | None = None) -> Any:
        """The rendering of all environments, as a list, or of one.

        Args:
            mode: Passed to ``render``.
            env_idx: Index of the environment; None for all.

        Raises:
            StateError: There was no reset yet.
            EnvError: An environment cannot render in this mode.
        """
        self._check_reset()
        wanted = range(self.num_processes) if env_idx is None else [env_idx]
        living = [i for i in wanted if is_valid(self._states[i].info)]
        shown = self._engine.read(living, "render", mode)
        self._values_of(shown)
        views = [shown.get(i, self._states[i].raw) for i in wanted]
        return views if env_idx is None else views[0]

    def get_available_actions(self) -> list[list[Any]]:
        """The available actions of each environment: keys, texts, or empty if it accepts any text."""
        self._check_reset()
        return [list(state.actions) for state in self._states]

    def action_names(self) -> list[dict[Any, str]]:
        """The name of each key, for each environment; a bandit's depend on its seed. Empty where actions are text."""
        self._check_reset()
        return [dict(state.names) for state in self._states]

    def __len__(self) -> int:
        return self.num_processes

    # Checks

    def _check_reset(self) -> None:
        self._check_open()
        if not self._states:
            raise StateError("there is no episode yet, or the last reset failed; call reset() first.")

    def _seeds(self, seeds: Sequence[int] | None) -> list[int]:
        if seeds is None:
            return group_seeds(self.seed + self.seed_counter, [i // self.group_n for i in range(self.num_processes)])
        self._check_count("seeds", seeds)
        return [checked_seed(seed) for seed in seeds]

    def _options(self, options: Any) -> list[Mapping[str, Any]]:
        if options is None or isinstance(options, Mapping):
            return [options or {}] * self.num_processes
        self._check_count("options", options)
        return [given or {} for given in options]

    def _check_count(self, what: str, values: Any) -> None:
        if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != self.num_processes:
            raise InputError(f"{what} = {values!r}: expected one for each of {self.num_processes} environments.")

    def _key(self, i: int, action: Any) -> Any:
        action = action.item() if isinstance(action, np.generic) else action
        spec, names = self._specs[i], self._states[i].names
        if action is None:
            return None
        if names:
            is_number = isinstance(action, int) and not isinstance(action, bool)
            if isinstance(action, Hashable) and not isinstance(action, bool) and action in names:
                return action
            if is_number and action == NO_MOVE:
                return None
            raise InputError(f"{spec.describe()} has no action {action!r}; it has {names}. Nothing was stepped.")
        if not isinstance(action, str) and issubclass(spec.env_class, BaseLanguageBasedEnv):
            raise InputError(f"{spec.describe()} was given action {action!r}; expected text. Nothing was stepped.")
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
        for name, number in (("env_num", env_num), ("group_n", group_n)):
            if number < 1:
                raise ConfigError(f"{name} = {number!r}: expected an integer of at least 1.")
        self.env_type = env_type
        given = settings if isinstance(settings, Settings) else Settings.of(**(settings or {}))
        specs = env_specs(env_type, env_num, group_n, env_kwargs)
        super().__init__(specs, group_n, seed, is_train=is_train, settings=given)
