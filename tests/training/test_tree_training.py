"""What is learnt of trees: every turn once, against its siblings; and a run that trains with them."""

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.rollout.actor import BackendActor
from ragen.llm_agent.tokens.training_rows import total_reward
from ragen.llm_agent.trees.lineage import Forest, segment_advantages
from ragen.training.settings import TrainerSettings
from ragen.training.trajectories import all_members
from support.later import shipped, torch, training
from support.recording_backend import TEXTS, RecordingBackend
from support.rollouts import no_prompts
from support.small_training import metrics_of, small_config

TREES = ("agent_proxy.branching.when=every_turn", "agent_proxy.branching.width=3", "agent_proxy.max_turn=3")
SAID = [f"so</think><answer>{said}</answer>" for said in ("Phoenix", "Dragon", "Right", "Down", "Left || Down")]


@pytest.fixture(scope="module", params=[("sampled", "tree"), ("text", "grpo")], ids="-".join)
def rollout(request, tmp_path_factory):
    """A backend that writes anything, in tokens of its own choice: rows are split, replies malformed and cut off."""
    folder = tmp_path_factory.mktemp("run")
    tokens, advantages = request.param
    kinds = (f"agent_proxy.training_tokens={tokens}", f"agent_proxy.branching.advantages={advantages}")
    config = small_config(folder, *TREES, *kinds)
    backend = RecordingBackend(shipped(), texts=(*TEXTS[2:4], *SAID))
    with LLMAgentProxy(config, BackendActor(backend, config, shipped()), shipped()) as proxy:
        batch = proxy.rollout(no_prompts())
        yield tokens, backend, proxy.rollout_states, batch


def test_every_reply_is_learnt_in_one_row_and_masked_in_all_others(rollout):
    kind, backend, states, batch = rollout
    forest = Forest.of(states)
    assert forest.has_branches and batch.batch["response_mask"].sum() > batch.batch["loss_mask"].sum()
    assert bool((batch.batch["response_mask"] >= batch.batch["loss_mask"]).all())
    learnt = {}
    for row, env_id in enumerate(batch.non_tensor_batch["env_ids"]):
        mask = batch.batch["loss_mask"][row].bool()
        learnt.setdefault(env_id, []).extend(batch.batch["responses"][row][mask].tolist())
    if kind == "sampled":
        own = {env_id: [] for env_id in learnt}
        for (env_id, _), (_, reply) in sorted(backend.asked.items(), key=lambda asked: asked[0]):
            own[env_id] += reply.token_ids
        assert learnt == own
    counts = {env_id: node.played - node.turn for env_id, node in forest.nodes.items()}
    assert sum(counts.values()) == len(backend.asked)
    lineage = {env_id: (node.parent, node.turn) for env_id, node in forest.nodes.items()}
    columns = batch.non_tensor_batch
    for env_id, parent, turn in zip(columns["env_ids"], columns["parents"], columns["shared_turns"], strict=True):
        assert lineage[env_id] == (None if parent == -1 else parent, turn)


def test_every_token_has_the_advantage_of_its_segment(rollout):
    tokens, _, states, batch = rollout
    if tokens == "text":
        assert "advantages" not in set(batch.batch.keys()), "with plain GRPO a trainer makes them of rm_scores"
        return
    forest = Forest.of(states)
    scores = {state["env_id"]: total_reward(state) + state["penalty"] for state in states}
    found = segment_advantages(forest, scores, by_std=False)
    assert len(set(found.values())) > 3
    advantages, mask = batch.batch["advantages"], batch.batch["loss_mask"].bool()
    assert not advantages[~mask].any()
    for row, env_id in enumerate(batch.non_tensor_batch["env_ids"]):
        own = {round(found[each], 4) for each in forest.segments if each.env_id == env_id and each in found}
        assert {round(value, 4) for value in advantages[row][mask[row]].tolist()} <= own | {0.0}


def test_a_batch_tells_what_trees_cost_beside_chains(rollout):
    _, backend, states, batch = rollout
    metrics = batch.meta_info["metrics"]
    replies = [reply for _, reply in backend.asked.values()]
    forest = Forest.of(states)
    assert metrics["tree/trees"] == 4 and metrics["tree/leaves"] == len(states) and metrics["tree/points"] > 4
    assert metrics["tree/turns"] == len(replies) < metrics["tree/chain_turns"]
    assert metrics["tree/response_tokens"] == sum(len(reply.token_ids) for reply in replies)
    prompts = {forest.point(*whose): len(request.prompt_ids) for whose, (request, _) in backend.asked.items()}
    assert metrics["tree/prompt_tokens"] == sum(prompts.values()) < metrics["tree/chain_prompt_tokens"]


def player_of(config):
    model = training.build_model(TrainerSettings.read(config).model, shipped(), seed=0)
    return training.Player(config, model, shipped(), seed=0)


def test_the_trainers_log_probabilities_are_those_that_trees_were_drawn_with(tmp_path):
    with player_of(small_config(tmp_path, *TREES, "agent_proxy.branching.max_leaves=3")) as player:
        result = player.play()
        batch = training.training_batch(result.groups, shipped().pad_token_id)
        with torch.no_grad():
            found, _ = training.log_probs_and_entropies(player.backend.model, batch)
        drawn = [
            value
            for state in player.proxy.rollout_states
            for turn in state["history"][state.get("turn", 0) : -1]
            for value in turn["llm_raw_response"].exchange.log_probs
        ]
    chosen = found[batch.response_mask.bool()]
    assert len(chosen) == len(drawn)
    torch.testing.assert_close(chosen.sort().values, torch.tensor(drawn).sort().values, atol=2e-5, rtol=0)
    weights = [member.weight for member in all_members(result.groups)]
    assert sum(weights) == pytest.approx(4) and len(weights) > 4
    assert "advantages" in batch.columns


def test_it_branches_after_the_replies_that_the_model_was_least_sure_of(tmp_path):
    """First without branches, to know of what the model is how sure; the same first replies are drawn again then."""

    def played(threshold):
        when = f"{{when: entropy, threshold: {threshold}, max_leaves: 8}}"
        with player_of(small_config(tmp_path, f"agent_proxy.branching={when}", "agent_proxy.max_turn=3")) as player:
            return player.proxy.play({})

    def surprise(state, turn):
        log_probs = state["history"][turn - 1]["llm_raw_response"].exchange.log_probs
        return -sum(log_probs) / len(log_probs)

    chains = played(1e6)
    assert not Forest.of(chains).has_branches
    first = {state["env_id"]: surprise(state, 1) for state in chains if len(state["history"]) > 2}
    threshold = sorted(first.values())[len(first) // 2]
    forest = Forest.of(states := played(threshold))
    split = {env_id for env_id, turn in forest.points if turn == 1}
    assert split == {env_id for env_id, value in first.items() if value >= threshold} != set(first)
    for state in states:
        for turn in range(max(state.get("turn", 0), 1), len(state["history"]) - 1):
            is_split = forest.point(state["env_id"], turn) in forest.points
            assert is_split == (surprise(state, turn) >= threshold)


def test_a_run_trains_with_trees(tmp_path):
    keys = "agent_proxy.branching.when=after_turn"
    assert training.train(small_config(tmp_path, keys, steps=1), quiet=True).finished
    *_, before, last = metrics_of(tmp_path)
    assert last["tree/leaves"] > last["tree/trees"] == 4 and last["actor/grad_norm"] > 0
    assert before["step"] == 0 and "tree/leaves" not in before, "validation is in chains"
    with pytest.raises(ConfigError, match=r"branching.width was 2 and is 3"):
        training.train(small_config(tmp_path, keys, "agent_proxy.branching.width=3"), quiet=True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm.adv_estimator=gae"], "'gae' with agent_proxy.branching.advantages: tree; expected 'grpo'"),
        (["algorithm.adv_estimator=rloo"], "'rloo' with"),
        (["trainer.reward_sign=-1"], "'trainer.reward_sign' is -1"),
    ],
)
def test_what_cannot_be_learnt_of_trees_is_refused(tmp_path, overrides, said):
    with pytest.raises(ConfigError, match=said):
        player_of(small_config(tmp_path, *TREES, *overrides))
