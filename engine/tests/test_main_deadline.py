"""Environments that hang where ``auto`` plays them itself, in the main process."""

import itertools
import re
import signal
import threading
import time
from typing import ClassVar

import pytest

from support.episodes import EnvStateManager, config, errors, freeze, play, sequential
from support.faulty_envs import Walk

TURNS = 3
HUNG = 2
LATE = "timed out after 0.3 s"


class Hangs(Walk):
    """Hangs in its second turn, its fourth step."""

    uses_global_rng = True

    def step(self, action):
        if self.steps == 3:
            self.hang()
        return super().step(action)

    def hang(self):
        for _ in itertools.count():
            pass


class Sleeps(Hangs):
    def hang(self):
        time.sleep(10**6)


class Waits(Hangs):
    def hang(self):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


class Persists(Hangs):
    """Does not let itself be interrupted the first time."""

    def hang(self):
        try:
            time.sleep(10**6)
        except BaseException:
            time.sleep(10**6)


class InReset(Walk):
    def reset(self, seed=None, mode=None):
        time.sleep(10**6)


class InInit(Walk):
    def __init__(self, config=None):
        super().__init__(config)
        time.sleep(10**6)


class Leisurely(Walk):
    def step(self, action):
        time.sleep(0.5)
        return super().step(action)


def mixed(kind, **es_manager):
    """Two honest environments, a faulty one, and two more honest ones."""
    tags = {"Good": {"env_type": "support.faulty_envs:Walk"}, "Faulty": {"env_type": f"{__name__}:{kind.__name__}"}}
    times = {"step_timeout": 0.3, "reset_timeout": 0.3}
    settings = {"use_multiprocessing": "auto", **times, **es_manager}
    return config(tags, [("Good", 2), ("Faulty", 1), ("Good", 2)], **settings)


@pytest.fixture(scope="module")
def honest():
    """The results of all if nothing hangs."""
    return sequential(mixed(Walk), TURNS)[0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [*((kind, [None, LATE]) for kind in (Hangs, Sleeps, Waits, Persists)), (InReset, [LATE]), (InInit, [LATE])],
)
def test_an_environment_that_hangs_in_main_is_interrupted_and_truncated_and_no_other_changes(kind, said, honest):
    with EnvStateManager(mixed(kind)) as manager:
        rollouts = freeze(play(manager, TURNS))
        assert [lane.lane for lane in manager.lane_stats() if lane.turns] == ["main"]
    assert errors(rollouts.pop(HUNG)) == said
    assert rollouts == [rollout for rollout in honest if rollout["env_id"] != HUNG]
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class Leaves(Walk):
    """Starts a thread and hangs when it is closed."""

    closed: ClassVar[list[bool]] = []

    def close(self):
        thread = threading.Thread(target=time.sleep, args=(10**6,))
        self.closed.append(thread.daemon)
        time.sleep(10**6)


@pytest.mark.parametrize("where", ["auto", False])
def test_many_that_hang_in_close_are_each_closed_in_one_deadline_together(caplog, where):
    Leaves.closed.clear()
    tags = {"Leaves": {"env_type": f"{__name__}:Leaves"}}
    with EnvStateManager(config(tags, [("Leaves", 20)], use_multiprocessing=where, step_timeout=0.4)) as manager:
        play(manager, 1)
    assert Leaves.closed == [True] * 20, "no thread of theirs keeps the program"
    parts = [float(each) for each in re.findall(r"timed out after (\S+) s while it was closed", caplog.text)]
    assert len(parts) == 20 and sum(parts) < 0.5
    assert not threading.current_thread().daemon


def test_without_multiprocessing_environments_take_the_time_they_need():
    with EnvStateManager(mixed(Leisurely, use_multiprocessing=False)) as manager:
        rollouts = play(manager, 1)
    assert errors(rollouts[HUNG]) == [None]


def test_a_process_that_uses_the_signal_itself_keeps_it(honest):
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with EnvStateManager(mixed(Leisurely)) as manager:
            rollouts = play(manager, 1)
        assert rung and errors(rollouts[HUNG]) == [None]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_manager_in_another_thread_does_without(honest):
    told = []

    def run():
        with EnvStateManager(mixed(Walk)) as manager:
            told.append(freeze(play(manager, TURNS)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told == [honest]
