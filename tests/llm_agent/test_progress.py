"""How far a rollout is: what is told, on a terminal and in a log, and that nothing which hangs keeps it back."""

import threading
from io import StringIO

from ragen.llm_agent.backends.base import Activity
from ragen.llm_agent.rollout.progress import Progress


class Terminal(StringIO):
    def isatty(self):
        return True


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


def progress_of(activity, trajectories=8, earlier=(0, 0, 0), before=None, tags=None, **usage):
    """The progress of a run that has used so much; of one that began with ``before``, if that is given."""
    told = [before or {}]
    progress = Progress(activity, lambda: told[0], tags or {"Walk": trajectories - earlier[0]}, 10, earlier)
    told[0] = usage
    return progress


def finished(count, tag="Walk", turns=1, **more):
    return [{"tag": tag, "history": [{"actions": [1]}] * turns + [{}], **more}] * count


def test_what_earlier_runs_have_finished_counts_with_its_successes():
    progress = progress_of(Activity(), 8, earlier=(4, 3, 2))
    progress.over(finished(2), judged=2, succeeded=1)
    assert progress.words().startswith("6 of 8 trajectories, 3 of 5 succeeded")


def at_100_s(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("ragen.llm_agent.rollout.progress.time.monotonic", lambda: clock[0])
    return clock


def replied(activity, replies, **kind):
    for _ in range(replies):
        activity.answered({}, **kind)


def test_the_time_left_goes_by_the_replies_that_the_tags_have_yet_to_get(monkeypatch):
    clock, activity = at_100_s(monkeypatch), Activity()
    progress = progress_of(activity, tags={"Short": 4, "Long": 4})
    clock[0] += 8
    replied(activity, 8)
    progress.over(finished(4, "Short"))
    assert "left" not in progress.words(), "how many turns the long ones take is not known"
    clock[0] += 10
    replied(activity, 10)
    progress.over(finished(1, "Long", turns=8))
    assert "0:00:24 left" in progress.words()  # three long ones have two replies each, and get ten at most
    activity.failure = "Connection refused"
    assert "left" not in progress.words(), "nothing is answered at the moment"
    activity.failure = ""
    clock[0] += 2
    replied(activity, 2)
    progress.over(finished(1, "Long", turns=3))
    assert "0:00:15 left" in progress.words()  # two have two and a half each
    progress.over(finished(2, "Long", turns=3))
    assert "left" not in progress.words()


def test_a_log_gets_a_line_at_each_milestone():
    log = Log(lines=1)
    progress = progress_of(Activity())
    with progress.shown(log, every=3600):
        progress.over(finished(4))
        assert log.is_full.wait(30)
    assert "4 of 8 trajectories" in log.getvalue()


def test_a_terminal_gets_a_bar_with_the_same_words():
    terminal = Terminal()
    activity = Activity()
    with progress_of(activity, earlier=(8, 0, 0)).shown(terminal):
        activity.answered({})
    assert "8 of 8 trajectories, 1 reply" in terminal.getvalue()


def test_a_log_that_nobody_reads_any_more_ends_nothing():
    log = StringIO()
    log.close()
    log.isatty = lambda: False
    with progress_of(Activity()).shown(log):
        pass
