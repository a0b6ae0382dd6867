"""Rollouts stay equal whatever happens to workers, and wherever an environment's class comes from."""

from __future__ import annotations

import os
import random
import signal
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress

import psutil
import pytest

from envlanes.linux import descendants
from support import scripts
from support.episodes import TYPES, EnvStateManager, config, errors, freeze, inputs, play, register_env, sequential
from support.faulty_envs import Walk
from support.leftovers import is_over, titled, until

pytestmark = pytest.mark.usefixtures("backend")

TURNS = 4
TAGS = {
    "Walk": {"env_type": "support.faulty_envs:Walk"},
    "Pictures": {"env_type": "support.faulty_envs:Pictures"},
    "Draws": {"env_type": "support.faulty_envs:GlobalDraws"},
}
GROUPS = [("Walk", 1), ("Pictures", 2), ("Draws", 1)]


def mixed(**settings):
    return config(TAGS, GROUPS, group_size=2, **{"use_multiprocessing": True, **settings})


@pytest.fixture(scope="module")
def reference():
    """Two episodes as they are in the main process."""
    return sequential(mixed(), TURNS, episodes=2)


Kill = Callable[[EnvStateManager], None]


@pytest.mark.parametrize(
    ("backend", "method"),
    [("process", "forkserver"), ("process", "spawn"), ("executor", "forkserver")],
    indirect=["backend"],
)
def test_all_workers_killed_before_turns(method, reference, kill_lanes):
    turns = (
        range(TURNS) if method == "forkserver" else [2]
    )  # an interpreter for each worker: dear, and the same each time
    with EnvStateManager(mixed(start_method=method)) as manager:
        for expected in reference:
            assert freeze(play(manager, TURNS, lambda turn: turn in turns and kill_lanes(manager))) == expected


@contextmanager
def killing(find, often):
    """Kill what is found, at random moments, from a thread; the process ids that were killed."""
    stop, chance = threading.Event(), random.Random(0)
    killed: list[int] = []

    def work():
        while not stop.wait(chance.uniform(0.0, 0.03)) and len(killed) < often:
            for pid in find():
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def test_workers_killed_at_random_moments(reference):
    with EnvStateManager(mixed(max_restarts=50)) as manager:
        manager.reset()
        with killing(lambda: titled("envlanes worker")[:1], 8) as killed:
            while len(killed) < 8:
                for expected in reference:
                    manager.seed_counter = 0 if expected is reference[0] else 4
                    assert freeze(play(manager, TURNS)) == expected


# The supervisor of processes

of_processes = pytest.mark.parametrize("backend", ["process"], indirect=True)


def supervisor():
    """Process id of the supervisor."""
    (pid,) = [pid for pid in titled("envlanes supervisor") if psutil.Process(pid).ppid() == os.getpid()]
    return pid


def kill_supervisor():
    """Kill the supervisor, and wait until its workers are gone too."""
    pid = supervisor()
    family = {pid, *descendants(pid)}
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: all(is_over(each) for each in family))


@of_processes
@pytest.mark.cold
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_supervisor_killed_between_turns(method, reference):
    with EnvStateManager(mixed(start_method=method)) as manager:
        assert freeze(play(manager, TURNS, lambda turn: kill_supervisor() if turn in (0, 2) else None)) == reference[0]
        kill_supervisor()
        assert freeze(play(manager, TURNS)) == reference[1]


@of_processes
@pytest.mark.cold
def test_a_supervisor_killed_in_mid_turn_is_told_as_such_and_no_environment_is_blamed(
    caplog,
):
    tags = {"Slow": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": "is slow", "place": "turn 1"}}}
    settings = config(tags, [("Slow", 4)], use_multiprocessing=True)
    with EnvStateManager(settings) as manager:
        manager.reset()
        manager.step(inputs(range(4), 0))
        timer = threading.Timer(0.1, os.kill, (supervisor(), signal.SIGKILL))
        timer.start()
        active = manager.step(inputs(range(4), 1))
        timer.join()
        assert [errors(cache) for cache in active] == [[None, None]] * 4
        assert [lane.restarts for lane in manager.lane_stats()] == [0, 1, 1]
        assert {manager.home(env_id) for env_id in range(4)} == {"worker 0", "worker 1"}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("ended with its supervisor process" in line for line in said), said


# Switches and resets in mid-episode


@pytest.mark.parametrize(
    ("backend", "start", "plan"),
    [
        ("process", True, (1, 2, 3)),
        ("executor", True, (1, 2, 3)),
        ("process", False, (1,)),
        ("process", "auto", (1, 3)),
    ],
    indirect=["backend"],
)
def test_switching_in_mid_episode_changes_nothing(start, plan, reference):
    with EnvStateManager(mixed(use_multiprocessing=start)) as manager:

        def switch(turn):
            if turn in plan:
                manager.use_multiprocessing = manager.use_multiprocessing is not True

        for expected in reference:
            manager.use_multiprocessing = start
            assert freeze(play(manager, TURNS, switch)) == expected


def test_a_sequential_step_in_between_changes_nothing(reference):
    with EnvStateManager(mixed()) as manager:
        active = manager.reset()
        for turn in range(TURNS):
            step = manager._step_sequential if turn % 2 else manager._step_parallel
            active = step(inputs([cache["env_id"] for cache in active], turn))
        assert freeze(manager.get_rollout_states()) == reference[0]


@pytest.mark.parametrize("turns", [0, 2])
def test_a_reset_in_mid_episode_begins_afresh(turns, reference):
    with EnvStateManager(mixed()) as manager:
        play(manager, turns)
        assert freeze(play(manager, TURNS)) == reference[1]


def test_two_managers_share_lanes_and_disturb_each_other_in_nothing(reference, kill_lanes):
    with EnvStateManager(mixed()) as one, EnvStateManager(mixed(), mode="val") as other:
        one.reset()
        other.reset()
        assert {lane.pid for lane in one.lane_stats()} == {lane.pid for lane in other.lane_stats()}
        one.seed_counter = 0
        assert freeze(play(one, TURNS, lambda turn: other.reset())) == reference[0]
        assert freeze(play(other, TURNS, lambda turn: kill_lanes(one))) == reference[0]


def test_managers_in_two_threads_share_lanes_while_one_kills_them(reference):
    fields = {"fault": "exits", "place": "turn 1"}
    tags = {**TAGS, "Faulty": {"env_type": "support.faulty_envs:Faulty", "env_config": fields}}
    faulty = config(tags, [("Walk", 1), ("Faulty", 2), ("Draws", 1)], use_multiprocessing=True)
    failures: list[BaseException] = []
    over = threading.Event()

    def misbehave():
        try:
            with EnvStateManager(faulty) as manager:
                while not over.is_set():
                    rollouts = play(manager, 3, seed=1000)
                    assert errors(rollouts[1]) == [None, "its process exited with code 3"]
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=misbehave)
    thread.start()
    try:
        with EnvStateManager(mixed()) as manager:
            for _ in range(3):
                manager.seed_counter = 0
                for expected in reference:
                    assert freeze(play(manager, TURNS)) == expected
    finally:
        over.set()
        thread.join()
    assert not failures


def test_workers_outlive_the_thread_that_started_them(reference):
    with EnvStateManager(mixed()) as manager:
        thread = threading.Thread(target=manager.reset)
        thread.start()
        thread.join()
        manager.seed_counter = 0
        assert freeze(play(manager, TURNS)) == reference[0]
        assert all(lane.restarts == 0 for lane in manager.lane_stats())


# Environments that are no functions of seed and actions


def one_of(name, **settings):
    tags = {"Walk": {"env_type": "support.faulty_envs:Walk"}, "Odd": {"env_type": f"support.faulty_envs:{name}"}}
    return config(tags, [("Walk", 2), ("Odd", 2)], **{"use_multiprocessing": True, **settings})


@pytest.mark.parametrize("start", [True, False])
def test_an_environment_that_cannot_be_replayed_moves_at_the_next_reset_and_stays_until_then(start):
    settings = one_of("Unreplayable", use_multiprocessing=start)
    with EnvStateManager(settings) as manager:
        homes = []

        def switch(turn):
            homes.append({manager.home(env_id).partition(" ")[0] for env_id in (2, 3)})
            manager.use_multiprocessing = start if turn % 2 else not start

        expected = sequential(settings, TURNS, episodes=2)
        assert freeze(play(manager, TURNS, switch)) == expected[0]
        manager.use_multiprocessing = not start
        assert freeze(play(manager, TURNS)) == expected[1]
        homes.append({manager.home(env_id).partition(" ")[0] for env_id in (2, 3)})
    first, then = ({"worker"}, {"main"}) if start else ({"main"}, {"worker"})
    assert homes == [first] * TURNS + [then]


def test_an_environment_that_cannot_be_replayed_is_truncated_if_its_worker_is_killed(kill_lanes):
    settings = one_of("Unreplayable")
    with EnvStateManager(settings) as manager:
        rollouts = freeze(play(manager, TURNS, lambda turn: kill_lanes(manager) if turn == 2 else None))
    expected = sequential(settings, TURNS)[0]
    assert rollouts[:2] == expected[:2]
    for rollout in rollouts[2:]:
        assert errors(rollout)[:2] == [None, None]
        assert "cannot be replayed" in str(errors(rollout)[2])


# Where classes come from

MAIN = """
    from dataclasses import dataclass

    GREETING = ["hello"]

    @dataclass
    class MineConfig:
        start: int = 3

    class Mine(BaseEnv):
        config_class = MineConfig
        uses_global_rng = False

        def __init__(self, config):
            self.config = config

        def reset(self, seed=None, mode=None):
            self.random = random.Random(seed)
            self.at = self.config.start
            return self.render()

        def step(self, action):
            self.at += self.random.randrange(9) + helper(action)
            if action == "raise":
                raise MineError("mine")
            return self.render(), 1.0, False, {"at": self.at}

        def render(self, mode=None):
            return f"{GREETING[0]} at {self.at}"

    class MineError(Exception):
        pass

    def helper(action):
        return len(action)

    def settings(env_type):
        tags = {"Mine": {"env_type": env_type, "env_config": {"start": 5}}}
        return config(tags, [("Mine", 3)], use_multiprocessing=True, group_size=2)

    def check(env_type):
        with EnvStateManager(settings(env_type)) as manager:
            assert freeze(play(manager)) == sequential(settings(env_type))[0]
            assert manager.lane_stats()[0].envs == 0, manager.lane_stats()
            for lane in manager.lane_stats()[1:]:
                os.kill(lane.pid, signal.SIGKILL)
            manager.step(inputs(range(6), 4))
            assert manager.lane_stats()[0].envs == 0, manager.lane_stats()
        print("equal")
"""

WAYS = {
    "by itself": 'register_env("mine", Mine)\n    check("mine")',
    "in a function": """def make():
        class Local(Mine):
            def render(self, mode=None):
                return super().render() + "!"
        return Local
    register_env("mine", make())
    check("mine")""",
    "__main__:Class": 'check("__main__:Mine")',
}


def test_a_class_of_the_main_script_works_in_workers(tmp_path):
    script = tmp_path / "script.py"
    ways = [
        f"    print({way!r})\n    {said}".replace('"mine"', f'"mine{n}"') for n, (way, said) in enumerate(WAYS.items())
    ]
    script.write_text("\n".join([scripts.HEAD, textwrap.dedent(MAIN), 'if __name__ == "__main__":', *ways, ""]))
    assert scripts.run(script) == "".join(f"{way}\nequal\n" for way in WAYS)


@pytest.fixture
def late_path(tmp_path):
    """A folder that becomes part of ``sys.path`` only now."""
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("late_")]:
        del sys.modules[name]


def test_a_module_that_became_importable_after_the_workers_started_is_found_there(late_path):
    with EnvStateManager(mixed()) as first:
        first.reset()
        folder = late_path / "late_folder"
        folder.mkdir()
        (folder / "late_module.py").write_text("from support.faulty_envs import Walk\nclass Late(Walk):\n    pass\n")
        sys.path.insert(0, str(folder))
        try:
            settings = config({"L": {"env_type": "late_module:Late"}}, [("L", 4)], use_multiprocessing=True)
            with EnvStateManager(settings) as manager:
                assert freeze(play(manager)) == sequential(settings)[0]
                assert manager.lane_stats()[0].envs == 0
        finally:
            sys.path.remove(str(folder))
            TYPES.pop("late_module:Late", None)


def test_a_module_that_only_main_can_import_keeps_its_environments_there(caplog):
    module = type(sys)("only_here")
    module.Here = type("Here", (Walk,), {"__module__": "only_here"})  # type: ignore[attr-defined]
    sys.modules["only_here"] = module
    try:
        settings = config({"H": {"env_type": "only_here:Here"}}, [("H", 2)], use_multiprocessing=True)
        with EnvStateManager(settings) as manager:
            assert freeze(play(manager)) == sequential(settings)[0]
            assert manager.lane_stats()[0].envs == 2
        assert "does not work in a worker" in caplog.text and "only_here" in caplog.text
    finally:
        del sys.modules["only_here"]
        TYPES.pop("only_here:Here", None)


def test_a_configuration_that_cannot_be_pickled_keeps_its_environment_in_main(
    caplog,
):
    class Locked(Walk):
        guard = threading.Lock()  # part of the class, which travels by value

    register_env("locked", Locked)
    try:
        tags = {"L": {"env_type": "locked"}, "Walk": {"env_type": "support.faulty_envs:Walk"}}
        settings = config(tags, [("L", 2), ("Walk", 2)], use_multiprocessing=True)
        with EnvStateManager(settings) as manager:
            assert freeze(play(manager)) == sequential(settings)[0]
            assert manager.lane_stats()[0].envs == 2
        assert "(tag 'L', type 'locked') does not work in a worker" in caplog.text
    finally:
        TYPES.pop("locked", None)


class Collects(Walk):
    """Writes into its configuration."""

    def reset(self, seed=None, mode=None):
        self.config["items"].append(seed)
        return super().reset(seed, mode)

    def sight(self):
        return f"{super().sight()} {self.config['items']}"


def test_a_configuration_that_environments_write_into_is_each_one_s_own():
    items: list[int] = []
    tags = {"Tag": {"env_type": f"{__name__}:Collects", "env_config": {"items": items}}}
    settings = config(tags, [("Tag", 3)], group_size=2, use_multiprocessing=True)
    with EnvStateManager(settings) as manager:
        assert freeze(play(manager)) == sequential(settings)[0]
    assert items == []
