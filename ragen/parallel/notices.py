"""What is said of failures: the first of a kind in full, others of it counted, and what is lasting said once."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import NamedTuple

from ragen.parallel.episode.spec import EnvSpec


class _Kind(NamedTuple):
    tag: str
    what: str
    then: str


class Notices:
    """The warnings of one engine."""

    def __init__(self, log: logging.Logger) -> None:
        """Write into this log."""
        self._log = log
        self._said: set[_Kind] = set()
        self._said_once: set[Hashable] = set()
        self._more: dict[_Kind, set[int]] = defaultdict(set)

    def warn(self, spec: EnvSpec, what: str, then: str, story: str, cause: BaseException | None = None) -> None:
        """Warn of what happened to an environment, or count it with those of its tag of which the same was said.

        One warning of each kind is in full until :meth:`forget`, what comes after it is one line for each call.

        Args:
            spec: The environment.
            what: What happened, in words that do not tell one environment from another.
            then: What follows, a sentence.
            story: What happened, in full, a sentence.
            cause: The exception whose traceback belongs to it.
        """
        kind = _Kind(spec.tag, what, then)
        if kind in self._said:
            self._more[kind].add(spec.env_id)
        else:
            self._said.add(kind)
            self._log.warning("%s %s", story, then, exc_info=cause)

    def once(self, key: Hashable, message: str) -> None:
        """Warn of something that lasts; the next time it is information only."""
        self._log.log(logging.INFO if key in self._said_once else logging.WARNING, "%s", message)
        self._said_once.add(key)

    def lane(self, is_lasting: bool, key: Hashable, message: str) -> None:
        """Warn of a lane's failure; of one that lasts, such as workers that do not start, once."""
        if is_lasting:
            self.once(key, message)
        else:
            self._log.warning("%s", message)

    def sum_up(self) -> None:
        """Tell what was only counted since this was last called."""
        more, self._more = self._more, defaultdict(set)
        for kind, env_ids in more.items():
            listed = _ranges(env_ids)
            self._log.warning("and %d more of tag %r (env %s): %s. %s", len(env_ids), kind.tag, listed, *kind[1:])

    def forget(self) -> None:
        """From now on tell everything in full again, once."""
        self._said.clear()


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers in short: ``1-3, 7``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = [(members[0][1], members[-1][1]) for _, run in runs for members in [list(run)]]
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in ends)
