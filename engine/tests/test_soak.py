"""Random kills through many episodes of mixed environments, compared in full with the sequential run.

A failure prints the seed; ``RAGEN_SOAK_SEED=N pytest engine/tests/test_soak.py`` plays it again, as far as the
moments of the kills can be had again.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from support.episodes import EnvStateManager, backend, config, freeze, inputs, sequential
from support.leftovers import processes

pytestmark = [pytest.mark.cold, pytest.mark.usefixtures("backend")]

SEED = int(os.environ.get("RAGEN_SOAK_SEED", "20240611"))
EPISODES = 4
TURNS = 5
REST_BETWEEN_STOPS = 10.0
FAULTS = ("exits", "raises", "is killed", "crashes", "returns unpicklable", "leaves threads", "raises oddly")
TAGS: dict[str, dict[str, Any]] = {
    "Walk": {"env_type": "support.faulty_envs:Walk"},
    "Pictures": {"env_type": "support.faulty_envs:Pictures"},
    "Draws": {"env_type": "support.faulty_envs:GlobalDraws"},
    "Brief": {"env_type": "support.faulty_envs:Walk", "max_actions_per_traj": 1},
    "Slow": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": "dawdles", "place": "turn 2"}},
}
GROUPS = [("Walk", 2), ("Brief", 1), ("Pictures", 1), ("Draws", 2), ("Slow", 1)]


def mixed(**settings):
    return config(TAGS, GROUPS, group_size=2, **{"max_restarts": 20, **settings})


@pytest.fixture(scope="module")
def reference():
    return sequential(mixed(), TURNS, EPISODES)


class Killer:
    """Kills a worker, or now and then the supervisor, from a thread, at moments that a seed decides, and so many."""

    def __init__(self, seed, most, often, supervisors):
        self._chance = random.Random(seed)
        self._most = most
        self._often = often
        self._supervisors = supervisors
        self._over = threading.Event()
        self.kills = 0

    @contextmanager
    def at_work(self):
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _work(self):
        stopped = time.monotonic()
        while self.kills < self._most and not self._over.wait(self._chance.expovariate(self._often)):
            supervisors, workers = self._victims()
            number = signal.SIGKILL
            if time.monotonic() - stopped > REST_BETWEEN_STOPS:  # two in one turn would be the environment's own fault
                number, stopped = signal.SIGSTOP, time.monotonic()
            victims = supervisors if number == signal.SIGKILL and self._chance.random() < self._supervisors else workers
            if victims:
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(self._chance.choice(victims), number)
                    self.kills += 1

    def _victims(self):
        titles = processes()
        supervisors = [pid for pid, title in titles.items() if title.startswith("envlanes supervisor")]
        workers = [pid for pid, title in titles.items() if title.startswith("envlanes worker")]
        return sorted(supervisors), sorted(workers)


OFTEN = {"process": 4.0, "executor": 1.0}  # kills a second: fewer than workers that can be started


def soak(seed, seconds, reference, settings):
    """Play until as many kills were survived as come in that time; a machine that is busy takes longer."""
    often, chance = OFTEN[backend()], random.Random(seed)
    kills = round(seconds * often)
    killer = Killer(seed, kills, often, supervisors=0.1)
    with EnvStateManager(settings) as manager, killer.at_work():
        while killer.kills < kills:
            manager.seed_counter = 0
            for number, expected in enumerate(reference):
                active = manager.reset()
                for turn in range(TURNS):
                    if chance.random() < 0.1:
                        manager.use_multiprocessing = chance.choice([True, True, False, "auto"])
                    active = manager.step(inputs([cache["env_id"] for cache in active], turn))
                got = freeze(manager.get_rollout_states())
                assert got == expected, f"seed {seed}, episode {number}, after {killer.kills} kills"


def settings_of(seed):
    """Stopped workers only show by their deadline, which must be short, yet longer than any wait for a processor."""
    method = ("forkserver", "spawn")[seed % 5 == 4]
    return mixed(
        use_multiprocessing=True,
        max_workers=2 + seed % 3,
        start_method=method,
        step_timeout=2.0,
        reset_timeout=4.0,
        startup_timeout=5.0,
    )


def test_rollouts_stay_equal_through_seconds_of_random_kills(reference):
    soak(SEED, 2.0, reference, settings_of(SEED))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(10))
def test_rollouts_stay_equal_through_minutes_of_random_kills(number, reference):
    soak(SEED + number, 30.0, reference, settings_of(SEED + number))


def test_all_faults_at_once_leave_the_good_ones_alone(tmp_path):
    """A whole manager of faulty environments, with good ones in between."""
    tags: dict[str, dict[str, Any]] = {"Good": {"env_type": "support.faulty_envs:Walk"}}
    for fault in FAULTS:
        fields = {"fault": fault, "place": f"turn {len(tags) % 3}"}
        tags[fault] = {"env_type": "support.faulty_envs:Faulty", "env_config": fields}
    groups = [pair for fault in list(tags)[1:] for pair in (("Good", 1), (fault, 1))]
    settings = config(tags, groups, use_multiprocessing=True, max_workers=3)
    good = [env_id for env_id, (tag, _) in enumerate(groups) if tag == "Good"]
    honest = config({"Good": {"env_type": "support.faulty_envs:Walk"}}, [("Good", len(groups))])
    expected = sequential(honest, TURNS, 2)
    with EnvStateManager(settings) as manager:
        for reference in expected:
            active = manager.reset()
            for turn in range(TURNS):
                active = manager.step(inputs([cache["env_id"] for cache in active], turn))
            rollouts = freeze(manager.get_rollout_states())
            for env_id in good:
                assert rollouts[env_id]["history"] == reference[env_id]["history"]
