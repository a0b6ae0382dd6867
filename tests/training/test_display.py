"""What a run shows on a terminal."""

import io
import re

import pytest

from ragen.commands import StopRequest
from ragen.training.curves import curve_names
from ragen.training.display import Display


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal_of(monkeypatch):
    """One terminal for both outputs; no fixture, since pytest puts its own in their places once fixtures are done."""
    both = Terminal()
    monkeypatch.setattr("sys.stdout", both)
    monkeypatch.setattr("sys.stderr", both)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return both


def test_a_line_is_printed_above_the_bar_and_not_behind_it(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with Display(StopRequest()) as display:
        display.begin("train", 0, 3)
        display.advance("train", 1, {"train/success": 0.5})
        display._bar.refresh()
        display.say("a line")
    erase_line = "\x1b[2K"
    assert terminal.getvalue().partition("a line")[0].endswith(erase_line)


def test_lines_go_to_standard_output_where_that_is_a_file(monkeypatch):
    terminal = terminal_of(monkeypatch)
    file = io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    with Display(StopRequest()) as display:
        display.begin("train", 0, 3)
        display.say("a line")
    assert file.getvalue() == "a line\n" and "a line" not in terminal.getvalue()


def test_the_bar_says_that_a_stop_was_asked_for_while_the_step_still_runs(monkeypatch):
    terminal = terminal_of(monkeypatch)
    stop = StopRequest()
    with Display(stop) as display:
        display.begin("train", 0, 3)
        display.advance("train", 1, {"train/success": 0.5})
        display._bar.refresh()
        assert "stopping" not in terminal.getvalue()
        stop.wanted = True
        display._bar.refresh()
        assert "stopping after this step" in terminal.getvalue()


@pytest.mark.parametrize(
    ("columns", "shown"), [(60, "success"), (80, "success reward"), (100, "success reward entropy")]
)
def test_the_bar_is_one_line_that_leaves_out_the_least_important(monkeypatch, columns, shown):
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    with Display(StopRequest()) as display:
        display.begin("warm_up", 300, 300)
        display.begin("train", 0, 300)
        display.advance("train", 300, {"train/success": 1.0, "train/reward": -0.431, "actor/entropy": 0.69})
        display._bar.refresh()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).rstrip().splitlines()[-2:]
    assert "300/300" in last[0] and "300/300" in last[1] and max(map(len, last)) <= columns
    assert re.findall("success|reward|entropy", last[1]) == shown.split() and "…" not in last[1]


def test_a_validation_is_told_by_tag_and_not_by_other_metrics(capsys):
    metrics = {"val/success": 0.5, "val/T/success": 0.5, "val/reward": 1.0}
    others = {"val/T/num_actions": 2.0, "val/T/non-zero/success": 1.0}
    with Display(StopRequest()) as display:
        display.validated(3, {**metrics, **others})
    assert capsys.readouterr().out == "step    3: success 0.500 (T 0.500), reward +1.000\n"
    assert curve_names([{**metrics, **others}], "val/") == ["val/success", "val/T/success"]
