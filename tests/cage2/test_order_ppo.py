"""The policy: what it is, what it is paid, what it learns from, and that it learns."""

import copy

import numpy as np
import pytest

from ragen.cage2.workflow import WorkflowManager
from ragen.errors import ConfigError, InputError, WorkflowError
from support.cage2_stand_in import StandInEnvs
from support.later import ppo, torch

ORDER = ("op_server", "enterprise", "user", "defender", "op_host")


@pytest.fixture(autouse=True)
def one_thread():
    """As the trainer has it: batches are too small for more."""
    torch.set_num_threads(1)


def play(agent, envs, steps, states=None):
    """Play some steps and record them; what was seen and done in each, and what is seen now."""
    states = envs.reset() if states is None else states
    rows = []
    for _ in range(steps):
        chosen = agent.get_actions(states)
        next_states, rewards, dones, infos = envs.step(chosen)
        ended = agent.record(chosen, rewards, dones, infos)
        rows.append((states, np.asarray(chosen), rewards, infos, ended))
        states = next_states
    return rows, states


def agent_and_envs(n_envs=4, max_steps=6, truncated=True, failing=(), **settings):
    agent = ppo.ParallelOrderConditionedPPO(n_envs=n_envs, workflow_order=ORDER, seed=3, **settings)
    return agent, StandInEnvs(n_envs, max_steps=max_steps, truncated=truncated, failing=failing, seed=5)


def test_the_networks_are_as_they_were_described_and_see_the_workflow():
    policy = ppo.ParallelOrderConditionedPPO().policy
    for network, out in ((policy.actor, 145), (policy.critic, 1)):
        shapes = [tuple(layer.weight.shape) for layer in network if isinstance(layer, torch.nn.Linear)]
        assert shapes == [(64, 77), (64, 64), (out, 64)]
    states = np.random.default_rng(0).random((4, 52), np.float32)
    logs = [
        ppo.ParallelOrderConditionedPPO(n_envs=4, workflow_order=order, seed=1).values_of(states)
        for order in (ORDER, ORDER[::-1])
    ]
    assert not np.allclose(*logs)


@pytest.mark.parametrize("failing", [(), (1, 3)], ids=["all", "some fail"])
def test_an_update_is_that_of_the_definition_without_episodes_that_failed(failing):
    agent, envs = agent_and_envs(K_epochs=3, failing=failing)
    _, states = play(agent, envs, 12)
    batch, returns = agent.buffer.get_trajectories(), agent.buffer.compute_returns(0.99, agent.values_of(states))
    valid = np.tile([env_id not in failing for env_id in range(4)], 12)
    batch, returns = {name: batch[name][valid] for name in ("states", "actions", "log_probs")}, returns[valid]
    policy = copy.deepcopy(agent.policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.002, betas=(0.9, 0.99))
    code = np.tile(WorkflowManager().order_to_onehot(ORDER), (len(returns), 1))
    inputs = torch.from_numpy(np.hstack((batch["states"], code)))
    targets = torch.tensor((returns - returns.mean()) / returns.std(), dtype=torch.float32)
    actions, before = (torch.from_numpy(batch[name]) for name in ("actions", "log_probs"))
    for _ in range(3):
        logs = torch.distributions.Categorical(logits=policy.actor(inputs))
        values = policy.critic(inputs).squeeze(-1)
        ratio, gain = (logs.log_prob(actions) - before).exp(), (targets - values).detach()
        surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        loss = -surrogate + 0.5 * ((values - targets) ** 2).mean() - 0.01 * logs.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
    agent.update(states)
    for one, other in zip(policy.parameters(), agent.policy.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    assert len(agent.buffer) == 0


@pytest.mark.parametrize("truncated", [True, False])
def test_an_episode_that_is_cut_is_worth_what_the_critic_says_and_one_that_ends_is_not(truncated):
    agent, envs = agent_and_envs(max_steps=5, truncated=truncated, alignment_alpha=0, alignment_beta=0)
    agent.return_mean, agent.return_std = -50.0, 4.0
    rows, states = play(agent, envs, 8)
    found = agent.buffer.compute_returns(0.99, agent.values_of(states)).reshape(8, 4)
    for env_id in range(4):
        last = rows[4][3][env_id]["final_observation"]
        rest = agent.values_of(last[None])[0] if truncated else 0.0
        assert found[4, env_id] == pytest.approx(rows[4][2][env_id] + 0.99 * rest)
        after = agent.values_of(states)[env_id]  # the batch ends in mid-episode
        assert found[7, env_id] == pytest.approx(rows[7][2][env_id] + 0.99 * after)


def test_what_is_paid_for_the_workflow_is_in_the_step_that_did_it_and_comes_once():
    # The seed paid a hundredth of the present value in every step, and at the end nothing.
    agent, envs = agent_and_envs(max_steps=50, alignment_alpha=30, alignment_beta=0)
    rows, _ = play(agent, envs, 50)
    paid = agent.buffer.get_trajectories()["rewards"].reshape(50, 4) - np.array([row[2] for row in rows])
    actions = np.array([row[1] for row in rows])
    is_fix = ((actions >= 15) & (actions < 28)) | (actions >= 132)
    assert is_fix.any(0).all()
    assert not paid[~is_fix].any()
    for env_id, ended in enumerate(rows[-1][4]):
        assert paid[:, env_id].sum() == pytest.approx(30 * ended[0])
        assert ended[1] == is_fix[:, env_id].sum()


def test_it_learns_what_pays_and_to_keep_to_its_order():
    agent, envs = agent_and_envs(n_envs=16, max_steps=25, update_steps=50, lr=0.01, gamma=0.5, alignment_alpha=30)
    states, rewards, rates = None, [], []
    for _ in range(25):
        rows, states = play(agent, envs, 50, states)
        rewards.append(np.mean([row[2] for row in rows]))
        rates.append(np.mean([each[0] for row in rows for each in row[4] if each]))
        assert agent.should_update
        agent.update(states)
    assert rewards[0] < 0.1 and np.mean(rewards[-3:]) > 0.15
    assert np.mean(rates[-3:]) > np.mean(rates[:3]) + 0.15


def test_the_loop_as_it_is_written_down_learns_from_the_states_in_which_actions_were_chosen():
    from ragen.cage2 import ParallelEnvWrapper, ParallelTrajectoryBuffer

    agent = ppo.ParallelOrderConditionedPPO(n_envs=4)
    envs, buffer, seen = ParallelEnvWrapper(n_envs=4), ParallelTrajectoryBuffer(n_envs=4), []
    observations = envs.reset()
    for _ in range(20):
        seen.append(observations)
        actions = agent.get_actions(observations)
        observations, rewards, _, _ = envs.step(actions)
        buffer.add(observations, actions, rewards)
    batch = buffer.get_trajectories()
    assert (batch["states"] == np.concatenate(seen)).all() and batch["log_probs"] is not None
    weights = [each.detach().clone() for each in agent.policy.parameters()]
    assert set(agent.update()) == {"policy_loss", "value_loss", "entropy"}
    assert not all(torch.equal(one, other) for one, other in zip(weights, agent.policy.parameters(), strict=True))
    assert len(buffer) == 0
    envs.close()


@pytest.mark.parametrize(
    ("error", "mistake"),
    [
        (ConfigError, lambda: ppo.ParallelOrderConditionedPPO(n_envs=0)),
        (WorkflowError, lambda: ppo.ParallelOrderConditionedPPO(workflow_order=ORDER[:3])),
        (InputError, lambda: agent_and_envs()[0].get_actions(np.zeros((3, 52)))),
    ],
)
def test_what_cannot_work_is_refused(error, mistake):
    with pytest.raises(error):
        mistake()
