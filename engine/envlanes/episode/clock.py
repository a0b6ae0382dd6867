"""The time that resets and turns take, and how much of it a processor computed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from operator import add
from typing import Any, NamedTuple

from envlanes import linux

try:
    from resource import RUSAGE_CHILDREN, getrusage
except ImportError:  # on Windows
    getrusage = None  # type: ignore[assignment]


class Spent(NamedTuple):
    """The time that several resets or turns took.

    Attributes:
        number: Their number.
        seconds: Their total time.
        usual: Their number without the longest of each batch, and without the first in each process.
        usual_total_s: Total time of these.
        computed_s: Processor seconds of their process and its children meanwhile.
    """

    number: int = 0
    seconds: float = 0.0
    usual: int = 0
    usual_total_s: float = 0.0
    computed_s: float = 0.0

    @classmethod
    def of(cls, times: Sequence[float], computed_s: float = 0.0, is_first: bool = True) -> Spent:
        """A batch whose items took these seconds each; ``is_first`` in its process."""
        seconds, left_out = sum(times), len(times) > 1 or is_first
        rest = seconds - max(times) if left_out else seconds
        return cls(len(times), seconds, len(times) - left_out, rest, computed_s)

    def __add__(self, more: Any) -> Spent:
        """The sum of both, not a longer tuple."""
        return Spent(*map(add, self, more))

    @property
    def usual_s(self) -> float:
        """Mean seconds of a usual one; of all if none was usual, 0 if there were none.

        The longest of a batch may have imported a module, or have waited for a processor of a busy machine.
        """
        total, number = (self.usual_total_s, self.usual) if self.usual else (self.seconds, self.number)
        return total / number if number else 0.0

    @property
    def busy(self) -> float:
        """Processors that one of them keeps busy: 1 if it computes, 0 if it waits, more if it computes in parallel."""
        return self.computed_s / self.seconds if self.seconds else 1.0


def usage(with_children: bool = False) -> tuple[float, float]:
    """The time on ``time.perf_counter()``, and processor seconds of this process and its child processes until now.

    Children that have not ended count only ``with_children``: reading their clocks takes a tenth of a millisecond.
    """
    computed = time.process_time()
    if with_children:
        for pid in linux.descendants(os.getpid()):
            with suppress(OSError):  # it has ended
                computed += time.clock_gettime((~pid << 3) | 2)  # Linux's clock_getcpuclockid
    if getrusage is not None:  # children that have ended, such as the programs that an environment runs
        ended = getrusage(RUSAGE_CHILDREN)
        computed += ended.ru_utime + ended.ru_stime
    return time.perf_counter(), computed
