"""Turns of many gymnasium environments in one piece: what :mod:`ragen.games.gym_game` does, without an object for each.

Observations that are small arrays of the expected type and shape are kept as their bytes, which are at once the copy
that leaves the environment, most of the digest, and, put together, the batch. All that is out of the ordinary (an
episode that begins, an observation of another shape) is done by the game itself, turn by turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pickle import PickleBuffer
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ragen.games.columns import packed, unpacked
from ragen.games.gym_game import GYM, NEVER, GymResult, GymTurn, detached_reward
from ragen.games.slab import Place
from ragen.games.values import NUMBERS, SHORT, detached, digest_of, digest_of_bytes
from ragen.parallel.episode.game import UNINTERRUPTED
from ragen.parallel.episode.returned import FIVE, wrong_step
from ragen.parallel.episode.rows import Row, RowBroken, RowResult
from ragen.parallel.episode.turn import named

Moment = tuple[int, int | None, dict[str, Any] | None, Place | None]  # a GymTurn without its action
USUAL: Moment = (NEVER, None, None, None)
MOST = 4096  # bytes of an observation that is kept so: more of them gain nothing
UNINTERRUPTED.add(__file__)


class Form(NamedTuple):
    """What observations usually are.

    Attributes:
        dtype: Of arrays, as text.
        shape: Likewise; () for NumPy's scalars.
        size: Bytes of one.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, dtype: Any, shape: tuple[int, ...]) -> Form:
        """Arrays of a type and a shape."""
        return cls(dtype.str, shape, dtype.itemsize * int(np.prod(shape, dtype=np.int64)))

    def holds(self, observation: Any) -> bool:
        """Whether an observation is such a one."""
        kind = np.ndarray if self.shape else np.dtype(self.dtype).type
        return (
            type(observation) is kind and observation.dtype is np.dtype(self.dtype) and observation.shape == self.shape
        )


_NONE = Form("|O", (-1,), 0)  # which no observation has


class GymRow(Row):
    """A turn of each of some environments.

    Attributes:
        actions: An action for each: a column of an array, or a list; the row's own, and written by nobody.
        form: What observations usually are; None where they are not arrays.
        usual: What most turns are, but for their actions.
        special: What the others are, by index.
    """

    __slots__ = ("actions", "form", "special", "usual")

    def __init__(
        self,
        env_ids: Sequence[int],
        actions: Any,
        form: Form | None,
        usual: Moment = USUAL,
        special: dict[int, Moment] | None = None,
    ) -> None:
        """Ask for these."""
        self.env_ids, self.actions, self.form = env_ids, actions, form
        self.usual, self.special = usual, special or {}

    def __reduce__(self) -> Any:
        form = self.form and tuple(self.form)
        return _row, (list(self.env_ids), _flat(self.actions), form, self.usual, self.special)

    def turn(self, index: int) -> GymTurn:
        """What is asked of one of them."""
        return named(GymTurn, (self.actions[index], *self.special.get(index, self.usual)))

    def part(self, indices: Sequence[int]) -> GymRow:
        """Some of them."""
        actions, special = self.actions, {}
        if type(indices) is range:
            piece = slice(indices.start, indices.stop)
            env_ids, actions = self.env_ids[piece], actions[piece]
        else:
            env_ids = [self.env_ids[index] for index in indices]
            actions = actions[list(indices)] if isinstance(actions, np.ndarray) else [actions[i] for i in indices]
        if self.special:
            special = {new: self.special[old] for new, old in enumerate(indices) if old in self.special}
        return GymRow(env_ids, actions, self.form, self.usual, special)

    def _given(self) -> list[Any]:
        """The actions, in copies that environments may keep."""
        actions = self.actions
        if isinstance(actions, np.ndarray):
            return list(actions.copy() if actions.ndim > 1 else actions)
        return [detached(action) for action in actions]

    def play(self, envs: Sequence[Any], watch: Any) -> GymRowResult:
        """Play all turns; see :meth:`Row.play`."""
        result = GymRowResult(self.form)
        try:
            self._play(envs, watch, result)
        except BaseException as error:
            raise RowBroken(result) from error
        finally:
            result.join()
        return result

    def _play(self, envs: Sequence[Any], watch: Any, result: GymRowResult) -> None:
        form = self.form or _NONE
        dtype, shape, kind = np.dtype(form.dtype), form.shape, np.ndarray if form.shape else np.dtype(form.dtype).type
        special, begins, mark = self.special, self.usual[0], watch.mark
        shown, rewards, odd, infos, ends = result.shown, result.rewards, result.odd, result.infos, result.ends
        watch.since = perf_counter()
        for env, action in zip(envs, self._given(), strict=True):
            if mark is not None:
                mark(len(rewards))
            if special and len(rewards) in special:
                result.add(GYM.play(env, self.turn(len(rewards))))
                watch.since = perf_counter()
                continue
            stepped = env.step(action)
            try:
                observation, reward, terminated, truncated, info = stepped
            except Exception as error:
                raise wrong_step(env, stepped, FIVE) from error
            if terminated or truncated:
                if begins:
                    result.add(GYM.stepped(env, self.turn(len(rewards)), stepped))
                    watch.since = perf_counter()
                    continue
                ends[len(rewards)] = bool(terminated), bool(truncated)
            if info:
                infos[len(rewards)] = detached(info)
            if type(observation) is kind and observation.dtype is dtype and observation.shape == shape:
                shown.append(observation.tobytes())
            else:
                odd[len(rewards)] = detached(observation), digest_of(observation)
                shown.append(bytes(form.size))
            rewards.append(reward if type(reward) in NUMBERS else detached_reward(env, reward))
            watch.since = perf_counter()


class GymRowResult(RowResult):
    """What came of a row, by column.

    Attributes:
        form: What observations usually are.
        shown: Bytes of each observation, in one piece at the end; zeros for one that is odd.
        odd: By index, observations that are something else, with their digests.
        rewards: Of each turn.
        ends: By index, whether an episode was terminated and whether it was truncated; of those that were.
        infos: By index, what was told; of those that told something.
        begins: By index, the game's own results of turns in which an episode began.
        digests: Of each observation, once the bytes are forgotten.
    """

    __slots__ = ("begins", "digests", "ends", "form", "infos", "odd", "rewards", "shown")

    def __init__(self, form: Form | None) -> None:
        """Nothing yet."""
        self.form = form
        self.shown: Any = []
        self.odd: dict[int, tuple[Any, Any]] = {}
        self.rewards: list[Any] = []
        self.ends: dict[int, tuple[bool, bool]] = {}
        self.infos: dict[int, Any] = {}
        self.begins: dict[int, GymResult] = {}
        self.digests: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    def __reduce__(self) -> Any:
        infos = list(self.infos), packed(list(self.infos.values()))
        kept = (self.shown, self.odd, packed(self.rewards), self.ends, infos, self.begins)
        return _row_result, (self.form and tuple(self.form), kept)

    def join(self) -> None:
        """No more turns will come."""
        self.shown = b"".join(self.shown)

    def add(self, result: GymResult) -> None:
        """Take in a turn that the game has played."""
        observation, reward, terminated, truncated, info, digest, _, began = result
        index = len(self.rewards)
        if self.form is not None and self.form.holds(observation):
            self.shown.append(observation.tobytes())
        else:
            self.shown.append(b"" if self.form is None else bytes(self.form.size))
            self.odd[index] = observation, digest
        self.rewards.append(reward)
        if terminated or truncated:
            self.ends[index] = terminated, truncated
        if info:
            self.infos[index] = info
        if began is not None:
            self.begins[index] = result

    def one(self, index: int) -> GymResult:
        """What came of one of them."""
        if index in self.begins:
            return self.begins[index]
        reward, terminated, truncated, digest = self.recorded(index)
        info = self.infos.get(index, {})
        return GymResult(self._observed(index), reward, terminated, truncated, info, digest)

    def recorded(self, index: int) -> tuple[Any, ...]:
        """Reward, flags and digest of one of them."""
        terminated, truncated = self.ends.get(index, (False, False))
        return self.rewards[index], terminated, truncated, self._digest(index)

    def _digest(self, index: int) -> Any:
        if index in self.begins:
            return self.begins[index].digest
        if index in self.odd:
            return self.odd[index][1]
        if self.digests is not None:
            return self.digests[index]
        assert self.form is not None
        return digest_of_bytes(self._bytes(index), np.dtype(self.form.dtype), self.form.shape)

    def _observed(self, index: int) -> Any:
        if index in self.odd:
            return self.odd[index][0]
        assert self.form is not None and self.digests is None
        dtype, shape = np.dtype(self.form.dtype), self.form.shape
        found = np.frombuffer(self._bytes(index), dtype).reshape(shape).copy()
        return found if shape else found[()]

    def _bytes(self, index: int) -> bytes:
        assert self.form is not None
        return self.shown[index * self.form.size : (index + 1) * self.form.size]

    def begun(self) -> Sequence[int]:
        """Indices of those in whose turn an episode began."""
        return list(self.begins)

    def forget(self) -> None:
        """Keep no more of observations than a journal does, where that is less."""
        if self.form is not None and self.digests is None and self.form.size > SHORT:
            self.digests = [self._digest(index) for index in range(len(self))]
            self.shown = b""

    def batch(self) -> np.ndarray | None:
        """All observations as one array of their own; None where some are odd."""
        if self.odd or self.form is None:
            return None
        return np.frombuffer(bytearray(self.shown), self.form.dtype).reshape(len(self.rewards), *self.form.shape)


# Rows and results travel as built-in types as far as can be: the pickler looks at each object that is none.


def _flat(actions: Any) -> tuple[Any, ...]:
    if not isinstance(actions, np.ndarray) or actions.dtype.kind not in "biufc":
        return None, actions
    apart: Any = np.ascontiguousarray(actions)
    return actions.dtype.str, actions.shape, actions.tobytes() if actions.nbytes <= MOST else PickleBuffer(apart)


def _row(env_ids: list[int], flat: Any, form: tuple[Any, ...] | None, usual: Moment, special: Any) -> GymRow:
    actions = flat[1] if flat[0] is None else np.ndarray(flat[1], flat[0], flat[2])
    return GymRow(env_ids, actions, Form(*form) if form else None, usual, special)


def _row_result(form: tuple[Any, ...] | None, kept: tuple[Any, ...]) -> GymRowResult:
    result = GymRowResult(Form(*form) if form else None)
    result.shown, result.odd, rewards, result.ends, (places, infos), result.begins = kept
    result.rewards, result.infos = unpacked(rewards), dict(zip(places, unpacked(infos), strict=True))
    return result
