"""Many copies of an environment with tasks, in the interface used before gymnasium.

=================== ==========================================================================================
``reset``, ``step`` one copy, or all: a reset returns the observation, a step four values
``remotes[i]``      ``send((command, data))``, ``recv()``: commands are queued, and played in one exchange
``ask``             any copies at once: all of the above are commands of it
``SubEnvs``         the layer below: episodes, processes, time-outs, failures
=================== ==========================================================================================
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from gymnasium.utils.step_api_compatibility import (
    convert_to_done_step_api,
    convert_to_terminated_truncated_step_api,
)
from gymnasium.vector import AutoresetMode

from envlanes import Change, EnvSpec, Options, Settings, holds_interrupts
from envlanes.episode.values import copied
from envlanes.gym import READ, GymGame, IsMethod, SubEnvs
from envlanes.ragen.step import checked_reward
from envlanes.ragen.turn import options_for
from envlanes.returned import FIVE, FOUR, wrong_step
from ragen.errors import ConfigError, EnvError, InputError, StateError
from ragen.validity import env_error

COMMANDS: dict[str, tuple[str, Any]] = {
    "reset": ("obs", lambda data: dict(data or {})),
    "step": ("transition", itemgetter("action")),
    "get_attr": ("attr", lambda data: (data["attr"], *(data.get("subattrs") or ()))),
    "seed": ("done", itemgetter("seed")),
}
"""For each command: the name of its answer, and how its value is read from a message's data."""


class MetaGame(GymGame):
    """Gymnasium's interface, or the older one with ``reset(task)``, four values and ``seed(seed)``."""

    def shown(self, env: Any, seed: int | None, options: Options) -> tuple[Any, Any]:
        """Begin an episode of ``options["task"]``; of the options, an older ``reset`` is given those that it takes."""
        if "options" in inspect.signature(env.reset).parameters:
            return super().shown(env, seed, options)
        given = dict(options or {})
        if seed is not None and callable(getattr(env, "seed", None)):
            env.seed(seed)  # a `reset(**arguments)` of the older interface may pass all of them to one without a seed
        elif seed is not None:
            given["seed"] = seed
        match env.reset(**copied(options_for(env, given))):
            case (observation, dict(info)):
                return observation, info
            case observation:
                return observation, {}

    def step(self, env: Any, action: Any) -> Any:
        """Step; an environment with ``is_goal_state`` has its value in ``info``."""
        values = env.step(action)
        try:
            observation, reward, terminated, truncated, info = convert_to_terminated_truncated_step_api(values)
            info = dict(info)
        except Exception as error:  # values of a user's classes may raise anything
            is_older = isinstance(values, tuple) and len(values) == 4
            raise wrong_step(env, values, FOUR if is_older else FIVE) from error
        goal = getattr(getattr(env, "unwrapped", env), "is_goal_state", None)
        if goal and "is_goal_state" not in info:
            info["is_goal_state"] = bool(goal())
        return observation, checked_reward(env, reward), terminated, truncated, info


META = MetaGame()


class ParallelEnvManager(SubEnvs):
    """Copies of an environment; a context manager that also closes itself when it is garbage collected.

    Attributes:
        num_envs: Number of copies.
        remotes: A pipe-like object for each copy.
        observation_space, action_space: The spaces of a copy.
        n_tasks: Number of tasks; None if unlimited.
        horizon_bamdp: Maximum number of steps of a rollout; None if it has no limit.
        unwrapped: A proxy for the first copy without its wrappers.
        closed: Whether it is closed.
    """

    holder = "ParallelEnvManager"

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        start_method: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the copies; each is built in its process, and the first one determines their properties.

        Args:
            env_fns: Builders of the copies; closures and lambdas are allowed.
            start_method: ``"forkserver"`` or ``"spawn"``; overrides ``settings``.
            settings: Settings of the engine: ``use_lanes``, ``max_workers``, ``backend``, ``step_timeout`` and so on.

        Raises:
            ConfigError: An argument is invalid.
            EnvError: The first copy cannot be built.
        """
        if not env_fns:
            raise ConfigError("env_fns is empty: expected at least one function that builds an environment.")
        given = dict(settings or {})
        if start_method:
            given["start_method"] = start_method
        self.num_envs = len(env_fns)
        specs = [EnvSpec.of(each, env_id=i, game=META, tag="env") for i, each in enumerate(env_fns)]
        super().__init__(specs, Settings.of(**given), AutoresetMode.DISABLED)
        self.over.update(range(self.num_envs))  # until their first reset
        self._seeds_given: dict[int, int | None] = {}
        self.remotes = [Remote(self, index) for index in range(self.num_envs)]
        self.unwrapped = FirstEnv(self)
        try:
            self.observation_space, self.action_space = map(self.get_attr, ("observation_space", "action_space"))
            self.n_tasks = getattr(self.unwrapped, "n_tasks", None)
            self.horizon_bamdp = getattr(self.unwrapped, "horizon_bamdp", None)
        except BaseException:
            self.close()
            raise

    # One copy

    def reset(self, env_idx: int = 0, **options: Any) -> Any:
        """Begin an episode of one copy.

        Args:
            env_idx: Index of the copy.
            options: Arguments of its ``reset``; of these, ``task`` is the task's index or parameters, and None samples
                one, here or in the copy. ``seed`` is by default the one passed to :meth:`seed` since its last reset;
                None continues with its own generator.

        Returns:
            The observation.

        Raises:
            EnvError: It could not be reset, as there is no such task for example.
        """
        return self.ask("reset", {env_idx: options})[env_idx]

    def step(self, env_idx: int, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Step one copy: observation, reward, done, info."""
        return self.ask("step", {env_idx: action})[env_idx]

    def get_attr(self, name: str, env_idx: int = 0, subattrs: Sequence[str] | None = None) -> Any:
        """An attribute of a copy or its wrapped environment; a method is called in the copy's process.

        Args:
            name: Its name.
            env_idx: Index of the copy.
            subattrs: Attribute of the attribute, and so on.

        Raises:
            EnvError: There is none, or it cannot travel.
        """
        value = self.ask("get_attr", {env_idx: (name, *(subattrs or ()))})[env_idx]
        if isinstance(value, IsMethod):
            return lambda *args, **kwargs: self._values_of(self.engine.call([env_idx], name, *args, **kwargs))[0]
        return value

    # All copies

    def reset_all(self, tasks: Sequence[Any] | None = None) -> list[Any]:
        """Begin an episode of every copy; returns their observations.

        Args:
            tasks: A task for each; None for all by default.
        """
        return self._ask_all("reset", [{"task": task} for task in tasks or [None] * self.num_envs])

    def step_all(self, actions: Sequence[Any]) -> tuple[list[Any], list[float], list[bool], list[dict[str, Any]]]:
        """Step every copy; lists of observations, rewards, dones and infos."""
        observations, rewards, dones, infos = map(list, zip(*self._ask_all("step", actions), strict=True))
        return observations, rewards, dones, infos

    def seed(self, seeds: Sequence[int | None]) -> list[None]:
        """Seed each copy and the sampling of its tasks; takes effect at its next reset."""
        return self._ask_all("seed", seeds)

    def _ask_all(self, command: str, values: Sequence[Any]) -> list[Any]:
        if len(values) != self.num_envs:
            raise InputError(f"{len(values)} values for {self.num_envs} environments: expected one for each.")
        return list(self.ask(command, dict(enumerate(values))).values())

    workers = property(SubEnvs.stats)  # statistics of the main process, then of each worker

    # Any copies

    @holds_interrupts
    def ask(self, command: str, asked: Mapping[int, Any]) -> dict[int, Any]:
        """Play a command of some copies.

        Args:
            command: ``"reset"``, ``"step"``, ``"get_attr"`` or ``"seed"``.
            asked: The value for each: arguments of ``reset``, an action, the path of an attribute, or a seed.

        Returns:
            The answers by copy. A copy that failed at a step, and failed again on a rebuilt environment, is truncated
            with ``info["env_error"]``.

        Raises:
            EnvError: A copy failed; the others answered.
            StateError: The episode of a copy to be stepped is over, or has not begun; nothing was stepped.
        """
        found = self._answers(command, asked)
        self._values_of(found)
        return found

    @holds_interrupts
    def exchange(self, command: str) -> None:
        """Play this command of each remote that has it queued first; if interrupted, it has answered nothing."""
        asked = {
            i: remote.waiting[0][1]
            for i, remote in enumerate(self.remotes)
            if remote.waiting and remote.waiting[0][0] == command
        }
        for i, answer in self._answers(command, asked).items():
            self.remotes[i].waiting.popleft()
            self.remotes[i].answers.append((COMMANDS[command][0], answer))

    def _answers(self, command: str, asked: Mapping[int, Any]) -> dict[int, Any]:
        """Answers or errors of copies by index; of those alone that cannot be stepped, if there are such."""
        self._check_open()
        if unknown := asked.keys() - range(self.num_envs):
            raise InputError(f"env_idx = {unknown.pop()!r}: expected 0 to {self.num_envs - 1}.")
        if command == "reset":
            seeds = {i: given.get("seed", self._seeds_given.get(i)) for i, given in asked.items()}
            options = {
                i: {name: value for name, value in given.items() if name != "seed" and value is not None}
                for i, given in asked.items()
            }
            shown = self.reset_envs(seeds, options)
            self._seeds_given |= dict.fromkeys(asked)  # not before, since an interrupted call has not happened
            return {
                i: EnvError(f"env {i} could not be reset: {error}") if (error := env_error(info)) else observation
                for i, (observation, info) in shown.items()
            }
        if command == "step":
            if over := self.over.intersection(asked):
                return {i: StateError(f"env {i}'s episode is over or has not begun: reset it first.") for i in over}
            return {i: convert_to_done_step_api(result[:5]) for i, result in self.step_envs(asked).items()}
        if command == "seed":
            self._seeds_given |= asked
            return dict.fromkeys(asked)
        return self.engine.change({i: Change(READ, path) for i, path in asked.items()}, is_journalled=False)


class FirstEnv:
    """A proxy for the first copy without its wrappers, which reads attributes from the copy's process."""

    def __init__(self, manager: ParallelEnvManager) -> None:
        """Refer to a manager without a cycle, so that ``del manager`` ends its workers at once."""
        self._manager = weakref.proxy(manager)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._manager.get_attr(name)
        except EnvError as error:
            raise AttributeError(f"the environment has no attribute {name!r}") from error


class Remote:
    """One copy, with the interface of a pipe; the first ``recv`` plays the queued commands of all copies.

    ========================================== =============================================
    sent                                       received
    ========================================== =============================================
    ``("reset", {"task": t})``                 ``("obs", observation)``
    ``("step", {"action": a})``                ``("transition", (obs, reward, done, info))``
    ``("get_attr", {"attr": n, "subattrs": s})`` ``("attr", value)``
    ``("seed", {"seed": s})``                  ``("done", None)``
    ``("close", None)``                        nothing; ends this connection
    ========================================== =============================================
    """

    def __init__(self, manager: ParallelEnvManager, env_idx: int) -> None:
        """Connect to a copy."""
        self._manager, self._env_idx = weakref.proxy(manager), env_idx
        self.waiting, self.answers = deque[tuple[str, Any]](), deque[tuple[str, Any]]()
        self.closed = False

    def send(self, message: tuple[str, Mapping[str, Any] | None]) -> None:
        """Queue a command.

        Raises:
            InputError: There is no such command, or it lacks an entry.
            StateError: The remote is closed.
        """
        if self.closed or self._manager.closed:
            raise StateError(f"remote {self._env_idx} is closed.")
        try:
            command, data = message
            if command == "close":  # the manager closes the copy with all others
                self.closed = True
            else:
                self.waiting.append((command, COMMANDS[command][1](data)))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{message!r} was sent: expected (command, data), such as ('step', {{'action': 0}}); "
                f"commands are {', '.join(COMMANDS)} and close."
            ) from error

    def recv(self) -> tuple[str, Any]:
        """The answer to the first unanswered command.

        Raises:
            EnvError: The copy failed at it; the next command can still be answered.
            StateError: Nothing was sent.
        """
        while not self.answers:
            if not self.waiting:
                raise StateError(f"remote {self._env_idx} was asked for an answer, and nothing was sent.")
            self._manager.exchange(self.waiting[0][0])
        name, answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return name, answer
