"""What whoever answers prompts is doing now, and has done: for a progress bar, from any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock


class Activity:
    """Counts.

    Attributes:
        under_way: Requests that were asked and not answered yet.
        replies: Replies that came.
        kept: How many of them an earlier run had got.
        usage: What the replies of this run used, added up; see :class:`~ragen.llm_agent.backends.base.Reply`.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = Lock()
        self.under_way = self.replies = self.kept = 0
        self.usage: Counter[str] = Counter()

    @contextmanager
    def asking(self, requests: int = 1) -> Iterator[None]:
        """So many requests are under way within the block."""
        with self._lock:
            self.under_way += requests
        try:
            yield
        finally:
            with self._lock:
                self.under_way -= requests

    def answered(self, usage: Mapping[str, float], is_reply: bool = True, is_kept: bool = False) -> None:
        """Count an answer.

        Args:
            usage: What it used; counted unless an earlier run has done so.
            is_reply: Whether it is a reply, and not the last of a request's failures.
            is_kept: Whether an earlier run had got it.
        """
        with self._lock:
            self.replies += is_reply
            self.kept += is_kept
            if not is_kept:
                self.usage.update(usage)
