"""Many copies of an environment with tasks, called one by one or all at once.

=========================== ====================================================================================
``reset``, ``step``         old interface, for one copy or all: reset returns the observation, step four values
``remotes[i]``              ``send((command, data))``, ``recv()``: commands are queued, and played in one exchange
``reset_some, step_some``   the learner's interface: any copies at once, gymnasium's five values
``SubEnvs``                 the layer below: episodes, processes, time-outs, failures
=========================== ====================================================================================
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode

from envlanes import Change, EnvSpec, Options, Settings, holds_interrupts
from envlanes.gym import READ, GymGame, GymOldGame, GymResult, IsMethod, SubEnvs
from envlanes.returned import checked_reward
from ragen.errors import ConfigError, EnvError, InputError, StateError
from ragen.validity import env_error

_NEEDED = {"reset": None, "step": "action", "get_attr": "attr", "seed": "seed", "close": None}
_ANSWERS = {"reset": "obs", "step": "transition", "get_attr": "attr", "seed": "done"}


class MetaGame(GymOldGame):
    """Gymnasium's interface, or the older one with ``reset(task)``, four values and ``seed(seed)``."""

    def shown(self, env: Any, seed: int | None, options: Options) -> tuple[Any, Any]:
        """Begin an episode of ``options["task"]``."""
        is_new = "options" in inspect.signature(env.reset).parameters
        return (GymGame if is_new else GymOldGame).shown(self, env, seed, options)

    def step(self, env: Any, action: Any) -> Any:
        """Step; an environment with ``is_goal_state`` has its value in ``info``."""
        observation, reward, terminated, truncated, info = super().step(env, action)
        goal = getattr(getattr(env, "unwrapped", env), "is_goal_state", None)
        if goal is not None and "is_goal_state" not in info:
            info = {**info, "is_goal_state": bool(goal())}
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
        given = {**(settings or {}), **({} if start_method is None else {"start_method": start_method})}
        self.num_envs = len(env_fns)
        specs = [EnvSpec.of(each, env_id=i, game=META, tag="env") for i, each in enumerate(env_fns)]
        super().__init__(specs, Settings.of(**given), AutoresetMode.DISABLED)
        self.over.update(range(self.num_envs))  # until their first reset
        self._first_seeds: dict[int, int | None] = {}
        self.remotes = [Remote(self, index) for index in range(self.num_envs)]
        self.unwrapped = FirstEnv(self)
        try:
            self.observation_space, self.action_space = map(self.get_attr, ("observation_space", "action_space"))
            self.n_tasks, self.horizon_bamdp = (
                getattr(self.unwrapped, name, None) for name in ("n_tasks", "horizon_bamdp")
            )
        except BaseException:
            self.close()
            raise

    # One copy

    def reset(self, env_idx: int = 0, **options: Any) -> Any:
        """Begin an episode of one copy.

        Args:
            env_idx: Index of the copy.
            options: Arguments of its ``reset``; of these, ``task`` is the task's index or parameters, and None samples
                one, here or in the copy.

        Returns:
            The observation.
        """
        return self.reset_some({env_idx: options})[env_idx]

    def step(self, env_idx: int, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Step one copy: observation, reward, done, info."""
        return _four(self.step_some({env_idx: action})[env_idx])

    def get_attr(self, name: str, env_idx: int = 0, subattrs: Sequence[str] | None = None) -> Any:
        """An attribute of a copy or its wrapped environment.

        Args:
            name: Its name.
            env_idx: Index of the copy.
            subattrs: Attribute of the attribute, and so on.

        Raises:
            EnvError: There is none, or it cannot travel.
        """
        (value,) = self._values_of(self.engine.read(self._known([env_idx]), READ, name, *(subattrs or ())))
        return partial(self.call, name, env_idx=env_idx) if isinstance(value, IsMethod) and not subattrs else value

    def call(self, name: str, *arguments: Any, env_idx: int = 0, **keywords: Any) -> Any:
        """Call a method of a copy or its wrapped environment; returns its result."""
        return self._values_of(self.engine.call(self._known([env_idx]), name, *arguments, **keywords))[0]

    # All copies

    def reset_all(self, tasks: Sequence[Any] | None = None) -> list[Any]:
        """Begin an episode of every copy; returns their observations.

        Args:
            tasks: A task for each; None for all by default.
        """
        given = self._one_each(tasks or [None] * self.num_envs)
        return list(self.reset_some({index: {"task": task} for index, task in given.items()}).values())

    def step_all(self, actions: Sequence[Any]) -> tuple[list[Any], list[float], list[bool], list[dict[str, Any]]]:
        """Step every copy; lists of observations, rewards, dones and infos."""
        results: Any = zip(*map(_four, self.step_some(self._one_each(actions)).values()), strict=True)
        observations, rewards, dones, infos = map(list, results)
        return observations, rewards, dones, infos

    def seed(self, seeds: Sequence[int | None]) -> list[None]:
        """Seed each copy and the sampling of its tasks; takes effect at its next reset."""
        self._first_seeds |= self._one_each(seeds)
        return [None] * self.num_envs

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
            EnvError: A copy could not be reset, as there is no such task for example; the others were.
        """
        found = self._begin(options, seeds)
        self._values_of(found)
        return found

    @holds_interrupts
    def step_some(self, actions: Mapping[int, Any]) -> dict[int, GymResult]:
        """Step some copies.

        Returns:
            Results by copy. One that failed, and failed again on a rebuilt environment, is truncated with
            ``info["env_error"]``.

        Raises:
            StateError: The episode of a copy is over, or has not begun; nothing was stepped.
        """
        self._values_of(self._refused(actions))
        return dict(zip(actions, self.step_envs(list(actions), list(actions.values())), strict=True))

    @property
    def workers(self) -> list[Any]:
        """Statistics of the main process, then of each worker."""
        return self.stats()

    @holds_interrupts
    def exchange(self, command: str) -> None:
        """Play this command of each remote that has it queued first; if interrupted, it has answered nothing."""
        queued = {index: remote.waiting[0] for index, remote in enumerate(self.remotes) if remote.waiting}
        asked = {index: data for index, (first, data) in queued.items() if first == command}
        found: dict[int, Any]
        if command == "reset":
            found = self._begin(asked)
        elif command == "step":
            found = dict(self._refused(asked))
            ready = {index: data["action"] for index, data in asked.items() if index not in found}
            found |= {index: _four(step) for index, step in self.step_some(ready).items()}
        elif command == "seed":
            self._first_seeds |= {index: data["seed"] for index, data in asked.items()}
            found = dict.fromkeys(asked)
        else:
            paths = {i: (data["attr"], *(data.get("subattrs") or ())) for i, data in asked.items()}
            found = self.engine.change({i: Change(READ, path) for i, path in paths.items()}, is_journalled=False)
        for index, answer in found.items():
            self.remotes[index].waiting.popleft()
            self.remotes[index].answers.append(answer if isinstance(answer, Exception) else (_ANSWERS[command], answer))

    def _begin(self, options: Mapping[int, Any], seeds: Mapping[int, int | None] | None = None) -> dict[int, Any]:
        """Observations or errors of copies by index."""
        ids = self._known(options)
        own = [{name: value for name, value in each.items() if value is not None} for each in options.values()]
        given = self._first_seeds if seeds is None else seeds
        shown = self.reset_envs(ids, [given.get(index) for index in ids], own)
        for index in ids:
            self._first_seeds.pop(index, None)
        text = "env {} could not be reset: {}"
        return {
            index: EnvError(text.format(index, error)) if (error := env_error(each.info)) else each.observation
            for index, each in zip(ids, shown, strict=True)
        }

    def _refused(self, ids: Mapping[int, Any]) -> dict[int, StateError]:
        """Errors of the copies that cannot be stepped."""
        text = "env {} was stepped, and its episode is over or has not begun: reset it first."
        return {index: StateError(text.format(index)) for index in self._known(ids) if index in self.over}

    def _one_each(self, values: Sequence[Any]) -> dict[int, Any]:
        if len(values) != self.num_envs:
            raise InputError(f"{len(values)} values for {self.num_envs} environments: expected one for each.")
        return dict(enumerate(values))

    def _known(self, ids: Iterable[int]) -> list[int]:
        """These copies, which exist, of a manager that is open."""
        self._check_open()
        found = list(ids)
        for index in found:
            if index not in range(self.num_envs):
                raise InputError(f"env_idx = {index!r}: expected 0 to {self.num_envs - 1}.")
        return found


class FirstEnv:
    """A proxy for the first copy without its wrappers, which reads attributes from the copy's process."""

    def __init__(self, manager: ParallelEnvManager) -> None:
        """Refer to a manager without a cycle, so that ``del manager`` ends its workers at once."""
        self._manager = weakref.proxy(manager)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._manager.get_attr(name)
        except EnvError as error:
            if isinstance(error.__cause__, AttributeError):
                raise AttributeError(f"the environment has no attribute {name!r}") from error
            raise


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
        self.waiting: deque[tuple[str, Any]] = deque()
        self.answers: deque[Any] = deque()
        self.closed = False

    def send(self, message: tuple[str, Any]) -> None:
        """Queue a command.

        Raises:
            InputError: There is no such command, or it lacks an entry.
            StateError: The remote is closed.
        """
        if self.closed or self._manager.closed:
            raise StateError(f"remote {self._env_idx} is closed.")
        if not isinstance(message, tuple) or len(message) != 2 or message[0] not in _NEEDED:
            raise InputError(f"{message!r} was sent: expected (command, data), command one of {', '.join(_NEEDED)}.")
        command, data = message[0], message[1] or {}
        if _NEEDED[command] not in (None, *data):
            raise InputError(f"{command!r} was sent with {data!r}: expected a dict with {_NEEDED[command]!r}.")
        if command == "close":
            self.close()
        else:
            self.waiting.append((command, data))

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
        if isinstance(answer := self.answers.popleft(), Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Close the remote; the manager closes the copy with all others."""
        self.closed = True
        self.waiting.clear()


def _four(step: GymResult) -> tuple[Any, float, bool, dict[str, Any]]:
    """A result in the old interface: observation, reward, done, info."""
    info = {**step.info, "TimeLimit.truncated": True} if step.truncated and not step.terminated else step.info
    return step.observation, step.reward, step.terminated or step.truncated, info
