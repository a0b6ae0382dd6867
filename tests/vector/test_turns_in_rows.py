"""Turns of all sub-environments in one piece: the same journals, values and failures as one by one."""

import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv

from ragen.games.gym_game import GymResult
from ragen.games.gym_row import Form, GymRow, GymRowResult
from ragen.parallel import row_round
from ragen.parallel.episode.outcome import Outcome, RowOf
from ragen.parallel.episode.rows import Page, Pages, Reader
from ragen.parallel.lanes import codec
from ragen.parallel.lanes.orders import flat
from support.gym_envs import Obeys, Reuses, Samples, Walk, same, same_runs, walks


class Wide(Walk):
    """Shows more than fits into a digest, in the same array again and again; its rewards are NumPy's."""

    observation_space = Box(-np.inf, np.inf, (5, 4), np.float64)

    def __init__(self):
        super().__init__()
        self.shown = np.zeros((5, 4))

    def step(self, action):
        observation, reward, *ends, info = super().step(action)
        return observation, np.float64(reward), *ends, info

    def _seen(self):
        self.shown[:] = self.np_random.random((5, 4))
        return self.shown


class Shared(Wide):
    """Its array is that of all others as well."""

    array = np.zeros((5, 4))

    def __init__(self):
        super().__init__()
        self.shown = self.array


class Odd(Walk):
    """Shows what is not quite of its space, now and then."""

    def _seen(self):
        seen = super()._seen()
        return seen.astype(np.float64) if self.steps % 3 == 2 else seen


class Endless(Walk):
    """Its episodes do not end."""

    def __init__(self):
        super().__init__(length=10**9)


class Tells(Endless):
    """Tells something that cannot travel, if the action says so."""

    def step(self, action):
        observation, reward, *ends, _ = super().step(action)
        return observation, reward, *ends, {"made": (each for each in ())} if action == 3 else {}


def journals(envs, singly, mode="NextStep", steps=30):
    """Run and give the journals, in words, with what was shown last."""
    if singly:
        envs._fleet._in_rows = False
    envs.reset(seed=3)
    for step in range(steps):
        envs.step(np.arange(envs.num_envs) * 7 % 5 if step % 2 else np.full(envs.num_envs, step % 5))
    records = envs._fleet.engine.records.values()
    return [(repr(record.journal), repr(record.observation)) for record in records]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("kind", [Walk, Reuses, Wide, Shared, Odd, Endless])
def test_journals_are_those_of_single_turns(lanes, kind, mode):
    made = [lanes(walks(4, kind), workers=0, autoreset_mode=mode) for _ in range(2)]
    assert journals(made[0], singly=False) == journals(made[1], singly=True)


@pytest.mark.parametrize("kind", [Wide, Odd, lambda: Samples(Discrete(5, start=-2))])
@pytest.mark.parametrize("copy", [True, False])
def test_batches_are_those_of_the_synchronous_class(lanes, kind, copy):
    same_runs(lanes([kind] * 3, workers=0, copy=copy), SyncVectorEnv([kind] * 3), steps=20)


@pytest.mark.processes
def test_a_row_is_parted_among_homes_and_its_values_come_back_in_order(lanes):
    envs = lanes(walks(5, Wide))
    same_runs(envs, SyncVectorEnv(walks(5, Wide)), steps=12, kill_at=(5,))
    assert envs._fleet._newest, "what was shown last came in one piece"
    assert len({envs._fleet.engine.home(index) for index in range(5)}) == 2


class Hangs(Obeys):
    """Hangs in Python code, which the main process can interrupt."""

    def step(self, action):
        if action == 2:
            while True:
                time.sleep(0.01)
        return super().step(action)


@pytest.mark.parametrize("action", [1, 2], ids=["raises", "hangs"])
def test_one_that_fails_in_the_main_process_harms_no_other(lanes, action):
    envs = lanes(walks(4, Hangs), workers="auto", on_env_failure="truncate", step_timeout=0.3)
    other = SyncVectorEnv(walks(4, Hangs))
    same(envs.reset(seed=0), other.reset(seed=0))
    for step in range(6):
        actions = np.zeros(4, int)
        shown, expected = envs.step(np.array([0, 0, action, 0]) if step == 3 else actions), other.step(actions)
        same(shown[0][[0, 1, 3]], expected[0][[0, 1, 3]])
        same(shown[1][[0, 1, 3]], expected[1][[0, 1, 3]])
        assert shown[3].tolist() == [False, False, step == 3, False]
    assert {envs._fleet.engine.home(index) for index in range(4)} == {"main"}


@pytest.mark.processes
def test_what_cannot_travel_costs_its_own_environment_the_lane(lanes):
    envs = lanes(walks(4, Tells))
    before = envs.reset(seed=0)[0]
    shown, _, _, _, infos = envs.step(np.array([0, 0, 3, 0]))
    assert infos["_made"].tolist() == [False, False, True, False] and (shown[:, 1] == before[:, 1] + 1).all()
    assert [envs._fleet.engine.home(index) == "main" for index in range(4)] == [False, False, True, False]


def test_results_travel_as_plain_data():
    """Sealed one by one they would cost five times the step."""
    results = [GymResult(np.zeros(3), 1.0, False, False, {}, b"")] * 2
    assert flat(results)[0] is GymResult
    row = GymRow([7, 8], np.zeros(2, int), Form.of(np.dtype(np.float64), (3,)))
    result = GymRowResult(row.form)
    for each in results:
        result.add(each)
    result.join()
    outcomes = codec.unpack_reply(codec.pack_reply(1, [Outcome(7, RowOf([7, 8], result), 0.5)]))
    assert [single.env_id for outcome in outcomes for single in outcome.singly()] == [7, 8]
    same(outcomes[0].value.result.one(1)[:5], results[1][:5])


def test_pages_are_read_by_those_who_fall_behind_most_others(lanes, monkeypatch):
    """And stay as they are where all are as far behind."""
    monkeypatch.setattr(row_round, "FAR", 8)
    for kinds, most in (([Walk, Endless, Walk], 40), ([Endless, Endless, Walk], 50)):
        envs = lanes([walks(1, kind)[0] for kind in kinds], workers=0)
        envs.reset(seed=0)
        for _ in range(50):
            envs.step(np.zeros(3, int))
        records = list(envs._fleet.engine.records.values())
        assert (records[1].reader.distance == 50) == (most == 50)
        assert max(record.reader.distance for record in records) <= most
        assert records[1].journal.turns == 50 and not records[1].reader.is_behind


def test_many_pages_are_let_go_at_once():
    pages = Pages()
    reader = Reader(pages)
    for number in range(1, 200_000):
        pages.last.next = Page(number)
        pages.last = pages.last.next
    assert reader.distance == 199_999
    reader.skip()
    assert not reader.is_behind


def test_an_environment_that_changes_hands_in_between_is_looked_at_again(lanes):
    """What is known of the last call holds for the next one only."""
    envs, other = lanes(walks(3), workers=0), SyncVectorEnv(walks(3))
    same(envs.reset(seed=0), other.reset(seed=0))
    ask = np.zeros(3, int)
    for step in range(12):
        if step == 4:
            envs.set_attr("gain", 2.0), other.set_attr("gain", 2.0)
        if step == 6:
            same(envs.reset(seed=9), other.reset(seed=9))
        if step == 8:
            envs._fleet.engine.use_lanes = True
            envs._fleet.engine.bring_home(range(3))
        if step == 10:
            mask = np.array([True, False, False])
            same(envs.reset(options={"reset_mask": mask})[0], other.reset(options={"reset_mask": mask})[0])
        same(envs.step(ask), other.step(ask))


def test_every_row_in_main_tells_what_environments_took(lanes):
    envs = lanes(walks(2, Endless), workers=0)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(np.zeros(2, int))
    calls = envs._fleet.engine.stats_book.episode.calls
    assert len(calls) == 3
    assert all(0 < call.local_s <= call.seconds for call in calls)


class PaidInArrays(Endless):
    """Its rewards are arrays of one number."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward]), *rest


@pytest.mark.parametrize("workers", [0, 2])
def test_rewards_that_are_arrays_of_one_number_are_numbers_from_any_homes(lanes, workers):
    plain, paid = SyncVectorEnv(walks(4, Endless)), lanes(walks(4, PaidInArrays), workers=workers)
    for envs in (plain, paid):
        envs.reset(seed=0)
    for _ in range(3):
        rewards, expected = (envs.step(np.ones(4, int))[1] for envs in (paid, plain))
        same(rewards, expected)
    plain.close()
