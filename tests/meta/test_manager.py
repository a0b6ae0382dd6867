"""Copies in workers, spoken to in the old interface."""

import gc
import os
import signal

import numpy as np
import psutil
import pytest

from ragen.errors import ConfigError, EnvError, InputError, RagenError, StateError
from ragen.meta import ParallelEnvManager, make_env, make_parallel_env
from support.leftovers import processes, until
from support.meta_envs import Corridor, OldTasks, OldWrapper

MAIN, LANES = {"use_lanes": False}, {"use_lanes": True, "max_workers": 2}
HOMES = [MAIN, {**LANES, "backend": "process"}, {**LANES, "backend": "executor"}]


@pytest.fixture(params=HOMES, ids=["main", "process", "executor"])
def settings(request):
    return request.param


def robots(settings, copies=4, **kwargs):
    return make_parallel_env("ragen/SparsePointRobot-v0", 2, copies, seed=3, n_tasks=5, settings=settings, **kwargs)


def test_it_says_what_its_copies_are_like(settings):
    with robots(settings) as manager:
        assert (manager.num_envs, len(manager.remotes), manager.n_tasks, manager.horizon_bamdp) == (4, 4, 5, 120)
        assert manager.observation_space.shape == (3,) and manager.action_space.shape == (2,)
        assert manager.unwrapped.radius == 0.2
        manager.reset_all()
        assert manager.unwrapped.is_goal_state() is False
        assert not hasattr(manager.unwrapped, "nothing_of_the_kind")
        assert manager.get_attr("train_tasks", 1, ["stop"]) == 5
        assert not manager.closed
    assert manager.closed
    manager.close()


def test_all_homes_give_the_same_as_environments_one_by_one(settings):
    with robots(settings) as manager:
        shown = manager.reset_all([0, 1, 2, 3])
        actions = np.random.default_rng(0).uniform(-1, 1, (70, 4, 2))
        steps = [manager.step_all(list(each)) for each in actions]
    for index in range(4):
        env = make_env("ragen/SparsePointRobot-v0", 2, seed=3, n_tasks=5)
        assert (env.reset(task=index, seed=3 + index)[0] == shown[index]).all()
        for action, (observations, rewards, dones, _) in zip(actions, steps, strict=True):
            observation, reward, terminated, truncated, _ = env.step(action[index])
            assert (observation == observations[index]).all()
            assert (reward, terminated or truncated) == (rewards[index], dones[index])


def test_learners_use_remotes_as_ends_of_pipes(settings):
    with robots(settings) as manager:
        ends = manager.remotes
        for index, remote in enumerate(ends):
            remote.send(("reset", {"task": index}))
        assert [(kind, seen.shape) for kind, seen in (remote.recv() for remote in ends)] == [("obs", (3,))] * 4
        for index in (2, 0):
            ends[index].send(("step", {"action": np.ones(2)}))
        kind, (observation, reward, done, info) = ends[0].recv()
        assert kind == "transition" and observation.shape == (3,) and (reward, done) == (0.0, False)
        assert info["is_goal_state"] is False
        for message in (("get_attr", {"attr": "train_tasks", "subattrs": ["stop"]}), ("seed", {"seed": 5})):
            ends[0].send(message)
        assert [ends[0].recv(), ends[0].recv(), ends[2].recv()[0]] == [("attr", 5), ("done", None), "transition"]
        ends[1].send(("close", None))
        with pytest.raises(StateError):
            ends[1].send(("reset", {}))


def test_one_remote_s_error_is_no_other_s(settings):
    with robots(settings) as manager:
        manager.remotes[0].send(("step", {"action": np.ones(2)}))
        manager.remotes[1].send(("reset", {"task": 1}))
        manager.remotes[2].send(("reset", {"task": 99}))
        assert manager.remotes[1].recv()[0] == "obs"
        for index, error in ((0, StateError), (2, EnvError), (3, StateError)):
            with pytest.raises(error):
                manager.remotes[index].recv()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_closures_are_built_with_every_start_method(method):
    length = 3
    with ParallelEnvManager([lambda: Corridor(length)] * 2, method, settings=LANES) as manager:
        assert manager.get_attr("length", 1) == 3
        manager.reset_all([1.0, 2.0])
        assert manager.step_all([0, 0])[2] == [False, False]


def test_an_environment_without_tasks_or_of_the_old_interface_is_taken(settings):
    with ParallelEnvManager([OldTasks, OldWrapper], settings=settings) as manager:
        assert (manager.n_tasks, manager.horizon_bamdp) == (None, None)
        manager.seed([1, 2])
        shown = manager.reset_all(["a", None])
        assert shown == [np.float32(np.random.default_rng(seed).random()) for seed in (1, 2)]
        steps = [manager.step_all([1, 0]) for _ in range(3)]
        assert [step[2] for step in steps] == [[False, False], [False, False], [True, True]]
        assert [step[3][0]["is_goal_state"] for step in steps] == [False, True, False]
        assert steps[2][3][0]["TimeLimit.truncated"] and steps[2][3][0]["task"] == "a"


def test_killed_workers_are_not_noticed():
    def play(kills):
        with robots(LANES) as manager:
            seen = [manager.reset_all([0, 1, None, 3])]
            for turn in range(20):
                if kills and turn in (0, 7):
                    pids = [each.pid for each in manager.workers if each.lane != "main" and each.pid]
                    for pid in pids:
                        os.kill(pid, signal.SIGKILL)
                    assert until(lambda pids=pids: not set(pids) & set(processes()))
                seen.append(manager.step_all([np.full(2, 0.1 * turn)] * 4)[0])
            seen += [manager.reset_all(), manager.reset_all()]  # goes on with each copy's generator
        return np.array(seen).tolist()

    assert play(kills=True) == play(kills=False)


def test_seeds_reproduce_tasks_that_are_drawn_too(settings):
    with make_parallel_env("ragen/PointRobot-v0", 1, 2, oracle=True, settings=settings) as manager:
        manager.seed([7, 8])
        first = [manager.reset_all(), manager.reset_all()]
        manager.seed([7, 8])
        again = [manager.reset_all(), manager.reset_all()]
    assert np.array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0][0][2:], first[0][1][2:])


def test_del_ends_the_workers_without_a_garbage_collection():
    gc.disable()
    try:
        manager = robots(LANES)
        manager.reset_all()
        workers = [psutil.Process(each.pid) for each in manager.workers if each.lane != "main"]
        assert workers
        del manager
        assert not psutil.wait_procs(workers, timeout=30)[1]
    finally:
        gc.enable()


def broken():
    raise ValueError("no such thing")


MISTAKES = [
    (ConfigError, lambda manager: ParallelEnvManager([Corridor], "fork")),
    (ConfigError, lambda manager: ParallelEnvManager([])),
    (EnvError, lambda manager: ParallelEnvManager([broken], settings=MAIN)),
    (EnvError, lambda manager: ParallelEnvManager([broken], settings=LANES)),
    *[
        (InputError, lambda manager, name=name: getattr(manager, name)([0]))
        for name in ("reset_all", "seed", "step_all")
    ],
    (InputError, lambda manager: manager.reset(4)),
    *[
        (InputError, lambda manager, message=message: manager.remotes[0].send(message))
        for message in (("jump", None), ("step", {}), ("seed", None), "reset")
    ],
    (StateError, lambda manager: manager.close() or manager.reset_all()),
    (StateError, lambda manager: manager.close() or manager.remotes[0].send(("reset", {}))),
]


@pytest.mark.parametrize(("error", "mistake"), MISTAKES)
def test_mistakes_are_refused(error, mistake):
    assert issubclass(error, RagenError)
    with robots(MAIN) as manager, pytest.raises(error):
        mistake(manager)
