"""Arrays from the results of single environments."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import concatenate, create_empty_array

from ragen.games.gym_game import GymResult, Shown
from ragen.vector.fleet import UNKNOWN
from ragen.vector.infos import Infos, merged

Stepped = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Infos]


class Batches:
    """Makes arrays of one space.

    Attributes:
        observations: The array that is handed out again and again where nothing is copied.
    """

    def __init__(self, space: Space, count: int, copies: bool) -> None:
        """Make arrays for so many environments.

        Args:
            space: Of one observation.
            count: Number of environments.
            copies: Whether every batch is an array of its own.
        """
        self._space, self._count, self._copies = space, count, copies
        self.observations: Any = create_empty_array(space, n=count, fn=np.zeros)
        self._nothing = create_empty_array(space, n=1, fn=np.zeros)

    def observed(self, shown: Sequence[Any]) -> Any:
        """Observations of single environments as one; zeros of those that have shown none."""
        items = [self._blank() if each is UNKNOWN else each for each in shown]
        if len(items) == self._count and not self._copies:
            self.observations = concatenate(self._space, items, self.observations)
            return self.observations
        empty: Any = create_empty_array(self._space, n=len(items), fn=np.empty)
        return concatenate(self._space, items, empty)

    def of_reset(self, last: Sequence[Any], ids: Sequence[int], shown: Sequence[Shown]) -> tuple[Any, Infos]:
        """What all environments show after some of them were reset, and the infos of those."""
        infos: list[Infos] = [{}] * self._count
        for index, each in zip(ids, shown, strict=True):
            infos[index] = each.info
        return self.observed(last), merged(infos, self._count)

    def of_step(self, results: Sequence[GymResult]) -> Stepped:
        """What a step of environments gave, in their order."""
        observations, rewards, terminated, truncated, infos, _, finals, _ = zip(*results, strict=True)
        if any(final is not None for final in finals):
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
