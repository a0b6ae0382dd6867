"""How far a rollout is: what is told, on a terminal and in a log, and that nothing which hangs keeps it back."""

import threading
from io import StringIO

from ragen.llm_agent.backends.base import Activity
from ragen.llm_agent.rollout.progress import RolloutProgress


class Log(StringIO):
    """Tells when it has so many lines."""

    def __init__(self, lines):
        super().__init__()
        self.is_full, self._lines = threading.Event(), lines

    def write(self, text):
        written = super().write(text)
        if self.getvalue().count("\n") >= self._lines:
            self.is_full.set()
        return written


def test_what_earlier_runs_have_finished_counts_with_its_successes():
    progress = RolloutProgress(Activity(), dict, 8, earlier=(4, 3, 2))
    progress.over(2, judged=2, succeeded=1)
    assert "6 of 8 trajectories, 3 of 5 succeeded" in progress.words()


def test_a_log_gets_a_line_at_each_milestone():
    log = Log(lines=1)
    progress = RolloutProgress(Activity(), dict, 8)
    with progress.shown(log, every=3600):
        progress.over(4)
        assert log.is_full.wait(30)
    assert "4 of 8 trajectories" in log.getvalue()


def test_a_log_that_nobody_reads_any_more_ends_nothing():
    log = StringIO()
    log.close()
    log.isatty = lambda: False
    with RolloutProgress(Activity(), dict, 8).shown(log):
        pass
