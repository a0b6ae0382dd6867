"""Replies that come in parts: a lane that takes a while sends half of its outcomes ahead, then half of the rest."""

import re
import signal

import pytest

from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel import engine, pool
from support.episodes import config, errors, freeze, inputs, play, sequential

ENVS = 9
TURNS = 3
SEED = 1032  # with which no environment is done before the last turn


@pytest.fixture(autouse=True)
def processors(monkeypatch):
    monkeypatch.setattr(engine, "usable_cpus", lambda: 4)  # one of them for main, which may then take parts in


def slow(misdeed="nothing", position=0, place="turn 1", **es_manager):
    """Nine slow environments in one lane, the one at the position evil."""
    tags = {
        "Slow": {"env_type": "support.faulty_envs:Slow"},
        "Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": misdeed, "place": place}},
        "Late": {"env_type": "support.faulty_envs:Slow"},
    }
    groups = [("Slow", position), ("Evil", 1), ("Late", ENVS - 1 - position)]
    settings = {"use_multiprocessing": True, "max_workers": 1, **es_manager}
    return {**config(tags, [group for group in groups if group[1]], **settings), "seed": {"train": SEED}}


@pytest.fixture
def frames(monkeypatch):
    """Of each frame that the main process takes in, whether more follows."""
    seen = []
    take = pool._Exchange._take

    def watched(self, lane, frame):
        seen.append(frame.more)
        take(self, lane, frame)

    monkeypatch.setattr(pool._Exchange, "_take", watched)
    return seen


def test_outcomes_are_sent_ahead_and_make_the_same_rollouts(frames):
    with EnvStateManager(slow()) as manager:
        rollouts = freeze(play(manager, TURNS))
    assert rollouts == sequential(slow(), TURNS)[0]
    assert frames.count(True) >= 2 * TURNS


def test_turns_are_committed_while_their_lane_still_works(monkeypatch):
    sizes = []
    commit = EnvStateManager._commit

    def watched(self, asked, outcomes):
        sizes.append(len(outcomes))
        commit(self, asked, outcomes)

    monkeypatch.setattr(EnvStateManager, "_commit", watched)
    with EnvStateManager(slow()) as manager:
        active = manager.reset()
        manager.step(inputs([cache["env_id"] for cache in active], 0))
    assert sizes[:2] == [0, 5] and sum(sizes) == ENVS  # nothing in main, then half of nine


@pytest.mark.parametrize("position", [0, 4, 5, 8])
@pytest.mark.parametrize(
    ("misdeed", "says"),
    [
        ("exits", "its process exited with code 3"),
        ("is killed", "killed by SIGKILL"),
        ("raises", "ValueError: boom"),
        ("sleeps", "timed out"),
        ("returns unpicklable", None),
        ("returns unloadable", None),
    ],
)
def test_a_failure_in_any_part_costs_its_own_environment_at_most(misdeed, position, says):
    patience = {"step_timeout": 0.7} if misdeed == "sleeps" else {}
    with EnvStateManager(slow(misdeed, position, **patience)) as manager:
        rollouts = freeze(play(manager, TURNS))
    honest = sequential(slow("nothing", position), TURNS)[0]
    for mine, theirs in zip(rollouts, honest, strict=True):
        if mine["env_id"] != position:
            assert mine == theirs
    told = errors(rollouts[position])
    if says is None:
        assert told == [None] * TURNS
        states = [[turn["state"] for turn in each[position]["history"]] for each in (rollouts, honest)]
        assert states[0] == states[1]
    else:
        assert told[:-1] == [None] and re.search(says, told[-1]), told


def test_a_step_that_is_interrupted_between_two_parts_has_not_happened(monkeypatch):
    take = pool._Exchange._take

    def interrupted(self, lane, frame):
        take(self, lane, frame)
        if frame.more:
            signal.raise_signal(signal.SIGINT)

    with EnvStateManager(slow()) as manager:
        active = manager.reset(SEED)
        before = freeze(active)
        turn = inputs([cache["env_id"] for cache in active], 0)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(pool._Exchange, "_take", interrupted)
            manager.step(turn)
        assert freeze(manager.rollout_cache) == before
        active = manager.step(turn)
        for number in (1, 2):
            active = manager.step(inputs([cache["env_id"] for cache in active], number))
        assert freeze(manager.get_rollout_states()) == sequential(slow(), TURNS)[0]
