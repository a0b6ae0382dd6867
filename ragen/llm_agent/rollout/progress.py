"""The progress of a rollout: a bar on a terminal, or lines in a log.

It shows the numbers of finished and of successful trajectories, replies (a turn may take as long as the slowest of
them), tokens, cost, requests under way, and an estimate of the remaining time. A separate thread writes it, so that a
hanging rollout does not block it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from ragen.commands import clock
from ragen.errors import counted
from ragen.llm_agent.backends.base import Activity, tokens_of
from ragen.llm_agent.rollout.trajectories import played_turns

EVERY_S = 30.0
_MILESTONES = 10  # lines in a log, over all trajectories
_BAR = 10  # columns
_LONG_TURN_S = 2.0  # for which no model was asked
_SPARE = ("tokens", "replies", "cost", "pending", "left", "retries")  # what a narrow terminal omits, in this order
_OF_ALL_RUNS = ("tokens", "cost", "retries")


def spent(usage: Mapping[str, float]) -> dict[str, str]:
    """The tokens and the cost of some usage in words; nothing of what is 0 or unknown."""
    tokens = tokens_of(usage)
    cost = {"cost": f"${usage['cost']:,.4f}"} if "cost" in usage else {}
    return ({"tokens": f"{tokens:,.0f} tokens"} if tokens else {}) | cost


class Progress:
    """The progress of one rollout.

    Attributes:
        finished: Number of finished trajectories, including those of earlier runs.
    """

    def __init__(
        self,
        activity: Activity,
        used: Callable[[], Mapping[str, float]],
        tags: Mapping[str, int],
        max_turn: int,
        earlier: tuple[int, int, int] = (0, 0, 0),
        environments_s: Callable[[], float] = float,
    ) -> None:
        """Begin now.

        Args:
            activity: The requests under way and the replies.
            used: Returns tokens, cost and retries of all runs.
            tags: Number of trajectories to play, by tag.
            max_turn: Maximum number of turns of a trajectory.
            earlier: Number finished by earlier runs, how many of these can be judged, and how many of those succeeded.
            environments_s: Returns for how long environments have been playing their current turns.
        """
        self._environments_s = environments_s
        self.finished, self._judged, self._succeeded = earlier
        self._activity, self._used, self._tags = activity, used, dict(tags)
        self._trajectories, self._max_turn = self.finished + sum(tags.values()), max_turn
        self._over, self._turns = Counter[str](), Counter[str]()
        self._has_earlier = any(used().values())
        self._reported = self._milestone()
        self._said = ""
        self._start = time.monotonic()

    def over(self, states: Collection[Mapping[str, Any]], judged: int = 0, succeeded: int = 0) -> None:
        """Count finished trajectories.

        Args:
            states: Their rollout caches.
            judged: How many of them can be judged.
            succeeded: How many of those reached the goal.
        """
        self.finished += len(states)
        for state in states:
            self._turns[state["tag"]] += len(played_turns(state))
            self._over[state["tag"]] += 1
        self._judged, self._succeeded = self._judged + judged, self._succeeded + succeeded

    def words(self, width: int | None = None) -> str:
        """The progress in one line.

        Args:
            width: Maximum number of characters, for which the least important parts are omitted; None for no maximum.
        """
        parts = self._parts()
        for spare in _SPARE:
            if width is None or len(self._joined(parts)) <= width:
                break
            parts.pop(spare, None)
        return self._joined(parts)

    def _joined(self, parts: Mapping[str, str]) -> str:
        first = next((name for name in parts if name in _OF_ALL_RUNS), None)
        said = {first: f"all runs: {parts[first]}"} if first and self._has_earlier else {}
        return ", ".join({**parts, **said}.values())

    def _parts(self) -> dict[str, str]:
        usage, doing = self._used(), self._activity
        kept = f" ({doing.kept} kept)" if doing.kept else ""
        left, failure = self._left_s(), " ".join(doing.failure.split())
        at_work = self._environments_s()
        is_played = at_work >= _LONG_TURN_S and not doing.under_way
        parts = {
            "finished": f"{self.finished} of {self._trajectories} trajectories",
            "succeeded": f"{self._succeeded} of {self._judged} succeeded" if self._judged else "",
            "left": f"{clock(left)} left" if left and not failure else "",
            "replies": counted(doing.replies, "reply", "replies") + kept,
            "pending": f"environments at work for {clock(at_work)}" if is_played else f"{doing.under_way} pending",
            **spent(usage),
            "retries": counted(int(retries), "retry", "retries") if (retries := usage.get("retries", 0)) else "",
            "failure": f"last failure: {failure}" if failure else "",
        }
        return {name: part for name, part in parts.items() if part}

    def _left_s(self) -> int:
        """Seconds until all are finished, at this run's replies per second; 0 where that is not known.

        A tag's trajectories are taken to end as often per reply as they have so far, and at the last turn at the
        latest; nothing is said while none of a tag is finished. Unfinished ones are taken to have as many replies.
        """
        left = {tag: count - self._over[tag] for tag, count in self._tags.items() if count > self._over[tag]}
        asked = self._activity.replies - self._activity.kept
        if not left or asked <= 0 or not all(self._over[tag] for tag in left):
            return 0
        each = max(0, self._activity.replies - self._turns.total()) / sum(left.values())
        room = max(0.0, self._max_turn - each)
        replies = sum(n * min((self._turns[tag] + n * each) / self._over[tag], room) for tag, n in left.items())
        return round((time.monotonic() - self._start) * replies / asked)

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
        from rich.progress import BarColumn, ProgressColumn, Task
        from rich.progress import Progress as Bar
        from rich.table import Column
        from rich.text import Text

        class Words(ProgressColumn):
            def render(_, task: Task) -> Text:
                bar.update(task.id, completed=self.finished)
                elapsed = clock(task.elapsed or 0.0)
                return Text(f"{elapsed} {self.words(console.width - _BAR - len(elapsed) - 2)}")

        console = Console(file=stream, soft_wrap=True)  # a command in a warning can be copied whole
        words = Words(Column(no_wrap=True, overflow="ellipsis"))
        bar = Bar(BarColumn(_BAR), words, console=console, refresh_per_second=4)
        with bar:
            task = bar.add_task("rollout", total=self._trajectories, completed=self.finished)
            yield
            bar.update(task, completed=self.finished)

    @contextmanager
    def _lines(self, stream: TextIO, every: float) -> Iterator[None]:
        is_over = threading.Event()
        reporter = threading.Thread(
            target=self._report, args=(stream, every, is_over), name="ragen-progress", daemon=True
        )
        reporter.start()
        try:
            yield
        finally:
            is_over.set()
            reporter.join()
            if self.words() != self._said:
                self._line(stream)

    def _report(self, stream: TextIO, every: float, is_over: threading.Event) -> None:
        reported_at = time.monotonic()
        while not is_over.wait(min(every, 0.5)):
            milestone = self._milestone()
            if milestone > self._reported or time.monotonic() - reported_at >= every:
                self._reported, reported_at = milestone, time.monotonic()
                self._line(stream)

    def _milestone(self) -> int:
        return _MILESTONES * self.finished // max(1, self._trajectories)

    def _line(self, stream: TextIO) -> None:
        self._said = self.words()
        try:
            stream.write(f"[{clock(time.monotonic() - self._start)}] {self._said}\n")
            stream.flush()
        except (OSError, ValueError):  # the stream is closed
            return
