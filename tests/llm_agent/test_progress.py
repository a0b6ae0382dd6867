"""How far a rollout is: what is told, on a terminal and in a log, and that nothing which hangs keeps it back."""

import sys
import threading
from io import StringIO

import pytest

from ragen.llm_agent.backends.base import Activity
from ragen.llm_agent.rollout.progress import Progress
from ragen.llm_agent.rollout.timeline import Timeline


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


def test_replies_trajectories_tokens_cost_and_what_is_under_way_are_told():
    activity = Activity()
    progress = progress_of(activity, earlier=(2, 0, 0), prompt_tokens=1200, completion_tokens=34, cost=0.5)
    activity.answered({})
    progress.over(finished(1))
    with activity.asking(5):
        assert progress.words() == "3 of 8 trajectories, 1 reply, 5 pending, 1,234 tokens, $0.5000"
    activity.answered({}, is_kept=True)
    assert progress.words() == "3 of 8 trajectories, 2 replies (1 kept), 0 pending, 1,234 tokens, $0.5000"


def test_environments_that_work_for_long_are_named_while_no_model_is_asked():
    activity, at_work = Activity(), [1.0]
    progress = Progress(activity, dict, {"Walk": 8}, 10, environments_s=lambda: at_work[0])
    assert progress.words() == "0 of 8 trajectories, 0 replies, 0 pending"
    at_work[0] = 75.0
    assert progress.words() == "0 of 8 trajectories, 0 replies, environments at work for 0:01:15"
    with activity.asking(2):
        assert progress.words() == "0 of 8 trajectories, 0 replies, 2 pending"


def test_a_timeline_knows_for_how_long_an_activity_has_been_going_on():
    timeline = Timeline()
    with timeline.span("rollout", "environments"), timeline.span("rollout", "environments"):
        assert 0 < timeline.open_s("environments") < 60 and timeline.open_s("generation") == 0
    assert timeline.open_s("environments") == 0 and len(timeline.spans) == 2


def test_a_resumed_run_says_which_numbers_are_of_all_runs():
    usage = {"prompt_tokens": 1200, "completion_tokens": 34, "retries": 3}
    progress = progress_of(Activity(), before={"prompt_tokens": 9}, **usage)
    assert progress.words() == "0 of 8 trajectories, 0 replies, 0 pending, all runs: 1,234 tokens, 3 retries"
    assert progress.words(60) == "0 of 8 trajectories, 0 pending, all runs: 3 retries"


def at_100_s(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("ragen.llm_agent.rollout.progress.time.monotonic", lambda: clock[0])
    return clock


def replied(activity, replies, **kind):
    for _ in range(replies):
        activity.answered({}, **kind)


def test_the_success_so_far_is_told_as_a_count_and_the_time_left_at_the_pace_so_far(monkeypatch):
    clock, activity = at_100_s(monkeypatch), Activity()
    progress = progress_of(activity, earlier=(2, 0, 0))
    clock[0] += 60
    replied(activity, 2)
    progress.over(finished(2), judged=2, succeeded=1)  # of six that were left
    assert progress.words().startswith("4 of 8 trajectories, 1 of 2 succeeded, 0:02:00 left, 2 replies")


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


def test_replies_of_an_earlier_run_took_no_time(monkeypatch):
    clock, activity = at_100_s(monkeypatch), Activity()
    progress = progress_of(activity, 4)
    replied(activity, 2, is_kept=True)
    clock[0] += 8
    replied(activity, 4)
    progress.over(finished(2, turns=3))
    assert "2 of 4 trajectories, 0:00:12 left" in progress.words()  # 6 more replies, at two seconds each


def test_a_narrow_terminal_omits_whole_parts_and_keeps_those_that_count_most():
    activity = Activity()
    usage = {"prompt_tokens": 1200, "completion_tokens": 34, "cost": 0.5, "retries": 3}
    progress = progress_of(activity, 128, (64, 64, 32), **usage)
    activity.answered({})
    activity.failure = "HTTP 503:\n busy"
    everything = "64 of 128 trajectories, 32 of 64 succeeded, 1 reply, 0 pending, 1,234 tokens, $0.5000, 3 retries, "
    assert progress.words() == progress.words(len(everything) + 100) == everything + "last failure: HTTP 503: busy"
    assert progress.words(80) == "64 of 128 trajectories, 32 of 64 succeeded, last failure: HTTP 503: busy"
    assert progress.words(10) == progress.words(80), "what cannot be omitted is cut by the terminal"


def test_a_failure_is_told_until_the_next_reply():
    activity = Activity()
    activity.failure = "HTTP 503"
    activity.answered({}, is_reply=False)
    activity.answered({}, is_kept=True)
    assert activity.failure, "neither says that the server answers again"
    activity.answered({})
    assert not activity.failure


def test_a_log_gets_a_line_now_and_then_though_nothing_happens():
    log = Log(lines=3)
    with progress_of(Activity()).shown(log, every=0.01):
        assert log.is_full.wait(30)
    lines = log.getvalue().splitlines()
    assert lines[0] == "[0:00:00] 0 of 8 trajectories, 0 replies, 0 pending"
    assert not any("\x1b" in line for line in lines)


def test_a_log_gets_a_line_at_each_milestone():
    log = Log(lines=1)
    progress = progress_of(Activity())
    with progress.shown(log, every=3600):
        progress.over(finished(4))
        assert log.is_full.wait(30)
    assert "4 of 8 trajectories" in log.getvalue()


def test_what_was_said_last_is_not_said_again_at_the_end():
    log = Log(lines=1)
    progress = progress_of(Activity())
    with progress.shown(log, every=3600):
        progress.over(finished(8))
        assert log.is_full.wait(30)
    lines = log.getvalue().splitlines()
    assert len(lines) == 1 and "8 of 8" in lines[0]


@pytest.mark.parametrize("columns", [60, 160])
def test_the_time_that_has_passed_is_whole_in_a_narrow_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    with progress_of(Activity(), trajectories=128).shown(terminal):
        pass
    assert "0:00:00 0 of 128 trajectories" in terminal.getvalue()


def test_a_command_in_a_warning_stays_on_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    command = f"ragen replay {'folder/' * 12}report.json"
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_of(Activity(), trajectories=128).shown(terminal):
        print(f"env 1 broke [to replay it: {command}] and so on", file=sys.stderr)
    assert command in terminal.getvalue()


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
