"""The progress of a rollout: a bar on a terminal, or lines in a log.

It shows the numbers of finished and of successful trajectories, replies (a turn may take as long as the slowest of
them), tokens, cost, and requests under way. A separate thread writes it, so that a hanging rollout does not block it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from ragen.commands import clock
from ragen.errors import counted
from ragen.llm_agent.backends.base import Activity, tokens_of

EVERY_S = 30.0
_MILESTONES = 10  # lines in a log, over all trajectories
_BAR = 10  # columns


def spent(usage: Mapping[str, float]) -> dict[str, str]:
    """The tokens and the cost of some usage in words; nothing of what is 0 or unknown."""
    tokens = tokens_of(usage)
    cost = {"cost": f"${usage['cost']:,.4f}"} if "cost" in usage else {}
    return ({"tokens": f"{tokens:,.0f} tokens"} if tokens else {}) | cost


class RolloutProgress:
    """The progress of one rollout.

    Attributes:
        finished: Number of finished trajectories, including those of earlier runs.
    """

    def __init__(
        self,
        activity: Activity,
        used: Callable[[], Mapping[str, float]],
        trajectories: int,
        earlier: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Begin now.

        Args:
            activity: The requests under way and the replies.
            used: Returns tokens, cost and retries of all runs.
            trajectories: Number of trajectories, including those of earlier runs.
            earlier: Number finished by earlier runs, how many of these can be judged, and how many of those succeeded.
        """
        self.finished, self._judged, self._succeeded = earlier
        self._activity, self._used = activity, used
        self._trajectories = trajectories
        self._start = time.monotonic()

    def over(self, finished: int, judged: int = 0, succeeded: int = 0) -> None:
        """Count finished trajectories, those of them that can be judged, and those of these that reached the goal."""
        self.finished += finished
        self._judged, self._succeeded = self._judged + judged, self._succeeded + succeeded

    def words(self) -> str:
        """The progress in one line, the most important part first."""
        usage, doing = self._used(), self._activity
        kept = f" ({doing.kept} kept)" if doing.kept else ""
        parts = (
            f"{self.finished} of {self._trajectories} trajectories",
            f"{self._succeeded} of {self._judged} succeeded" if self._judged else "",
            f"last failure: {' '.join(doing.failure.split())}" if doing.failure else "",
            counted(doing.replies, "reply", "replies") + kept,
            f"{doing.under_way} pending",
            *spent(usage).values(),
            counted(int(usage["retries"]), "retry", "retries") if usage.get("retries") else "",
        )
        return f"[{clock(time.monotonic() - self._start)}] {', '.join(filter(None, parts))}"

    @contextmanager
    def shown(self, stream: TextIO | None = None, every: float = EVERY_S) -> Iterator[None]:
        """Show it during a block.

        Args:
            stream: Standard error if omitted.
            every: Seconds between two lines in a log.
        """
        stream = sys.stderr if stream is None else stream
        with self._bar(stream) if stream.isatty() else self._lines(stream, every):
            yield

    @contextmanager
    def _bar(self, stream: TextIO) -> Iterator[None]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn
        from rich.table import Column
        from rich.text import Text

        class Words(ProgressColumn):
            def render(_, task: Any) -> Text:
                bar.update(task.id, completed=self.finished)
                return Text(self.words())

        console = Console(file=stream, soft_wrap=True)  # a command in a warning can be copied whole
        words = Words(Column(no_wrap=True, overflow="ellipsis"))
        with Progress(BarColumn(_BAR), words, console=console, refresh_per_second=4) as bar:
            bar.add_task("rollout", total=self._trajectories)
            yield

    @contextmanager
    def _lines(self, stream: TextIO, every: float) -> Iterator[None]:
        is_over = threading.Event()

        def write() -> None:
            with suppress(OSError, ValueError):  # the stream is closed
                stream.write(f"{self.words()}\n")
                stream.flush()

        def report() -> None:
            step = max(1, self._trajectories // _MILESTONES)
            milestone, at = self.finished // step, time.monotonic()
            while not is_over.wait(min(every, 0.5)):
                if self.finished // step > milestone or time.monotonic() - at >= every:
                    milestone, at = self.finished // step, time.monotonic()
                    write()

        reporter = threading.Thread(target=report, name="ragen-progress", daemon=True)
        reporter.start()
        try:
            yield
        finally:
            is_over.set()
            reporter.join()
            write()
