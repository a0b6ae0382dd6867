"""Many copies of an environment with tasks, called one by one or all at once.

=========================== ====================================================================================
``reset``, ``step``         old interface, for one copy or all: reset returns the observation, step four values
``remotes[i]``              ``send((command, data))``, ``recv()``: commands are queued, and played in one exchange
``reset_some, step_some``   the learner's interface: any copies at once, gymnasium's five values
``EnvSet``                  the layer below: processes, time-outs, failures
=========================== ====================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ragen.errors import ConfigError, EnvError, InputError, RagenError, StateError
from ragen.meta.game import META, NotAValue, Transition, four
from ragen.meta.remotes import FirstEnv, Remote
from ragen.meta.task_set import TaskSet
from ragen.parallel import EnvFailed, EnvSet, EnvSpec, Settings, holds_interrupts


class ParallelEnvManager(EnvSet):
    """Copies of an environment; a context manager that also closes itself when it is garbage collected.

    Attributes:
        num_envs: Number of copies.
        remotes: A pipe-like object for each copy.
        workers: Statistics of the main process, then of each worker (:class:`~ragen.parallel.LaneStats`).
        observation_space, action_space: The spaces of a copy.
        n_tasks: Number of tasks; None if unlimited.
        horizon_bamdp: Maximum number of steps of a rollout; None if it has no limit.
        tasks: The tasks.
        unwrapped: A proxy for the first copy without its wrappers.
        closed: Whether it is closed.
    """

    holder = "ParallelEnvManager"

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        start_method: str | None = None,
        *,
        settings: Settings | Mapping[str, Any] | None = None,
        tasks: TaskSet | None = None,
        seeds: Sequence[int] | None = None,
    ) -> None:
        """Create the copies; each is built in its process, and the first one determines their properties.

        Args:
            env_fns: Builders of the copies; closures and lambdas are allowed.
            start_method: ``"forkserver"`` or ``"spawn"``; overrides ``settings``.
            settings: Settings of the engine: ``use_lanes``, ``max_workers``, ``backend``, ``step_timeout`` and so on.
            tasks: The tasks; by default, the first copy's.
            seeds: Seed of each copy for its first reset.

        Raises:
            ConfigError: An argument is invalid.
            EnvError: The first copy cannot be built.
        """
        if not env_fns:
            raise ConfigError("env_fns is empty: expected at least one function that builds an environment.")
        chosen = settings if isinstance(settings, Settings) else Settings.of(**dict(settings or {}))
        if start_method is not None:
            chosen = replace(chosen, start_method=start_method)
        self.num_envs = len(env_fns)
        self.settings = chosen
        specs = [EnvSpec.of(each, env_id=index, game=META, tag="env") for index, each in enumerate(env_fns)]
        self._hold(specs, chosen)
        self._over: dict[int, bool] = dict.fromkeys(range(self.num_envs), True)
        self._drawing = [np.random.default_rng() for _ in range(self.num_envs)]
        self._seeds: list[int | None] = [None] * self.num_envs
        self.unwrapped = FirstEnv(self)
        self.remotes = tuple(Remote(self, index) for index in range(self.num_envs))
        try:
            self.observation_space = self.get_attr("observation_space")
            self.action_space = self.get_attr("action_space")
            self.n_tasks = tasks.count if tasks is not None else self._attr_or_none("n_tasks")
            self.horizon_bamdp = self._attr_or_none("horizon_bamdp")
            found = tasks or self._attr_or_none("tasks")
            self.tasks = found if isinstance(found, TaskSet) else TaskSet.of_env(self.n_tasks)
            if seeds is not None:
                self.seed(seeds)
        except BaseException:
            self.close()
            raise

    # One copy

    def reset(self, env_idx: int = 0, *, task: Any = None, **options: Any) -> Any:
        """Begin an episode of one copy.

        Args:
            env_idx: Index of the copy.
            task: The task: its index, its parameters, or None to sample one, here or in the copy.
            options: Further arguments of its ``reset``.

        Returns:
            The observation.
        """
        return self.reset_some({env_idx: {"task": task, **options}})[env_idx]

    def step(self, env_idx: int, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Step one copy: observation, reward, done, info."""
        return four(self.step_some({env_idx: action})[env_idx])

    def get_attr(self, name: str, env_idx: int = 0, subattrs: Sequence[str] | None = None) -> Any:
        """An attribute of a copy or its wrapped environment.

        Args:
            name: Its name.
            env_idx: Index of the copy.
            subattrs: Attribute of the attribute, and so on.

        Raises:
            EnvError: There is none, or it cannot travel.
        """
        found = self._read(env_idx, "attribute", name, tuple(subattrs or ()))
        if not isinstance(found, NotAValue):
            return found
        if found.is_method and not subattrs:
            return lambda *arguments, **keywords: self.call(name, *arguments, env_idx=env_idx, **keywords)
        if name == "unwrapped" and not subattrs and env_idx == 0:
            return self.unwrapped
        raise EnvError(f"{name} of env {env_idx} is a {found.kind}, which stays where it is: ask for its attributes.")

    def call(self, name: str, *arguments: Any, env_idx: int = 0, **keywords: Any) -> Any:
        """Call a method of a copy or its wrapped environment; returns its result."""
        return _values(self._engine.call([self._known(env_idx)], "method", name, arguments, keywords))[env_idx]

    # All copies

    def reset_all(self, tasks: Sequence[Any] | None = None) -> list[Any]:
        """Begin an episode of every copy; returns their observations.

        Args:
            tasks: A task for each; None for all by default.
        """
        if tasks is not None and len(tasks) != self.num_envs:
            raise InputError(f"{len(tasks)} tasks for {self.num_envs} environments: expected one for each.")
        given = [None] * self.num_envs if tasks is None else tasks
        return list(self.reset_some({index: {"task": task} for index, task in enumerate(given)}).values())

    def step_all(self, actions: Sequence[Any]) -> tuple[list[Any], list[float], list[bool], list[dict[str, Any]]]:
        """Step every copy; lists of observations, rewards, dones and infos."""
        if len(actions) != self.num_envs:
            raise InputError(f"{len(actions)} actions for {self.num_envs} environments: expected one for each.")
        steps = [four(each) for each in self.step_some(dict(enumerate(actions))).values()]
        observations, rewards, dones, infos = zip(*steps, strict=True)
        return list(observations), list(rewards), list(dones), list(infos)

    def seed(self, seeds: Sequence[int | None]) -> list[None]:
        """Seed each copy and the sampling of its tasks; takes effect at its next reset."""
        if len(seeds) != self.num_envs:
            raise InputError(f"{len(seeds)} seeds for {self.num_envs} environments: expected one for each.")
        for index, seed in enumerate(seeds):
            self.seed_one(index, seed)
        return [None] * self.num_envs

    def seed_one(self, env_idx: int, seed: int | None) -> None:
        """Seed one copy; see :meth:`seed`."""
        self._seeds[self._known(env_idx)] = seed
        self._drawing[env_idx] = np.random.default_rng(seed)

    # Any copies

    @holds_interrupts
    def reset_some(
        self, options: Mapping[int, Mapping[str, Any]], seeds: Mapping[int, int | None] | None = None
    ) -> dict[int, Any]:
        """Begin episodes of some copies.

        Args:
            options: Arguments of each ``reset``, including ``task``; see :meth:`reset`.
            seeds: Seed of each; by default the one passed to :meth:`seed` since its last reset, or None to continue
                with its own generator.

        Returns:
            Observations by copy.

        Raises:
            TaskError: There is no such task; nothing was reset.
            EnvError: A copy could not be reset; the others were.
        """
        drawing: dict[int, np.random.Generator] = {}
        each = {index: self._with_task(index, given, seeds, drawing) for index, given in options.items()}
        return _values(self._reset(each, seeds, drawing))

    @holds_interrupts
    def step_some(self, actions: Mapping[int, Any]) -> dict[int, Transition]:
        """Step some copies.

        Returns:
            Transitions by copy. One that failed, and failed again on a rebuilt environment, is truncated with
            ``info["env_error"]``.

        Raises:
            StateError: The episode of a copy is over, or has not begun; nothing was stepped.
        """
        for index in actions:
            self._check_begun(index)
        return _values(self._step(actions))

    @holds_interrupts
    def try_some(self, command: str, items: Mapping[int, Any]) -> dict[int, Any]:
        """:meth:`reset_some` or :meth:`step_some`, with a copy's error in place of its result."""
        fit, results = {}, {}
        drawing: dict[int, np.random.Generator] = {}
        for index, item in items.items():
            try:
                if command == "reset":
                    fit[index] = self._with_task(index, item, None, drawing)
                else:
                    self._check_begun(index)
                    fit[index] = item
            except RagenError as error:
                results[index] = error
        return {**results, **(self._reset(fit, None, drawing) if command == "reset" else self._step(fit))}

    # The end

    @property
    def workers(self) -> list[Any]:
        """Statistics of the main process, then of each worker."""
        return self.stats()

    def _with_task(
        self,
        index: int,
        given: Mapping[str, Any],
        seeds: Mapping[int, int | None] | None,
        drawing: dict[int, np.random.Generator],
    ) -> dict[str, Any]:
        """The options of a copy's reset, with the parameters of its task, which is sampled here if none is given.

        The generator used goes into ``drawing``, so that an interrupted reset does not advance it.
        """
        task = given.get("task")
        if task is None and seeds is None:
            drawing[index] = copy.deepcopy(self._drawing[self._known(index)])
            task = self.tasks.draw(drawing[index])
        task = self.tasks.parameters(task)
        rest = {name: value for name, value in given.items() if name != "task"}
        return rest if task is None else {**rest, "task": task}

    def _reset(
        self,
        each: Mapping[int, Mapping[str, Any]],
        seeds: Mapping[int, int | None] | None,
        drawing: Mapping[int, np.random.Generator],
    ) -> dict[int, Any]:
        self._check_open()
        chosen = {self._known(index): (self._seeds if seeds is None else seeds)[index] for index in each}
        shown = self._engine.reset(chosen, own_options={index: dict(given) or None for index, given in each.items()})
        for index in each:
            self._drawing[index] = drawing.get(index, self._drawing[index])
            self._seeds[index] = None
            self._over[index] = isinstance(shown[index], EnvFailed)
            if self._over[index]:
                error = EnvError(f"env {index} could not be reset: {shown[index].text}")
                error.__cause__ = shown[index].error
                shown[index] = error
        return {index: shown[index] for index in each}

    def _step(self, actions: Mapping[int, Any]) -> dict[int, Any]:
        self._check_open()
        played = self._engine.play(actions)
        for index, result in played.items():
            if isinstance(result, EnvFailed):
                info = {"env_error": result.text, "done_mdp": True}
                played[index] = Transition(self._engine.records[index].observation, 0.0, False, True, info, None)
            self._over[index] = played[index].terminated or played[index].truncated
        return played

    def _check_begun(self, index: int) -> None:
        if self._over[self._known(index)]:
            raise StateError(f"env {index} was stepped, and its episode is over or has not begun: reset it first.")

    def _attr_or_none(self, name: str) -> Any:
        try:
            return self.get_attr(name)
        except AttributeError:
            return None
        except EnvError as error:
            if isinstance(error.__cause__, AttributeError):
                return None
            raise

    def _read(self, env_idx: int, name: str, *arguments: Any) -> Any:
        self._check_open()
        return _values(self._engine.read([self._known(env_idx)], name, *arguments))[env_idx]

    def _known(self, env_idx: int) -> int:
        if isinstance(env_idx, bool) or not isinstance(env_idx, int | np.integer) or not 0 <= env_idx < self.num_envs:
            raise InputError(f"env_idx = {env_idx!r}: expected 0 to {self.num_envs - 1}.")
        return int(env_idx)


def _values(results: dict[int, Any]) -> dict[int, Any]:
    """The results of a call by env_idx; raises the first error."""
    for value in results.values():
        if isinstance(value, Exception):
            raise value
    return results
