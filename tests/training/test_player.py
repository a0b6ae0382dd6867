"""What the tiny model really plays, and what of it is trained on."""

import pytest

from ragen.config.loading import as_config
from ragen.errors import ConfigError
from ragen.llm_agent.backends import Reply
from ragen.training.settings import check_training
from ragen.training.trajectories import all_members
from support.later import shipped, torch, training
from support.small_training import small_config


def player_of(config):
    model = training.build_model(as_config(config).tiny_model, shipped(), seed=0)
    return training.Player(config, model, shipped())


def recorded(player):
    """Environment id to its replies, in order; filled as the player plays."""
    replies, generate = {}, player.backend.generate

    def recording(requests, sampling):
        found = generate(requests, sampling)
        for request, reply in zip(requests, found, strict=True):
            replies.setdefault(request.env_id, []).append(reply)
        return found

    player.backend.generate = recording
    return replies


@pytest.fixture(scope="module", params=[False, True], ids=["trajectory", "turn"])
def played(request, tmp_path_factory):
    """A rollout of a model with random weights, which writes everything but well-formed replies."""
    by_turn = f"agent_proxy.use_turn_scores={request.param}"
    with player_of(small_config(tmp_path_factory.mktemp("run"), by_turn)) as player:
        replies = recorded(player)
        yield player, player.play(), replies


def test_the_rollouts_and_the_trainers_log_probabilities_are_equal(played):
    player, result, replies = played
    batch = training.training_batch(result.groups, shipped().pad_token_id)
    with torch.no_grad():
        found, _ = training.log_probs_and_entropies(player.backend.model, batch)
    rows = iter(range(len(batch)))
    for member in all_members(result.groups):
        chosen = [found[row][batch.response_mask[row].bool()] for row in (next(rows) for _ in member.rows)]
        drawn = torch.tensor([value for reply in replies[member.env_id] for value in reply.log_probs])
        torch.testing.assert_close(torch.cat(chosen), drawn, atol=2e-5, rtol=0)


def test_text_that_is_shown_otherwise_than_it_was_sampled_is_trained_on_as_sampled_in_several_rows(played):
    _, result, replies = played
    members = all_members(result.groups)
    assert result.metrics["split_trajectories"] == sum(len(member.rows) > 1 for member in members) / len(members) > 0
    for member in members:
        chosen = [token for row in member.rows for token, drawn in zip(row.ids, row.mask, strict=True) if drawn]
        assert chosen == [token for reply in replies[member.env_id] for token in reply.token_ids]


def assert_scores(player, result):
    """Reward and score of every trajectory are what its history says; which of these occur."""
    states = {state["env_id"]: state for state in player.proxy.rollout_states}
    seen = set()
    for member in all_members(result.groups):
        state = states[member.env_id]
        earned = sum(turn.get("reward", 0.0) for turn in state["history"])
        assert member.reward == pytest.approx(player.sign * earned)
        assert member.score == pytest.approx(player.sign * earned + state["penalty"])
        seen |= {"reward"} if earned else set()
        seen |= {"penalty"} if state["penalty"] else set()
    return seen


def test_a_trajectory_in_several_rows_is_scored_once(played):
    player, result, _ = played
    assert assert_scores(player, result) >= {"penalty"}


@pytest.mark.parametrize("sign", [1, -1])
def test_the_sign_turns_rewards_around_and_not_penalties(tmp_path, sign):
    text = "The safe one.</think><answer>Phoenix</answer>"  # a lake knows no such move
    ids = shipped().encode(text + shipped().eos_token)
    with player_of(small_config(tmp_path, f"trainer.reward_sign={sign}")) as player:
        player.backend.generate = lambda requests, sampling: [Reply(text, ids, [0.0] * len(ids)) for _ in requests]
        result = player.play()
        assert assert_scores(player, result) == {"reward", "penalty"}
    assert result.metrics["split_trajectories"] == 0
    assert all(len(member.rows) == 1 for member in all_members(result.groups))


def test_a_trajectory_that_got_no_reply_is_a_member_of_its_group_without_rows(tmp_path):
    with player_of(small_config(tmp_path)) as player:
        generate = player.backend.generate
        player.backend.generate = lambda requests, sampling: [
            Reply("", error="out of order") if request.env_id == 1 else reply
            for request, reply in zip(requests, generate(requests, sampling), strict=True)
        ]
        result = player.play()
    assert [bool(member.rows) for member in all_members(result.groups)] == [True, False, True, True]
    assert {len(group.members) for group in result.groups} == {2}


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("agent_proxy.reward_normalization.method=mean trainer.reward_sign=-1", "reward_normalization.method"),
        ("+agent_proxy.context_window_mode=single_turn", "agent_proxy.context_window_mode"),
        ("+enable_response_mask=false", "enable_response_mask"),
        ("agent_proxy.training_tokens=text", "agent_proxy.training_tokens"),
        ("+algorithm.adv_estimator=gae", "algorithm.adv_estimator"),
        ("actor_rollout_ref.rollout.top_k=5", "actor_rollout_ref.rollout.top_k"),
        ("actor_rollout_ref.rollout.temperature=0", "actor_rollout_ref.rollout.temperature"),
        ("actor_rollout_ref.rollout.do_sample=false", "actor_rollout_ref.rollout.do_sample"),
        ("+algorithm.bi_level_gae=true", "algorithm.bi_level_gae"),
        ("+actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_rank"),
        ("+actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.use_kl_loss"),
        ("report=true", "report"),
        ("trainer.logger=[wandb]", "trainer.logger"),
        ("trainer.resume_mode=perhaps", "trainer.resume_mode"),
        ("tiny_model.hidden_size=18", "tiny_model.hidden_size"),
        ("tiny_model.rope_theta=0.5", "tiny_model.rope_theta"),
        ("warm_up.random=1.5", "warm_up.random"),
        ("trainer.total_training_steps=-1", "trainer.total_training_steps"),
    ],
)
def test_a_configuration_that_cannot_be_trained_is_refused(tmp_path, override, named):
    with pytest.raises(ConfigError, match=named):
        check_training(small_config(tmp_path, *override.split()))
