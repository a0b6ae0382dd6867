"""Ctrl-C at any line of a step or a reset: the call has not happened, and can be made again with the same result."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from contextlib import contextmanager, suppress

import pytest

from envlanes.interrupts import interrupts_held, interrupts_let_through
from support.episodes import TYPES, EnvStateManager, config, freeze, inputs, register_env, sequential
from support.faulty_envs import Walk

each_kind = pytest.mark.usefixtures("backend")

TURNS = 3
TAGS = {
    "Walk": {"env_type": "support.faulty_envs:Walk"},
    "Pictures": {"env_type": "support.faulty_envs:Pictures"},
    "Draws": {"env_type": "support.faulty_envs:GlobalDraws"},
}


def mixed(**settings):
    groups = [("Walk", 1), ("Pictures", 1), ("Draws", 1)]
    return config(TAGS, groups, group_size=2, **{"use_multiprocessing": True, **settings})


@contextmanager
def interrupted_at(line):
    """Send SIGINT to this process before the n-th line that is executed in the package; counts the lines."""
    count = [0]

    def trace(frame, event, _):
        if not any(part in frame.f_code.co_filename for part in ("/envlanes/", "/ragen/")):
            return None
        if event == "line":
            count[0] += 1
            if count[0] == line:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def lines_of(call):
    with interrupted_at(-1) as count:
        call()
    return count[0]


def try_until_done(call, line):
    """Make the call, interrupted at a line; if it was interrupted, and not just after it, make it again."""
    done = []
    try:
        with interrupted_at(line):
            done.append(call())
        with interrupts_held():  # one that came too late to stop the call comes now
            pass
    except KeyboardInterrupt:
        pass
    return done[0] if done else call()


@pytest.fixture(scope="module")
def reference():
    return sequential(mixed(), TURNS, episodes=2)


@each_kind
def test_a_step_interrupted_in_workers_can_be_taken_again(reference):
    check_interrupted_steps(True, 12, reference)


def test_a_step_interrupted_in_main_can_be_taken_again(reference):
    check_interrupted_steps(False, 25, reference)


@each_kind
def test_interrupts_while_workers_are_replaced(reference, kill_lanes):
    check_interrupted_steps(True, 5, reference, kill_lanes)


def check_interrupted_steps(parallel, tries, reference, disturb=lambda manager: None):
    chance = random.Random(7)
    with EnvStateManager(mixed(use_multiprocessing=parallel, max_restarts=100)) as manager:
        active = manager.reset()
        disturb(manager)
        lines = lines_of(lambda: manager.step(inputs([cache["env_id"] for cache in active], 0)))
        for _ in range(tries):
            manager.seed_counter = 0
            active = manager.reset()
            for turn in range(TURNS):
                given, line = inputs([cache["env_id"] for cache in active], turn), -1
                if turn == 1:
                    disturb(manager)
                    line = chance.randrange(1, lines)
                active = try_until_done(lambda given=given: manager.step(given), line)
            assert freeze(manager.get_rollout_states()) == reference[0], line


@each_kind
def test_a_reset_interrupted_in_workers_can_be_made_again(reference):
    check_interrupted_resets(True, 5, reference)


def test_a_reset_interrupted_in_main_can_be_made_again(reference):
    check_interrupted_resets(False, 25, reference)


def check_interrupted_resets(parallel, tries, reference):
    chance = random.Random(8)
    with EnvStateManager(mixed(use_multiprocessing=parallel)) as manager:
        lines = lines_of(manager.reset)
        manager.seed_counter = 0
        for _ in range(tries):
            line = chance.randrange(1, lines)
            for expected in reference:
                manager.seed_counter = 0 if expected is reference[0] else manager.seed_counter
                active = try_until_done(manager.reset, line)
                for turn in range(TURNS):
                    active = manager.step(inputs([cache["env_id"] for cache in active], turn))
                assert freeze(manager.get_rollout_states()) == expected, line


def test_a_move_out_of_main_interrupted_at_any_line_leaves_every_environment_playable(reference):
    def set_mode(manager, mode):
        manager.use_multiprocessing = mode

    with EnvStateManager(mixed(use_multiprocessing=False)) as manager:
        lines = 0
        for line in (-1, *range(1, 10_000, 19)):
            if line > lines > 0:
                break
            set_mode(manager, False)
            manager.seed_counter = 0
            active = manager.reset()
            active = manager.step(inputs([cache["env_id"] for cache in active], 0))
            if line < 0:
                lines = lines_of(lambda: set_mode(manager, True))
            else:
                with suppress(KeyboardInterrupt), interrupted_at(line):
                    set_mode(manager, True)
                set_mode(manager, False)
            for turn in range(1, TURNS):
                active = manager.step(inputs([cache["env_id"] for cache in active], turn))
            assert freeze(manager.get_rollout_states()) == reference[0], line
        assert lines > 100


@each_kind
def test_an_interrupt_while_workers_are_busy_ends_the_wait():
    fields = {"fault": "sleeps", "place": "turn 0"}
    tags = {
        "Walk": {"env_type": "support.faulty_envs:Walk"},
        "Faulty": {"env_type": "support.faulty_envs:Faulty", "env_config": fields},
    }
    with EnvStateManager(config(tags, [("Walk", 2), ("Faulty", 1)], use_multiprocessing=True)) as manager:
        manager.reset()
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            manager.step(inputs([0, 1, 2], 0))
        timer.join()
        active = manager.step(inputs([0, 1], 0))
        assert [len(cache["history"]) for cache in active] == [2, 2]


class Signalled(Walk):
    """Gets a signal in its second turn, as a program does at any time."""

    number = signal.SIGINT

    def step(self, action):
        if self.steps:
            signal.raise_signal(self.number)
        return super().step(action)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGUSR1, SystemExit)])
def test_what_a_signal_raises_in_main_is_no_failure_of_the_environment(number, expected, closes, monkeypatch):
    def handle(*_):
        if closes:
            manager.close()
        sys.exit("a handler's end")

    monkeypatch.setattr(Signalled, "number", number)
    settings = config({"S": {"env_type": "signalled"}}, [("S", 1)], use_multiprocessing=False)
    before = signal.signal(signal.SIGUSR1, handle)
    register_env("signalled", Signalled)
    try:
        with EnvStateManager(settings) as manager:
            manager.reset()
            with pytest.raises(expected):
                manager.step(inputs([0], 1))
    finally:
        signal.signal(signal.SIGUSR1, before)
        TYPES.pop("signalled", None)


def test_an_interrupt_at_any_line_of_a_block_comes_by_its_end_and_no_later():
    def block():
        with interrupts_held(), interrupts_let_through():
            pass

    for line in range(1, lines_of(block) + 1):
        with pytest.raises(KeyboardInterrupt), interrupted_at(line):
            block()
        block()
