"""The buffer is the same, bit for bit, whoever played what, and whatever happened to them."""

import pytest

from ragen.meta import make_env, make_parallel_env
from support import meta_envs  # noqa: F401
from support.later import meta, torch

AGENTS = [("MarkovAgent", {}), ("MemoryAgent", {}), ("MemoryAgent", {"rnn": "lstm"}), ("MemoryMarkovAgent", {})]
WIDTHS = {"observations": 3, "actions": 2, "rewards": 1, "terminals": 1, "next_observations": 3}
MAIN, LANES = {"use_lanes": False}, {"use_lanes": True, "max_workers": 2}
ANT = ("ragen/AntDir-v0", {"n_tasks": 6, "max_episode_steps": 8})
ROBOT = ("ragen/SparsePointRobot-v0", {"n_tasks": 6, "max_episode_steps": 8})
CORRIDOR = ("ragen-tests/Corridor-v0", {})  # rollouts of different lengths, discrete actions, unlimited tasks
GLOBAL = ("ragen-tests/GlobalTasks-v0", {})


def collect(agent_class, place, copies, settings=None, rollouts=7, *, random_actions=False, **agent):
    env_id, kwargs = place
    torch.manual_seed(0)
    env = make_env(env_id, 2, seed=1, **kwargs)
    player = getattr(meta, agent_class).of(env, hidden=16, **agent)
    drawn = torch.Generator().manual_seed(1)  # weights at which it heeds what it sees and remembers
    torch.nn.init.normal_(player.policy.mean.weight, generator=drawn)
    learner = meta.Learner(player, env, seed=5, forward_batch=4)
    if copies is None:
        learner.collect_rollouts_parallel(rollouts, random_actions)
        return learner
    with make_parallel_env(env_id, 2, copies, seed=1, settings=settings, **kwargs) as manager:
        learner.collect_rollouts_parallel(rollouts, random_actions, manager)
    return learner


def content(learner):
    storage = learner.policy_storage
    whole = storage.episodes or [meta.arrays_of(storage.steps)]
    return [{name: values.tobytes() for name, values in each.items()} for each in whole]


@pytest.mark.parametrize("place", [ROBOT, CORRIDOR, GLOBAL, ANT], ids=["robot", "corridor", "global", "ant"])
@pytest.mark.parametrize(("agent_class", "agent"), AGENTS)
def test_the_buffer_does_not_depend_on_how_many_play(agent_class, agent, place):
    for random_actions in (False, True):
        one, *others = (
            content(collect(agent_class, place, *copies, random_actions=random_actions, **agent))
            for copies in ((None,), (1, MAIN), (3, LANES))
        )
        assert others == [one, one]


@pytest.mark.parametrize("backend", ["process", "executor"])
def test_the_buffer_does_not_depend_on_workers_that_are_killed(backend, tmp_path):
    mark = tmp_path / "killed"
    env_id, _ = CORRIDOR
    place = env_id, {"fault": f"kill once {mark}"}
    killed = collect("MemoryAgent", place, 4, {**LANES, "backend": backend})
    assert mark.exists()
    assert content(killed) == content(collect("MemoryAgent", CORRIDOR, None))


def test_two_collections_are_one():
    twice, once = (collect("MemoryAgent", CORRIDOR, None, rollouts=rollouts) for rollouts in (3, 8))
    twice.collect_rollouts(5)
    assert content(twice) == content(once)


def test_what_the_buffer_holds_is_what_was_played():
    learner = collect("MemoryAgent", ROBOT, 3, MAIN)
    tasks, episodes = make_env(ROBOT[0], 2, seed=1, **ROBOT[1]).tasks, learner.policy_storage.episodes
    for rollout, episode in zip(learner.last_rollouts, episodes, strict=True):
        assert {name: values.shape for name, values in episode.items()} == {name: (16, WIDTHS[name]) for name in WIDTHS}
        assert rollout.task in tasks
        assert (episode["observations"][1:] == episode["next_observations"][:-1]).all()
    episode = collect("MemoryAgent", CORRIDOR, 2, MAIN).policy_storage.episodes[0]
    assert episode["actions"].shape[1] == 1 and set(episode["actions"].ravel()) <= {0.0, 1.0, 2.0}  # indices


def test_what_is_counted():
    learner = collect("MemoryAgent", ROBOT, 3, MAIN)
    assert (learner._n_rollouts_total, learner._n_env_steps_total) == (7, 7 * 16)
    assert learner._successes_in_buffer == sum(each.successes > 0 for each in learner.last_rollouts)
    assert (learner.collect_rollouts_parallel(0), learner.collect_rollouts(2)) == (0, 32)


@pytest.mark.parametrize(
    ("env_id", "is_credit", "terminals"),
    [
        ("ragen-tests/Goal-v0", False, [0, 1, 0, 1, 0, 1]),  # in a goal state the episode goes on
        ("ragen/Bandit-v0", False, [0] * 6),
        ("ragen/Bandit-v0", True, [0, 0, 0, 0, 0, 1]),
    ],
)
def test_terminal_steps_are_those_in_goal_states_or_the_last_of_credit_tasks(env_id, is_credit, terminals):
    env = make_env(env_id, 1, seed=1, max_episode_steps=6)
    learner = meta.Learner(meta.MarkovAgent.of(env), env, is_credit=is_credit)
    learner.collect_rollouts(1)
    assert meta.arrays_of(learner.policy_storage.steps)["terminals"].ravel().tolist() == terminals


def test_a_failed_environment_cuts_its_rollout_and_no_other():
    place = CORRIDOR[0], {"fault": "raises", "at": 4}
    learner = collect("MarkovAgent", place, 3, LANES, random_actions=True)
    honest = collect("MarkovAgent", CORRIDOR, 3, MAIN, random_actions=True)
    failed = [each.index for each in learner.last_rollouts if each.error]
    assert failed
    assert len(learner.policy_storage.steps) == sum(len(each.steps) for each in learner.last_rollouts if not each.error)
    for one, other in zip(learner.last_rollouts, honest.last_rollouts, strict=True):
        assert one.error or [step[2] for step in one.steps] == [step[2] for step in other.steps]


@pytest.mark.parametrize("rnn", ["gru", "lstm"])
def test_a_batch_of_states_may_be_a_list(rnn):
    agent = meta.MemoryAgent.of(make_env("ragen/PointRobot-v0", 2), hidden=8, rnn=rnn)
    action, reward, state = agent.get_initial_info()
    action, reward, obs, states = action.repeat(2, 1), reward.repeat(2, 1), torch.randn(2, 3), [state, state]
    state = tuple(part.repeat(1, 2, 1) for part in state) if rnn == "lstm" else state.repeat(1, 2, 1)
    for _ in range(2):
        (one, *_), state = agent.act(state, action, reward, obs, deterministic=True)
        (other, *_), states = agent.act(states, action, reward, obs, deterministic=True)
        assert torch.equal(one, other) and len(states) == 2
