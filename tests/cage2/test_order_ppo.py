"""The policy: what it is, what it is paid, what it learns from, and that it learns."""

import copy

import numpy as np
import pytest

from ragen.cage2 import ParallelEnvWrapper, ParallelTrajectoryBuffer, WorkflowManager
from ragen.errors import ConfigError, InputError, WorkflowError
from support.later import ppo, torch

ORDER = ("op_server", "enterprise", "user", "defender", "op_host")


@pytest.fixture(autouse=True)
def one_thread():
    """As the trainer has it: batches are too small for more."""
    torch.set_num_threads(1)


def agent_and_envs(n_envs=4, max_steps=6, **settings):
    agent = ppo.ParallelOrderConditionedPPO(n_envs=n_envs, workflow_order=ORDER, seed=3, **settings)
    return agent, ParallelEnvWrapper(n_envs, max_steps=max_steps, simulator="embedded", workers=0)


def play(agent, envs, steps, states=None, truncated=True, failing=()):
    """Play some steps and record them; actions, rewards, infos and ended episodes of each, and what is seen now."""
    states, rows = envs.reset() if states is None else states, []
    for _ in range(steps):
        chosen = agent.get_actions(states)
        states, rewards, dones, infos = envs.step(chosen)
        for env_id in np.flatnonzero(dones):
            infos[env_id] |= {"truncated": truncated, **({"env_error": "it failed"} if env_id in failing else {})}
        rows.append((np.asarray(chosen), rewards, infos, agent.record(chosen, rewards, dones, infos)))
    return rows, states


def test_the_networks_are_as_they_were_described_and_see_the_workflow():
    policy = ppo.ParallelOrderConditionedPPO().policy
    for network, out in ((policy.actor, 145), (policy.critic, 1)):
        shapes = [tuple(layer.weight.shape) for layer in network if isinstance(layer, torch.nn.Linear)]
        assert shapes == [(64, 77), (64, 64), (out, 64)]
    agents = [ppo.ParallelOrderConditionedPPO(workflow_order=order, seed=1) for order in (ORDER, ORDER[::-1])]
    assert not np.allclose(*(agent.values_of(np.ones((25, 52), np.float32)) for agent in agents))


@pytest.mark.parametrize("failing", [(), (1, 3)], ids=["all", "some fail"])
def test_an_update_is_that_of_the_definition_without_episodes_that_failed(failing):
    agent, envs = agent_and_envs(K_epochs=3)
    _, states = play(agent, envs, 12, failing=failing)
    batch, returns = agent.buffer.get_trajectories(), agent.buffer.compute_returns(0.99, agent.values_of(states))
    valid = np.tile([env_id not in failing for env_id in range(4)], 12)
    policy, returns = copy.deepcopy(agent.policy), returns[valid]
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.002, betas=(0.9, 0.99))
    code = np.tile(WorkflowManager().order_to_onehot(ORDER), (len(returns), 1))
    inputs = torch.from_numpy(np.hstack((batch["states"][valid], code)))
    targets = torch.tensor((returns - returns.mean()) / returns.std(), dtype=torch.float32)
    actions, before = (torch.from_numpy(batch[name][valid]) for name in ("actions", "log_probs"))
    for _ in range(3):
        logs, values = torch.distributions.Categorical(logits=policy.actor(inputs)), policy.critic(inputs).squeeze(-1)
        ratio, gain = (logs.log_prob(actions) - before).exp(), (targets - values).detach()
        surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        optimizer.zero_grad()
        (-surrogate + 0.5 * ((values - targets) ** 2).mean() - 0.01 * logs.entropy().mean()).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
    agent.update(states)
    for one, other in zip(policy.parameters(), agent.policy.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    assert len(agent.buffer) == 0


@pytest.mark.parametrize("truncated", [True, False])
def test_an_episode_that_is_cut_is_worth_what_the_critic_says_and_one_that_ends_is_not(truncated):
    agent, envs = agent_and_envs(max_steps=5, alignment_alpha=0, alignment_beta=0)
    agent.return_mean, agent.return_std = -50.0, 4.0
    rows, states = play(agent, envs, 8, truncated=truncated)
    found, after = agent.buffer.compute_returns(0.99, agent.values_of(states)).reshape(8, 4), agent.values_of(states)
    rest = agent.values_of(np.stack([info["final_observation"] for info in rows[4][2]])) * truncated
    assert found[4] == pytest.approx(rows[4][1] + 0.99 * rest)
    assert found[7] == pytest.approx(rows[7][1] + 0.99 * after)  # the batch ends in mid-episode


def test_what_is_paid_for_the_workflow_is_in_the_step_that_did_it_and_comes_once():
    # The seed paid a hundredth of the present value in every step, and at the end nothing.
    agent, envs = agent_and_envs(max_steps=50, alignment_alpha=30, alignment_beta=0)
    rows, _ = play(agent, envs, 50)
    actions, rewards, _, ended = (list(column) for column in zip(*rows, strict=True))
    paid = agent.buffer.get_trajectories()["rewards"].reshape(50, 4) - np.array(rewards)
    is_fix = ((np.array(actions) >= 15) & (np.array(actions) < 28)) | (np.array(actions) >= 132)
    assert is_fix.any(0).all() and paid[~is_fix] == pytest.approx(0)
    assert paid.sum(0) == pytest.approx([30 * rate for rate, _ in ended[-1]])
    assert [fixes for _, fixes in ended[-1]] == is_fix.sum(0).tolist()


def test_it_learns_what_pays_and_to_keep_to_its_order():
    agent, envs = agent_and_envs(n_envs=16, max_steps=50, update_steps=50, lr=0.01, alignment_alpha=30, K_epochs=8)
    states, returns, rates = None, [], []
    for _ in range(20):
        rows, states = play(agent, envs, 50, states)
        returns.append(np.sum([row[1] for row in rows]) / 16)
        rates.append(np.mean([each[0] for each in rows[-1][3]]))
        assert agent.should_update
        agent.update(states)
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 50 and np.mean(rates[-3:]) > np.mean(rates[:3]) + 0.15


def test_the_loop_as_it_is_written_down_learns_from_the_states_in_which_actions_were_chosen():
    agent, envs = ppo.ParallelOrderConditionedPPO(n_envs=4), ParallelEnvWrapper(n_envs=4)
    buffer, seen, observations = ParallelTrajectoryBuffer(n_envs=4), [], envs.reset()
    for _ in range(20):
        seen.append(observations)
        actions = agent.get_actions(observations)
        observations, rewards, _, _ = envs.step(actions)
        buffer.add(observations, actions, rewards)
    batch, before = buffer.get_trajectories(), copy.deepcopy(agent.policy.state_dict())
    assert (batch["states"] == np.concatenate(seen)).all() and batch["log_probs"] is not None
    assert set(agent.update()) == {"policy_loss", "value_loss", "entropy"}
    assert not all(torch.equal(before[name], value) for name, value in agent.policy.state_dict().items())
    assert len(buffer) == 0
    envs.close()


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError):
        ppo.ParallelOrderConditionedPPO(n_envs=0)
    with pytest.raises(WorkflowError):
        ppo.ParallelOrderConditionedPPO(workflow_order=ORDER[:3])
    with pytest.raises(InputError):
        agent_and_envs()[0].get_actions(np.zeros((3, 52)))
