"""How time was spent: computing, waiting, or standing in line for a processor; children's computing counts."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ragen.parallel.episode.clock import SLOW, Reading, Usage, UsageClock, spent
from ragen.parallel.episode.host import EnvHost, ResetOrder
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import Turn
from support.faulty_envs import Walk

BURNT = 0.05  # seconds
NAP_S = 0.3
BURN = f"import time\nbegin = time.process_time()\nwhile time.process_time() - begin < {BURNT}: pass\n"
SERVE = f"import sys\nfor line in sys.stdin:\n    exec({BURN!r})\n    print(flush=True)\n"
SERVER = [sys.executable, "-c", SERVE]

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize(
    ("why", "before", "now", "seconds", "computed", "waited"),
    [
        ("it computed", Reading(1, 0, 0, 0), Reading(3, 0, 0, 0), 2, 2, 0),
        ("it waited", Reading(1, 0, 0, 0), Reading(1, 0, 0, 0), 2, 0, 2),
        ("it stood in line", Reading(1, 5, 0, 0), Reading(1, 6.5, 0, 0), 2, 0, 0.5),
        ("it did all three", Reading(1, 5, 0, 0), Reading(2, 6, 0, 0), 4, 1, 2),
        ("a child computed", Reading(1, 0, 7, 3), Reading(1, 0, 9, 3), 2, 2, 0),
        ("two children computed at once", Reading(1, 0, 7, 3), Reading(1, 0, 11, 3), 2, 4, 0),
        ("a child stood in line", Reading(1, 0, 7, 3), Reading(1, 0, 8, 6, crowd=3), 4, 1, 0),
        ("a child stood in line and waited", Reading(1, 0, 7, 3), Reading(1, 0, 8, 6, crowd=0.5), 4, 1, 2.5),
        ("a child that hardly computed waited", Reading(1, 0, 7, 3), Reading(1, 0, 7.125, 6, crowd=3), 4, 0.125, 3.5),
        ("others stood in line while it waited", Reading(1, 0, 7, 3), Reading(1, 0, 7, 6), 4, 0, 4),
        ("the system does not say who stood in line", Reading(1, 0, 7, 0), Reading(1, 0, 8, 0), 4, 1, 3),
        ("a child that something else has reaped", Reading(1, 0, 7, 0), Reading(1, 0, 6, 0), 2, 0, 2),
    ],
)
def test_what_was_neither_computed_nor_spent_in_line_was_waited(why, before, now, seconds, computed, waited):
    assert spent(before, now._replace(at=before.at + seconds)) == Usage(computed, waited), why


def measured(clock: UsageClock, work) -> Usage:
    before = clock.begin()
    work()
    usage, _ = clock.usage(before)
    return usage


@contextmanager
def served(command: list[str]) -> Iterator[subprocess.Popen]:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.communicate()


def ask(child: subprocess.Popen) -> None:
    child.stdin.write("burn\n")
    child.stdin.flush()
    child.stdout.readline()


@pytest.fixture(params=[True, False], ids=["worker", "main"])
def clock(request) -> Iterator[UsageClock]:
    clock = UsageClock(of_process=request.param)
    yield clock
    clock.close()


def test_this_thread_computes(clock):
    assert measured(clock, lambda: exec(BURN)).computed >= BURNT


def test_a_glance_tells_computing_of_this_thread_and_of_ended_children_from_waiting(clock):
    measured(clock, lambda: time.sleep(NAP_S))  # a worker's children are found; here, those of other tests
    for work in (lambda: exec(BURN), lambda: subprocess.run([sys.executable, "-c", BURN], check=True)):
        before = clock.glance()
        work()
        assert clock.roughly(before)[0].computed >= BURNT
    before = clock.glance()
    time.sleep(BURNT)
    usage, after = clock.roughly(before)
    assert usage.computed < BURNT / 2 and usage.computed + usage.waited <= after.at - before.at


def test_a_child_that_has_ended_has_computed(clock):
    assert measured(clock, lambda: subprocess.run([sys.executable, "-c", BURN], check=True)).computed >= BURNT


@needs_proc
@pytest.mark.parametrize(
    "command", [[sys.executable, "-c", SERVE], ["sh", "-c", f"{shlex.join([sys.executable, '-c', SERVE])}; :"]]
)
def test_a_child_that_lives_on_computes_and_so_do_its_own_children(clock, command):
    started = []

    def start() -> None:
        started.append(serving.__enter__())
        ask(started[0])

    serving = served(command)
    try:
        assert measured(clock, start).computed >= BURNT
        for _ in range(3):
            assert measured(clock, lambda: ask(started[0])).computed >= BURNT
    finally:
        serving.__exit__(None, None, None)


@needs_proc
def test_in_main_a_child_that_something_else_has_started_counts_for_nothing():
    clock = UsageClock(of_process=False)
    with served([sys.executable, "-c", f"input()\nwhile True:\n    exec({BURN!r})\n    print(flush=True)\n"]) as child:
        begun = clock.begin()
        ask(child)
        for _ in range(3):
            child.stdout.readline()
        usage, _ = clock.usage(begun)
        child.kill()
    clock.close()
    assert usage.computed < 3 * BURNT


def test_a_host_begins_no_turn_after_its_time_and_tells_nothing_of_the_rest():
    host = EnvHost()
    host.load([EnvSpec.of(Walk, None, number, tag="Walk") for number in range(3)])
    host.until = 0.0
    assert len(host.reset([ResetOrder(number, 1) for number in range(3)])) == 3
    (outcome,) = host.play([(number, Turn(("Right",), 1)) for number in range(3)])
    host.close()
    assert outcome.env_id == 0 and host.spent["Walk"].number == 1


class NapsLater(Walk):
    """Naps in its third turn, which nothing announces."""

    def step(self, action):
        self.turn = getattr(self, "turn", 0) + 1
        time.sleep(NAP_S * (self.turn == 3))
        return super().step(action)


def test_a_host_knows_that_a_slow_turn_after_quick_ones_waited():
    host = EnvHost()
    host.load([EnvSpec.of(NapsLater)])
    host.reset([ResetOrder(0, 1)])
    waited = []
    for _ in range(4):
        host.play([(0, Turn(("Right",), 1))])
        waited.append(host.spent["NapsLater"].waited_s)
    host.close()
    assert waited[2] > NAP_S / 2 > max(waited[1], waited[3])


class Naps(Walk):
    def step(self, action):
        time.sleep(2 * SLOW)
        return super().step(action)


@pytest.mark.parametrize("env_class", [Walk, Naps])
def test_a_host_looks_at_how_time_was_spent_where_it_took_some(env_class):
    host = EnvHost()
    host.load([EnvSpec.of(env_class)])
    host.reset([ResetOrder(0, 1)])
    host.play([(0, Turn(("Right",), 1))])
    host.play([(0, Turn(("Right",), 1))])
    spent = host.spent[env_class.__name__]
    host.close()
    assert spent.number == 1 and spent.seconds == spent.dearest
    if env_class is Naps:
        assert spent.waited_s >= SLOW
    else:
        assert not spent.waited_s or spent.seconds > SLOW
