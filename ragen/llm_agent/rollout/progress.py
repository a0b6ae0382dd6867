"""How far a rollout is: a bar on a terminal, and lines in a log.

What is told are replies, since a turn may take as long as the slowest of them: how many came, how many trajectories
are finished, tokens, cost, and how many requests are under way. A thread tells it, so that nothing which hangs keeps it
from being told.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from ragen.llm_agent.backends.base import Activity
from ragen.llm_agent.rollout.stopping import counted

EVERY_S = 30.0
_MILESTONES = 10  # lines in a log, over all trajectories


class Progress:
    """What there is to tell of one rollout.

    Attributes:
        finished: How many trajectories are finished, those of earlier runs too.
    """

    def __init__(
        self, activity: Activity, used: Callable[[], Mapping[str, float]], trajectories: int, finished: int = 0
    ) -> None:
        """Begin now.

        Args:
            activity: What is under way, and how many replies came.
            used: Tells tokens and cost of all runs.
            trajectories: How many there are to be.
            finished: How many of them earlier runs have finished.
        """
        self.finished = finished
        self._activity, self._used, self._trajectories = activity, used, trajectories
        self._told = self._milestone()
        self._start = time.monotonic()

    def over(self, trajectories: int) -> None:
        """So many more are finished; where rollouts branch, there may be more than were expected."""
        self.finished += trajectories
        self._trajectories = max(self._trajectories, self.finished)

    def replies(self) -> int:
        """How many replies came."""
        return self._activity.replies

    def words(self) -> str:
        """All of it in a line."""
        usage, doing = self._used(), self._activity
        tokens = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
        parts = [counted(doing.replies, "reply", "replies") + (f" ({doing.kept} kept)" if doing.kept else "")]
        parts.append(f"{self.finished}/{self._trajectories} trajectories")
        parts += [f"{tokens:,.0f} tokens"] if tokens else []
        parts += [f"${usage['cost']:,.4f}"] if "cost" in usage else []
        parts.append(f"{doing.under_way} under way")
        return ", ".join(parts)

    @contextmanager
    def shown(self, stream: TextIO | None = None, every: float = EVERY_S) -> Iterator[None]:
        """Tell it for the length of a block.

        Args:
            stream: Where to; standard error if left out.
            every: Seconds between two lines in a log.
        """
        stream = sys.stderr if stream is None else stream
        with self._bar(stream) if stream.isatty() else self._lines(stream, every):
            yield

    @contextmanager
    def _bar(self, stream: TextIO) -> Iterator[None]:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task, TimeElapsedColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        class Words(ProgressColumn):
            def render(_, task: Task) -> Text:
                bar.update(task.id, completed=self.finished)
                return Text(self.words())

        bar = Bar(BarColumn(10), Words(), TimeElapsedColumn(), console=Console(file=stream), refresh_per_second=4)
        with bar:
            task = bar.add_task("rollout", total=self._trajectories, completed=self.finished)
            yield
            bar.update(task, completed=self.finished)

    @contextmanager
    def _lines(self, stream: TextIO, every: float) -> Iterator[None]:
        is_over = threading.Event()
        teller = threading.Thread(target=self._tell, args=(stream, every, is_over), name="ragen-progress", daemon=True)
        teller.start()
        try:
            yield
        finally:
            is_over.set()
            teller.join()
            self._line(stream)

    def _tell(self, stream: TextIO, every: float, is_over: threading.Event) -> None:
        told_at = time.monotonic()
        while not is_over.wait(min(every, 0.5)):
            milestone = self._milestone()
            if milestone > self._told or time.monotonic() - told_at >= every:
                self._told, told_at = milestone, time.monotonic()
                self._line(stream)

    def _milestone(self) -> int:
        return _MILESTONES * self.finished // max(1, self._trajectories)

    def _line(self, stream: TextIO) -> None:
        seconds = int(time.monotonic() - self._start)
        clock = f"{seconds // 3600:d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        try:
            stream.write(f"[{clock}] {self.words()}\n")
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            return
