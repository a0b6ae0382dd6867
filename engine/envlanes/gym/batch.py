"""Arrays and infos of a vector environment, built from those of its sub-environments.

Infos follow gymnasium's rules: a key of any sub-environment becomes an array over all of them, with a mask under the
key prefixed by an underscore. The first value determines the kind of array: numbers and arrays are stacked,
dictionaries merged recursively, and anything else, as well as final observations, goes into an array of objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import concatenate, create_empty_array

from envlanes.games.gym_game import GymResult, Shown
from envlanes.gym.sub_envs import UNKNOWN

Infos = dict[str, Any]
Stepped = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Infos]


class Batches:
    """Builds arrays of one space.

    Attributes:
        observations: The array that is returned repeatedly if nothing is copied.
    """

    def __init__(self, space: Space, count: int, copies: bool) -> None:
        """Prepare arrays for ``count`` environments.

        Args:
            space: The space of a single observation.
            count: Number of environments.
            copies: Whether every batch is a new array.
        """
        self._space, self._count, self._copies = space, count, copies
        self.observations: Any = create_empty_array(space, n=count, fn=np.zeros)
        self._nothing = create_empty_array(space, n=1, fn=np.zeros)

    def observed(self, shown: Sequence[Any]) -> Any:
        """Observations of single environments as one batch; zeros for those without one."""
        items = list(shown)
        if id(UNKNOWN) in map(id, items):
            items = [self._blank() if each is UNKNOWN else each for each in items]
        if len(items) == self._count and not self._copies:
            self.observations = concatenate(self._space, items, self.observations)
            return self.observations
        empty: Any = create_empty_array(self._space, n=len(items), fn=np.empty)
        return concatenate(self._space, items, empty)

    def of_reset(self, last: Sequence[Any], ids: Sequence[int], shown: Sequence[Shown]) -> tuple[Any, Infos]:
        """The observations of all environments after some were reset, and the infos of those."""
        infos: list[Infos] = [{}] * self._count
        for index, each in zip(ids, shown, strict=True):
            infos[index] = each.info
        return self.observed(last), merged(infos, self._count)

    def of_step(self, results: Sequence[GymResult]) -> Stepped:
        """The results of a step of environments, in their order."""
        observations, rewards, terminated, truncated, infos, _, finals, _ = zip(*results, strict=True)
        if finals.count(None) < len(finals):
            infos = tuple(map(_with_final, infos, finals))
        return (
            self.observed(observations),
            np.array(rewards, dtype=np.float64).reshape(len(results)),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
            merged(infos),
        )

    def _blank(self) -> Any:
        from gymnasium.vector.utils import iterate

        try:
            return deepcopy(next(iter(iterate(self._batch_of_one(), self._nothing))))
        except Exception:  # observations without a fixed shape have no zeros
            return self._space.sample()

    def _batch_of_one(self) -> Space:
        from gymnasium.vector.utils import batch_space

        return batch_space(self._space, 1)


def _with_final(info: Infos, final: Shown | None) -> Infos:
    return info if final is None else {"final_obs": final.observation, "final_info": final.info, **info}


def merged(infos: Sequence[Infos], count: int | None = None) -> Infos:
    """The merged infos of environments, in order; missing ones are empty."""
    count = len(infos) if count is None else count
    if not any(infos):
        return {}
    present = [(row, info) for row, info in enumerate(infos) if info]
    found = _alike([info for _, info in present]) if len(present) == count else None
    if found is None:
        found = {}
        for row, info in present:
            _add(found, info, row, count)
    return found


def _alike(infos: list[Infos]) -> Infos | None:
    """The merged infos, computed at once if all environments have the same keys and only numbers; else None."""
    keys = list(infos[0])
    if any(list(info) != keys for info in infos):
        return None
    found: Infos = {}
    for key in keys:
        kind = type(infos[0][key])
        if not _is_number(kind) or key == "final_obs" or any(type(info[key]) is not kind for info in infos):
            return None
        found[key] = np.array([info[key] for info in infos], dtype=kind)
        found[f"_{key}"] = np.ones(len(infos), dtype=np.bool_)
    return found


def _add(found: Infos, info: Infos, row: int, count: int) -> None:
    for key, value in info.items():
        if isinstance(value, dict) and key != "final_obs":
            column = found.get(key, {})
            _add(column, value, row, count)
        else:
            column = found[key] if key in found else _column(key, value, count)
            column[row] = value
        mask = found.get(f"_{key}")
        if mask is None:
            mask = np.zeros(count, dtype=np.bool_)
        mask[row] = True
        found[key], found[f"_{key}"] = column, mask


def _column(key: str, value: Any, count: int) -> np.ndarray:
    if key != "final_obs":
        if _is_number(type(value)):
            return np.zeros(count, dtype=type(value))
        if isinstance(value, np.ndarray):
            return np.zeros((count, *value.shape), dtype=value.dtype)
    return np.full(count, None, dtype=object)


def _is_number(kind: type) -> bool:
    return kind in (int, float, bool) or issubclass(kind, np.number)
