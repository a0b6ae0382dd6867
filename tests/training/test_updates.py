"""Updates: gradients and advantages against independent computations, and the warm-up."""

from random import Random

import pytest

from ragen.config.loading import as_config
from ragen.config.schema import TinyModel, WarmUp
from ragen.training.trajectories import Group, TokenRow, Trajectory
from support.later import shipped, torch, training
from support.small_training import small_config


def config(by_std=True, **actor):
    algorithm = {"norm_adv_by_std_in_grpo": by_std}
    return as_config({"algorithm": algorithm, "actor_rollout_ref": {"actor": actor}})


SIZE = TinyModel(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
SCORES = ([1.0, 0.0, 0.0], [0.1, 0.1, 0.9])


def some_row(rng):
    prompt, reply = rng.randint(3, 9), rng.randint(2, 5)
    ids = [rng.randrange(10, 500) for _ in range(prompt + reply)]
    return TokenRow(ids, [0] * prompt + [1] * reply)


def some_groups():
    rng = Random(0)
    return [
        Group(str(place), [Trajectory(0, "Tag", score, score, [some_row(rng)]) for score in scores])
        for place, scores in enumerate(SCORES)
    ]


def some_batch():
    return training.training_batch(some_groups(), shipped().pad_token_id)


def a_model(seed=0):
    return training.build_model(SIZE, shipped(), seed)


def rows_that_share_prompts():
    """Three rows of one prompt, one of two turns among them, and two of others; the last chose nothing."""
    ids = [Random(1).sample(range(10, 500), 40) for _ in range(3)]
    return [
        TokenRow([*ids[0][:9], 11, 12], [0] * 9 + [1, 1]),
        TokenRow([*ids[0][:9], 13, 14, *ids[2][:7], 15], [0] * 9 + [1, 1] + [0] * 7 + [1]),
        TokenRow([*ids[0][:9], 13], [0] * 9 + [1]),
        TokenRow([ids[1][0], 16, 17], [0, 1, 1]),
        TokenRow(ids[1][5:9], [0] * 4),
    ]


def test_log_probabilities_entropies_and_gradients_are_those_of_whole_rows_where_prompts_are_shared():
    rows = rows_that_share_prompts()
    model, plain = a_model(), a_model()
    found, entropies = training.log_probs_and_entropies(model, training.batch_of_rows(rows, 0), temperature=0.7)
    found.sum().backward()
    total = torch.zeros(())
    for row, said, spread in zip(rows, found, entropies, strict=True):
        scores = torch.log_softmax(plain(torch.tensor([row.ids])).logits[0] / 0.7, -1)
        places = [place for place, chosen in enumerate(row.mask) if chosen]
        own = sum((scores[place - 1, row.ids[place]] for place in places), torch.zeros(()))
        torch.testing.assert_close(said.sum(), own, atol=1e-4, rtol=0)
        own_spread = -(scores.exp() * scores).sum(-1)[[place - 1 for place in places]].sum()
        torch.testing.assert_close(spread.sum(), own_spread, atol=1e-4, rtol=0)
        total = total + own
    total.backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-3)


def test_thoughts_are_scored_after_every_prompt():
    model, prompts, thoughts = a_model(), [[5, 6, 7], [9], [11, 12, 13]], [[3], [4, 5, 6, 7]]
    found = training.Learner(model, config(ppo_max_token_len_per_gpu=12)).scores_of_thoughts(prompts, thoughts)
    for place, prompt in enumerate(prompts):
        rows = [TokenRow([*prompt, *thought], [0] * len(prompt) + [1] * len(thought)) for thought in thoughts]
        alone, _ = training.log_probs_and_entropies(model, training.batch_of_rows(rows, 0))
        assert found[:, place] == pytest.approx(alone.sum(-1).tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("by_std", "expected"),
    [
        (False, [2 / 3, -1 / 3, -1 / 3, -4 / 15, -4 / 15, 8 / 15]),
        (True, [1.1547, -0.57735, -0.57735, -0.57735, -0.57735, 1.1547]),
    ],
)
def test_each_score_is_compared_with_those_of_its_group(by_std, expected):
    batch = some_batch()
    before = batch.scores.clone()
    advantages = training.advantages_of(batch, by_std)
    torch.testing.assert_close(advantages, torch.tensor(expected)[:, None] * batch.response_mask, atol=1e-3, rtol=0)
    assert torch.equal(batch.scores, before)


def test_a_trajectory_of_several_rows_is_compared_once_and_all_its_rows_get_what_it_earned():
    groups = some_groups()
    whole = training.advantages_of(training.training_batch(groups, 0), True)
    groups[0].members[0].rows.append(some_row(Random(1)))
    split = training.training_batch(groups, 0)
    advantages = training.advantages_of(split, True)
    expected = whole.amax(-1) + whole.amin(-1)
    found = advantages.amax(-1) + advantages.amin(-1)
    torch.testing.assert_close(found, torch.cat([expected[:1], expected]))
    assert torch.equal(advantages != 0, (found[:, None] * split.response_mask) != 0)


def test_the_first_gradient_of_grpo_is_that_of_advantage_times_log_probability():
    model, batch = a_model(), some_batch()
    found = training.Learner(model, config(False, grad_clip=1e9)).update(batch, 0)["actor/grad_norm"]
    plain = a_model()
    log_probs, _ = training.log_probs_and_entropies(plain, batch)
    advantages = training.advantages_of(batch, False)
    (-(advantages * log_probs).sum() / batch.response_mask.sum()).backward()
    expected = torch.stack([parameter.grad.norm() for parameter in plain.parameters()]).norm()
    assert found == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_the_size_of_micro_batches_changes_nothing(aggregation):
    found = []
    for max_tokens in (1, 10_000):
        model = a_model()
        keys = {"loss_agg_mode": aggregation, "ppo_max_token_len_per_gpu": max_tokens, "entropy_coeff": 0.01}
        metrics = training.Learner(model, config(**keys)).update(some_batch(), 0)
        found.append((metrics, model.get_input_embeddings().weight.detach().clone()))
    (one, first), (other, second) = found
    assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(first, second, atol=2e-6, rtol=0)


# The warm-up


def test_demonstrations_are_many_groups_of_one_split_as_the_training_groups_are(tmp_path):
    given = ["es_manager.train.env_configs.n_groups=[3,1]", "es_manager.train.env_groups=4"]
    others = "+of_another_program.value='${is.nowhere}'"
    config = training.demonstration_config(small_config(tmp_path, *given, others), WarmUp(groups=8))
    section = config.es_manager.train
    assert (list(section.env_configs.n_groups), section.env_groups, section.group_size) == ([6, 2], 8, 1)


def test_demonstrations_are_good_replies_and_what_is_learnt_of_them_are_the_replies_alone(tmp_path):
    settings = WarmUp(groups=8, steps=20, batch_size=4, lr=0.03, random=0.0, malformed=0.0)
    rows = training.demonstrations(small_config(tmp_path), shipped(), settings)
    texts = [shipped().decode([one for one, said in zip(row.ids, row.mask, strict=True) if said]) for row in rows]
    assert len(rows) == 8
    assert all(text.startswith("<think>") and text.endswith("</answer><|im_end|>") for text in texts)
