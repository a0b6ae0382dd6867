"""Branches: environments that a manager adds in mid-episode as copies of another environment at one of its turns.

::

    env 0    reset -- turn 1 -- turn 2 -- turn 3 -- ...
                                  |
    branch(0, copies=2, turn=2)   +-- env 16: turn 3, turn 4 ...
                                  +-- env 32: turn 3, turn 4 ...

A branch begins with copies of its parent's history, rewards, action count and penalty up to that turn. It is played by
its id like any other environment, and exists until it is released or until the next reset. The configured environments
(``envs``, the groups, their metrics) are not affected.

With n configured environments, the k-th branch of environment r has the id k * n + r, so that branches of one
environment do not affect the ids of others' branches.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ragen.errors import InputError
from ragen.llm_agent.manager.handle import EnvHandle
from ragen.llm_agent.manager.inputs import EnvStatus
from ragen.parallel.engine import EnvEngine
from ragen.parallel.episode.values import copied

Cache = dict[str, Any]


class Branch(NamedTuple):
    """An environment that a manager has added.

    Attributes:
        entry: Its entry, like those in ``EnvStateManager.envs``.
        cache: Its rollout cache, with ``parent`` and ``turn``.
    """

    entry: dict[str, Any]
    cache: Cache


class Branches:
    """The branches of one manager, in the current episode.

    Attributes:
        live: Unreleased branches, by env_id.
        invalid: Turns with invalid actions by env_id, counted from 0; recorded by the manager.
    """

    def __init__(self, engine: EnvEngine, envs: Sequence[dict[str, Any]], format_penalty: float) -> None:
        """Begin without branches.

        Args:
            engine: The manager's engine.
            envs: The configured environments.
            format_penalty: The penalty of a turn with invalid actions.
        """
        self.live: dict[int, Branch] = {}
        self._engine, self._envs, self._format_penalty = engine, envs, format_penalty
        self._made: Counter[int] = Counter()  # by the configured environment from which they descend
        self.invalid: dict[int, list[int]] = {}

    def add(self, caches: Sequence[Cache], env_id: int, copies: int, turn: int | None) -> list[Branch]:
        """Add branches of an environment; see :meth:`~ragen.llm_agent.es_manager.EnvStateManager.branch`.

        Args:
            caches: The rollout caches of ``envs``.
            env_id: The environment.
            copies: How many.
            turn: The turn after which to branch; None for the current state.
        """
        parent = self._parent(caches, env_id)
        _check_copies(copies)
        after = _checked_turn(parent.entry, turn)
        count = len(self._envs)
        origin = parent.entry["env_id"] % count
        made = self._made[origin]
        new_ids = [number * count + origin for number in range(made + 1, made + 1 + copies)]
        self._engine.fork(parent.entry["env_id"], new_ids, turn)
        self._made[origin] = made + copies
        added = [self._branch(parent, new_id, after) for new_id in new_ids]
        self.live.update(zip(new_ids, added, strict=True))
        return added

    def remove(self, env_ids: Iterable[int]) -> set[int]:
        """Close branches; if any id is unknown, none is closed.

        Returns:
            Their ids.

        Raises:
            InputError: One is not a branch.
        """
        if not isinstance(env_ids, Iterable):
            raise InputError(f"release got {env_ids!r}; expected a list of ids of branches.")
        leaving: set[int] = set()
        for given in env_ids:
            env_id = _as_id(given)
            if env_id not in self.live:
                why = (
                    "an environment of the configuration"
                    if env_id in range(len(self._envs))
                    else "already released, or never created"
                )
                raise InputError(f"release got env_id = {given!r}, which is not a branch: it is {why}.")
            leaving.add(env_id)
        self._engine.remove(leaving)
        for env_id in leaving:
            del self.live[env_id]
            self.invalid.pop(env_id, None)
        return leaving

    def begin_episode(self) -> None:
        """Close all branches, and restart their numbering."""
        if self.live:
            self.remove(list(self.live))
        self._made.clear()
        self.invalid.clear()

    def _parent(self, caches: Sequence[Cache], env_id: int) -> Branch:
        index = _as_id(env_id)
        if index in self.live:
            return self.live[index]
        if not 0 <= index < len(self._envs):
            known = f"an integer from 0 to {len(self._envs) - 1}, or the id of a branch"
            raise InputError(f"branch got env_id = {env_id!r}; expected {known}.")
        return Branch(self._envs[index], caches[index])

    def _branch(self, parent: Branch, env_id: int, turn: int) -> Branch:
        """The entry and the cache of a fork, copied from the parent's after a turn."""
        entry, cache = parent
        history = history_until(cache["history"], turn)
        status: EnvStatus = entry["status"]
        executed = sum(len(played["actions"]) for played in history[:turn])
        invalid = [each for each in self.invalid.get(entry["env_id"], ()) if each < turn]
        penalty: float = 0
        for _ in invalid:  # summed one by one, as in the parent, for equal rounding
            penalty += self._format_penalty
        if invalid:
            self.invalid[env_id] = invalid
        mine = {
            **entry,
            "env_id": env_id,
            "env": EnvHandle(self._engine, env_id),
            "config": self._engine.records[env_id].spec.config,
            "status": EnvStatus(num_actions=executed, rewards=status.rewards[:turn], seed=status.seed),
        }
        known = {name: cache[name] for name in ("group_id", "tag")}
        lineage = {"parent": entry["env_id"], "turn": turn}
        return Branch(mine, {"env_id": env_id, **known, "history": history, "penalty": penalty, **lineage})


def entry_of(manager: Any, env_id: int) -> dict[str, Any]:
    """The entry of a manager's environment, configured or branch."""
    return manager.envs[env_id] if env_id < len(manager.envs) else manager.branches[env_id].entry


def history_until(history: Sequence[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
    """A copy of a history's first turns, and of the initial state of the next one."""
    played = [copied({name: value for name, value in each.items() if name != "metrics"}) for each in history[:turn]]
    shown: dict[str, Any] = {}
    for name, value in history[turn].items():
        if name == "actions":  # this and later keys were written when the turn was played
            break
        if name != "metrics":
            shown[name] = copy.copy(value) if name != "images" else [image.copy() for image in value]
    return [*played, shown]


def _as_id(value: Any) -> int:
    """An id as an integer; -1, which is never used, for invalid values."""
    try:
        return -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return -1


def _check_copies(copies: Any) -> None:
    if not isinstance(copies, int) or isinstance(copies, bool) or copies < 1:
        raise InputError(f"branch got copies = {copies!r}; expected an integer of at least 1.")


def _checked_turn(entry: dict[str, Any], turn: Any) -> int:
    """The number of turns after which a branch begins.

    Raises:
        InputError: The environment has not played that many, or its episode ended with that turn.
    """
    status: EnvStatus = entry["status"]
    played, env_id = len(status.rewards), entry["env_id"]
    last = played - 1 if status.terminated else played
    if turn is None and not status.terminated:
        return played
    if turn is None:
        raise InputError(
            f"the episode of env_id = {env_id} is over: branch from one of its earlier turns, 0 (its reset) to {last}."
        )
    if not isinstance(turn, int) or isinstance(turn, bool) or not 0 <= turn <= last:
        over = ", since its episode is over" if status.terminated else ", or None for now"
        raise InputError(f"branch got turn = {turn!r}; env_id = {env_id} has 0 (its reset) to {last}{over}.")
    return turn
