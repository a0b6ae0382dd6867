"""Tasks are drawn once, in the main process, and are the same everywhere."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ragen.errors import TaskError
from ragen.meta import make_env, make_parallel_env
from support import meta_envs  # noqa: F401
from support.import_lines import imported_needlessly

NUMPY = [f"ragen/{name}-v0" for name in ("Bandit", "PointRobot", "SparsePointRobot", "Wind")]


@pytest.mark.parametrize("name", NUMPY)
def test_an_environment_is_what_gymnasium_expects(name):
    check_env(gym.make(name).unwrapped, skip_render_check=True)


def test_the_sparse_point_robot_pays_within_the_radius_alone():
    env = gym.make("ragen/SparsePointRobot-v0").unwrapped
    env.reset(seed=0, options={"task": (0.0, 1.0)})
    rewards = [env.step(np.array([0.0, 0.1]))[1] for _ in range(15)]
    assert rewards[:5] == [0.0] * 5 and rewards[9] == 1.0 and rewards[-1] == 0.0
    assert not env.is_goal_state()


def test_an_arm_pays_as_often_as_its_task_says():
    env = gym.make("ragen/Bandit-v0", arms=2, max_episode_steps=None).unwrapped
    env.reset(seed=0, options={"task": (0.0, 0.7)})
    assert sum(env.step(0)[1] for _ in range(50)) == 0
    assert 0.6 < np.mean([env.step(1)[1] for _ in range(1000)]) < 0.8


def test_task_7_is_the_same_task_in_every_worker_as_in_the_main_process():
    env = make_env("ragen/PointRobot-v0", 2, seed=4, oracle=True, n_tasks=9)
    with make_parallel_env(
        "ragen/PointRobot-v0", 2, 4, seed=4, oracle=True, n_tasks=9, settings={"use_lanes": True, "max_workers": 2}
    ) as manager:
        shown = manager.reset_all([7] * 4)
    expected = np.float32(env.tasks[7])
    assert all((each[2:4] == expected).all() for each in [*shown, env.reset(task=7)[0]])
    assert len({each[0] for each in shown}) == 4  # but each copy has a generator of its own


def test_tasks_to_learn_from_and_others_are_apart():
    env = make_env("ragen/PointRobot-v0", 2, seed=4, num_train_tasks=5, num_eval_tasks=2)
    assert (env.n_tasks, env.train_tasks, env.eval_tasks) == (7, range(5), range(5, 7))
    again = make_env("ragen/PointRobot-v0", 2, seed=4, n_tasks=7)
    assert env.tasks == again.tasks
    bandit = make_env("ragen/Bandit-v0", 1, seed=0, n_tasks=2, arms=3, max_episode_steps=20)
    assert ([len(task) for task in bandit.tasks], bandit.horizon_bamdp) == ([3, 3], 20)


@pytest.mark.parametrize(
    ("error", "mistake"),
    [
        *[
            (TaskError, lambda n=n, task=task: make_env("ragen/PointRobot-v0", 2, n_tasks=n).reset(task=task))
            for n, task in ((3, 3), (3, -1), (None, 0))
        ],
        (TaskError, lambda: make_env("ragen/PointRobot-v0", 2, n_tasks=0)),
        (gym.error.Error, lambda: make_env("ragen/PointRobotti-v0", 1)),
    ],
)
def test_mistakes_are_refused(error, mistake):
    with pytest.raises(error):
        mistake()


def test_workers_import_no_torch():
    assert (
        imported_needlessly("import ragen.meta.manager, ragen.meta.making", "torch omegaconf matplotlib mujoco hydra")
        == "[]"
    )
