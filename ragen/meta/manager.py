"""Many copies of an environment with tasks, called one by one or all at once.

=========================== ====================================================================================
``reset``, ``step``         old interface, for one copy or all: reset returns the observation, step four values
``remotes[i]``              ``send((command, data))``, ``recv()``: commands are queued, and played in one exchange
``reset_some, step_some``   the learner's interface: any copies at once, gymnasium's five values
``EnvSet``                  the layer below: processes, time-outs, failures
=========================== ====================================================================================
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from envlanes import Change, EnvFailed, EnvSet, EnvSpec, Options, Settings, holds_interrupts
from envlanes.games import GymGame, GymOldGame, GymResult, GymTurn
from envlanes.returned import checked_reward
from ragen.errors import ConfigError, EnvError, InputError, RagenError, StateError

PATH, METHOD = "ragen:path", "ragen:method"
"""Reading an attribute of an attribute; and what is read in place of a method."""
_NEEDED = {"reset": None, "step": "action", "get_attr": "attr", "seed": "seed", "close": None}


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

    def apply(self, env: Any, change: Change) -> Any:
        """Call a method, or read an attribute of an attribute."""
        if change.name != PATH:
            return super().apply(env, change)
        first, *rest = change.arguments
        get = getattr(env, "get_wrapper_attr", partial(getattr, env))
        value = reduce(getattr, rest, get(first))
        return METHOD if callable(value) else value


META = MetaGame()


class ParallelEnvManager(EnvSet):
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
        settings: Settings | Mapping[str, Any] | None = None,
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
        chosen = settings if isinstance(settings, Settings) else Settings.of(**dict(settings or {}))
        if start_method is not None:
            chosen = replace(chosen, start_method=start_method)
        self.num_envs = len(env_fns)
        self._hold([EnvSpec.of(each, env_id=i, game=META, tag="env") for i, each in enumerate(env_fns)], chosen)
        self._shown: dict[int, Any] = {}
        self._over = set(range(self.num_envs))
        self._seeds: dict[int, int | None] = dict.fromkeys(range(self.num_envs))
        self.unwrapped = FirstEnv(self)
        self.remotes = tuple(Remote(self, index) for index in range(self.num_envs))
        try:
            self.observation_space = self.get_attr("observation_space")
            self.action_space = self.get_attr("action_space")
            self.n_tasks = getattr(self.unwrapped, "n_tasks", None)
            self.horizon_bamdp = getattr(self.unwrapped, "horizon_bamdp", None)
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
        if name == "unwrapped" and not subattrs and env_idx == 0:
            return self.unwrapped
        self._check_open()
        found = self._engine.read([self._known(env_idx)], PATH, name, *(subattrs or ()))
        (value,) = self._values_of(found)
        is_method = type(value) is str and value == METHOD
        return partial(self.call, name, env_idx=env_idx) if is_method and not subattrs else value

    def call(self, name: str, *arguments: Any, env_idx: int = 0, **keywords: Any) -> Any:
        """Call a method of a copy or its wrapped environment; returns its result."""
        self._check_open()
        return self._values_of(self._engine.call([self._known(env_idx)], name, *arguments, **keywords))[0]

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
        steps = map(_four, self.step_some(self._one_each(actions)).values())
        observations, rewards, dones, infos = zip(*steps, strict=True)
        return list(observations), list(rewards), list(dones), list(infos)

    def seed(self, seeds: Sequence[int | None]) -> list[None]:
        """Seed each copy and the sampling of its tasks; takes effect at its next reset."""
        self._seeds.update(self._one_each(seeds))
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
        found = self._reset(options, seeds)
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
        return self._step({index: self._turn(index, action) for index, action in actions.items()})

    @property
    def workers(self) -> list[Any]:
        """Statistics of the main process, then of each worker (:class:`~envlanes.LaneStats`)."""
        return self.stats()

    @holds_interrupts
    def exchange(self) -> None:
        """Play the first queued command of each remote; an exchange that is interrupted has answered nothing."""
        firsts = {index: remote.waiting[0] for index, remote in enumerate(self.remotes) if remote.waiting}
        answers: dict[int, Any] = {}
        turns: dict[int, GymTurn] = {}
        for index, (command, data) in firsts.items():
            try:
                if command == "step":
                    turns[index] = self._turn(index, data["action"])
                elif command == "seed":
                    self._seeds[index] = data["seed"]
                    answers[index] = "done", None
                elif command == "get_attr":
                    answers[index] = "attr", self.get_attr(data["attr"], index, data.get("subattrs"))
            except RagenError as error:
                answers[index] = error
        resets = {index: data for index, (command, data) in firsts.items() if command == "reset"}
        for index, shown in self._reset(resets).items():
            answers[index] = shown if isinstance(shown, Exception) else ("obs", shown)
        answers |= {index: ("transition", _four(step)) for index, step in self._step(turns).items()}
        for index, answer in answers.items():
            self.remotes[index].waiting.popleft()
            self.remotes[index].answers.append(answer)

    def _reset(
        self, options: Mapping[int, Mapping[str, Any]], seeds: Mapping[int, int | None] | None = None
    ) -> dict[int, Any]:
        """Observations or errors of copies by index."""
        self._check_open()
        chosen = {self._known(index): (self._seeds if seeds is None else seeds)[index] for index in options}
        own = {i: {name: value for name, value in each.items() if value is not None} for i, each in options.items()}
        shown = self._engine.reset(chosen, own_options=own) if chosen else {}
        for index, result in shown.items():
            self._seeds[index] = None
            if isinstance(result, EnvFailed):
                self._over.add(index)
                shown[index] = EnvError(f"env {index} could not be reset: {result.text}")
                shown[index].__cause__ = result.error
            else:
                self._over.discard(index)
                shown[index] = self._shown[index] = result.observation
        return shown

    def _turn(self, index: int, action: Any) -> GymTurn:
        if self._known(index) in self._over:
            raise StateError(f"env {index} was stepped, and its episode is over or has not begun: reset it first.")
        return GymTurn(action)

    def _step(self, turns: Mapping[int, GymTurn]) -> dict[int, GymResult]:
        self._check_open()
        results = self._engine.play(turns) if turns else {}
        for index, result in results.items():
            if isinstance(result, EnvFailed):
                info = {"env_error": result.text, "done_mdp": True}
                results[index] = result = GymResult(self._shown[index], 0.0, False, True, info, None)
            self._shown[index] = result.observation
            if result.terminated or result.truncated:
                self._over.add(index)
        return results

    def _one_each(self, values: Sequence[Any]) -> dict[int, Any]:
        if len(values) != self.num_envs:
            raise InputError(f"{len(values)} values for {self.num_envs} environments: expected one for each.")
        return dict(enumerate(values))

    def _known(self, env_idx: int) -> int:
        if env_idx not in range(self.num_envs):
            raise InputError(f"env_idx = {env_idx!r}: expected 0 to {self.num_envs - 1}.")
        return int(env_idx)


class _OfManager:
    """Refers to a manager without a cycle: ``del manager`` ends its workers at once."""

    def __init__(self, manager: ParallelEnvManager, env_idx: int = 0) -> None:
        self._refer, self._env_idx = weakref.ref(manager), env_idx

    @property
    def _manager(self) -> ParallelEnvManager:
        if (manager := self._refer()) is None:
            raise StateError(f"the manager of env {self._env_idx} was deleted.")
        return manager


class FirstEnv(_OfManager):
    """A proxy for the first copy without its wrappers, which reads attributes from the copy's process."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._manager.get_attr(name)
        except EnvError as error:
            if isinstance(error.__cause__, AttributeError):
                raise AttributeError(f"the environment has no attribute {name!r}") from error
            raise


class Remote(_OfManager):
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
        super().__init__(manager, env_idx)
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
            self._manager.exchange()
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is a command to answer; ``recv`` may still take long."""
        return bool(self.answers or self.waiting)

    def close(self) -> None:
        """Close the remote; the manager closes the copy with all others."""
        self.closed = True
        self.waiting.clear()


def _four(step: GymResult) -> tuple[Any, float, bool, dict[str, Any]]:
    """A result in the old interface: observation, reward, done, info."""
    info = {**step.info, "TimeLimit.truncated": True} if step.truncated and not step.terminated else step.info
    return step.observation, step.reward, step.terminated or step.truncated, info
