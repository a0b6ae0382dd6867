"""Pipe-like objects through which learners send commands to copies of an environment.

Commands are queued. The first ``recv`` plays the queued commands of all copies in as few exchanges as possible: the
first command of each, with one exchange for resets and one for steps, until the called copy has its answer.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ragen.errors import InputError, RagenError, StateError
from ragen.meta.game import four
from ragen.parallel import holds_interrupts

Command = tuple[str, Any]

COMMANDS = ("reset", "step", "get_attr", "seed", "close")


class Copies(Protocol):
    """The interface of :class:`~ragen.meta.manager.ParallelEnvManager` to its remotes."""

    num_envs: int
    remotes: tuple[Remote, ...]

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def get_attr(self, name: str, env_idx: int = 0, subattrs: Sequence[str] | None = None) -> Any:
        """An attribute of a copy."""

    def seed_one(self, env_idx: int, seed: int | None) -> None:
        """Seed a copy."""

    def try_some(self, command: str, items: Mapping[int, Any]) -> dict[int, Any]:
        """Reset or step some copies; results or errors."""


class Remote:
    """One copy, with the interface of a pipe.

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

    def __init__(self, manager: Copies, env_idx: int) -> None:
        """Connect to a copy."""
        self._refer = weakref.ref(manager)  # no cycle: `del manager` ends its workers at once
        self._env_idx = env_idx
        self.waiting: deque[Command] = deque()
        self.answers: deque[Command | RagenError] = deque()
        self.closed = False

    @property
    def _manager(self) -> Copies:
        if (manager := self._refer()) is None:
            raise StateError(f"remote {self._env_idx} is closed: its manager was deleted.")
        return manager

    def send(self, message: Command) -> None:
        """Queue a command.

        Raises:
            InputError: There is no such command, or it lacks an entry.
            StateError: The remote is closed.
        """
        if self.closed or self._manager.closed:
            raise StateError(f"remote {self._env_idx} is closed.")
        command, data = _checked(message)
        if command == "close":
            self.close()
        else:
            self.waiting.append((command, data))

    def recv(self) -> Command:
        """The answer to the first unanswered command.

        Raises:
            EnvError: The copy failed at it; the next command can still be answered.
            StateError: Nothing was sent.
        """
        while not self.answers:
            if not self.waiting:
                raise StateError(f"remote {self._env_idx} was asked for an answer, and nothing was sent.")
            exchange(self._manager)
        answer = self.answers.popleft()
        if isinstance(answer, RagenError):
            raise answer
        return answer

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is a command to answer; ``recv`` may still take long."""
        return bool(self.answers or self.waiting)

    def close(self) -> None:
        """Close the remote; the manager closes the copy with all others."""
        self.closed = True
        self.waiting.clear()

    def fileno(self) -> int:
        """Raise, since there is no descriptor to wait on.

        Raises:
            StateError: Always.
        """
        raise StateError("a remote has no descriptor: several share one exchange, so call recv instead of waiting.")


class FirstEnv:
    """A proxy for the first copy without its wrappers, which reads attributes from the copy's process."""

    def __init__(self, manager: Copies) -> None:
        """Create a proxy for a manager's first copy."""
        self._refer = weakref.ref(manager)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (manager := self._refer()) is None:
            raise StateError("the manager of this environment was deleted.")
        try:
            return manager.get_attr(name)
        except RagenError as error:
            if isinstance(error.__cause__, AttributeError):
                raise AttributeError(f"the environment has no attribute {name!r}") from error
            raise

    def __repr__(self) -> str:
        manager = self._refer()
        return f"<env 0 of {manager.num_envs if manager else 'a deleted manager'}, without its wrappers>"


@holds_interrupts
def exchange(manager: Copies) -> None:
    """Play the first queued command of each remote."""
    firsts = {index: remote.waiting[0] for index, remote in enumerate(manager.remotes) if remote.waiting}
    resets = {index: data for index, (command, data) in firsts.items() if command == "reset"}
    steps = {index: data["action"] for index, (command, data) in firsts.items() if command == "step"}
    answers: dict[int, Command | RagenError] = {}
    for index, (command, data) in firsts.items():
        if command in ("get_attr", "seed"):
            answers[index] = _asked(manager, index, command, data)
    answers |= _played(manager, "reset", resets) | _played(manager, "step", steps)
    for index, answer in answers.items():  # an exchange that is interrupted has answered nothing
        manager.remotes[index].waiting.popleft()
        manager.remotes[index].answers.append(answer)


def _played(manager: Copies, command: str, items: Mapping[int, Any]) -> dict[int, Command | RagenError]:
    """Answers of copies; if one of them raises, the copies are queried one by one."""
    if not items:
        return {}
    done = manager.try_some(command, items)
    kind = {"reset": "obs", "step": "transition"}[command]
    return {
        index: value if isinstance(value, RagenError) else (kind, four(value) if command == "step" else value)
        for index, value in done.items()
    }


def _asked(manager: Copies, index: int, command: str, data: Mapping[str, Any]) -> Command | RagenError:
    try:
        if command == "seed":
            manager.seed_one(index, data["seed"])
            return "done", None
        return "attr", manager.get_attr(data["attr"], index, data.get("subattrs"))
    except RagenError as error:
        return error


def _checked(message: Any) -> Command:
    needed = {"step": "action", "get_attr": "attr", "seed": "seed"}
    if not isinstance(message, tuple) or len(message) != 2 or message[0] not in COMMANDS:
        raise InputError(f"{message!r} was sent: expected (command, data), command one of {', '.join(COMMANDS)}.")
    command, data = message
    given = {} if data is None else data
    if not isinstance(given, Mapping) or needed.get(command, "") not in {"", *given}:
        raise InputError(f"{command!r} was sent with {data!r}: expected a dict with {needed.get(command)!r}.")
    return command, given
