"""A filter of repeated warnings: the first of a kind is logged in full, further ones are counted."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from envlanes.episode.spec import EnvSpec
from envlanes.errors import counted, without_values


class _Kind(NamedTuple):
    tag: str
    what: str  # without its values
    then: str


@dataclass
class _Counted:
    """Failures of a kind that were not logged one by one.

    Attributes:
        first: The environment whose failure was logged in full.
        logged: Number of environments logged so far, including the first.
        env_ids: Environments not logged yet.
        whats: Descriptions of what happened to them.
    """

    first: int
    logged: int = 1
    env_ids: set[int] = field(default_factory=set)
    whats: set[str] = field(default_factory=set)


class RepeatedMessageFilter:
    """The warnings of one engine."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[_Kind, _Counted] = {}
        self._said_once: set[Hashable] = set()

    def warn(
        self,
        spec: EnvSpec,
        what: str,
        then: str,
        story: str,
        cause: BaseException | None = None,
        after: Iterable[str] = (),
    ) -> None:
        """Warn of a failure of an environment, or count it with equal failures of its tag.

        One warning of each kind is logged in full until :meth:`forget`; later ones are counted, and the count is logged
        when it has doubled since it was last logged.

        Args:
            spec: The environment.
            what: What happened, in words that differ between environments only in numbers, quoted texts (such as
                observations) and returned values.
            then: What follows, as a sentence.
            story: The full description, as a sentence.
            cause: The exception whose traceback is logged with it.
            after: The ``then`` of earlier failures of the same environment, which are no longer counted.
        """
        kind = _Kind(spec.tag, without_values(what), then)
        seen = self._said.get(kind)
        for before in filter(None, [self._said.get(kind._replace(then=each)) for each in after]):
            before.env_ids.discard(spec.env_id)
            cause = None  # its traceback was shown then
            if before.first == spec.env_id:
                story = f"{spec.describe()} failed again in the same way."
        if seen is None:
            self._said[kind] = _Counted(spec.env_id)
            self._log.warning("%s", f"{story} {then}".rstrip(), exc_info=cause)
        else:
            seen.env_ids.add(spec.env_id)
            seen.whats.add(what)

    def say(self, message: str, lasting: Hashable = None) -> None:
        """Log a warning; a ``lasting`` one, such as workers that do not start, becomes INFO after the first time."""
        self._log.log(logging.INFO if lasting in self._said_once else logging.WARNING, "%s", message)
        if lasting is not None:
            self._said_once.add(lasting)

    def sum_up(self, is_end: bool = False) -> None:
        """Log counts that have grown much since they were last logged; at the end, log all of them."""
        for kind, seen in self._said.items():
            if not seen.env_ids or (len(seen.env_ids) < seen.logged and not is_end):
                continue
            what = seen.whats.pop() if len(seen.whats) == 1 else kind.what
            others, of_tag = seen.env_ids - {seen.first}, f"of tag {kind.tag!r}"
            where = f"{counted(len(others), 'more environment')} {of_tag} (env {_ranges(others)})"
            if seen.first in seen.env_ids:
                where = f"{where}, and env {seen.first} again" if others else f"env {seen.first} {of_tag} again"
            self._log.warning("%s", f"{where}: {what}. {kind.then}".rstrip())
            seen.logged += len(others)
            seen.env_ids, seen.whats = set(), set()

    def forget(self) -> None:
        """Log the next failure of each kind in full again."""
        self.sum_up(is_end=True)
        self._said.clear()


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers in short: ``1-3, 7``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = [(members[0][1], members[-1][1]) for _, run in runs for members in [list(run)]]
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in ends)
