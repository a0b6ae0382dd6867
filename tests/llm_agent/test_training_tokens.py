"""Training batches against what a recording backend really got and gave, token by token, and against texts.

The reference walks through the exchanges one by one and knows nothing of the code: a row is a list of single tokens,
each with whether it was drawn, its log-probability and its scores.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Reply
from ragen.llm_agent.tokenizer import load_tokenizer
from support.chat_templates import FAMILIES
from support.recording_backend import RecordingBackend
from support.rollouts import no_prompts

ENVS = 6
FULL, LIMITED, SINGLE = "full", "limited_multi_turn", "single_turn"


def config_of(rollout=None, **agent_proxy):
    section = {
        "env_groups": 3,
        "group_size": 2,
        "env_configs": {"tags": ["Counter", "Echo"], "n_groups": [2, 1]},
    }
    return {
        "seed": {"train": 5},
        "agent_proxy": {
            "max_turn": 4,
            "max_actions_per_turn": 3,
            "action_sep": "||",
            "training_tokens": "sampled",
            **agent_proxy,
        },
        "es_manager": {"train": section, "val": section, "use_multiprocessing": False},
        "custom_envs": {
            "Counter": {"env_type": "support.toy_envs:Counter", "max_actions_per_traj": 9, "env_config": {"goal": 7}},
            "Echo": {"env_type": "support.toy_envs:Echo", "max_actions_per_traj": 9},
        },
        "actor_rollout_ref": {"rollout": rollout or {}},
    }


def played(backend, config):
    """A rollout's batch and its final states."""
    with LLMAgentProxy(config, backend, backend.tokenizer) as proxy:
        batch = proxy.rollout(no_prompts())
        return batch, proxy.rollout_states


# ------------------------------------------------------------------------------------------------------- the reference


@dataclass
class Token:
    token: int
    drawn: int = 0
    log_prob: float = 0.0
    score: float = 0.0
    original: float = 0.0


def prompt_tokens(ids):
    return [Token(token) for token in ids]


def drawn_tokens(reply):
    return [Token(token, 1, log_prob) for token, log_prob in zip(reply.token_ids, reply.log_probs, strict=True)]


def goes_on(row, prompt_ids):
    return len(prompt_ids) >= len(row) and all(
        mine.token == theirs for mine, theirs in zip(row, prompt_ids, strict=False)
    )


def expected_rows(exchanges, rewards, penalty, one_row, by_turn):
    """A trajectory's rows, each a list of tokens."""
    rows, ends = [], []
    for request, reply in exchanges:
        prompt_ids = list(request.prompt_ids)
        if one_row and rows and goes_on(rows[-1], prompt_ids):
            rows[-1] += prompt_tokens(prompt_ids[len(rows[-1]) :])
        else:
            rows.append(prompt_tokens(prompt_ids))
        rows[-1] += drawn_tokens(reply)
        ends.append(rows[-1][-1])
    if by_turn:
        for end, reward in zip(ends, rewards, strict=True):
            end.score += reward
            end.original += reward
        last_drawn(rows[-1]).score += penalty
    else:
        for row in rows:
            last_drawn(row).score += sum(rewards) + penalty
            last_drawn(row).original += sum(rewards)
    return rows


def last_drawn(row):
    return next((token for token in reversed(row) if token.drawn), row[-1])


def check_row(batch, place, row, pad):
    """One row of a batch against single tokens, padding included."""
    tensors = {name: batch.batch[name][place].tolist() for name in batch.batch.keys()}  # noqa: SIM118
    left = len(tensors["input_ids"]) - len(row)
    assert tensors["input_ids"] == [pad] * left + [token.token for token in row]
    assert tensors["attention_mask"] == [0] * left + [1] * len(row)
    assert tensors["position_ids"] == [0] * left + list(range(len(row)))
    assert tensors["responses"] == tensors["input_ids"][1:]
    aligned = [Token(pad)] * left + row
    for name in ("response_mask", "loss_mask"):
        assert tensors[name] == [token.drawn for token in aligned[1:]], name
    for name, values in {
        "rollout_log_probs": [token.log_prob for token in aligned],
        "rm_scores": [token.score for token in aligned],
        "original_rm_scores": [token.original for token in aligned],
    }.items():
        assert_close(tensors[name], values[1:], name)


def assert_close(found, expected, name=""):
    """As ``pytest.approx`` with ``abs=1e-6``, which takes many times longer for rows of thousands of numbers."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, equal_nan=False, err_msg=name)


def check_batch(backend, batch, states, mode=FULL, by_turn=False):
    expected = []
    for state in states:
        rewards = [turn["reward"] for turn in state["history"] if "reward" in turn]
        rows = expected_rows(backend.turns(state["env_id"]), rewards, state["penalty"], mode == FULL, by_turn)
        expected += [(state, row) for row in rows]
    assert batch.non_tensor_batch["env_ids"].tolist() == [state["env_id"] for state, _ in expected]
    assert batch.non_tensor_batch["group_ids"].tolist() == [state["group_id"] for state, _ in expected]
    assert batch.non_tensor_batch["episode_ids"].tolist() == [state["env_id"] for state, _ in expected]
    assert len(batch) == len(expected)
    for place, (_, row) in enumerate(expected):
        check_row(batch, place, row, backend.tokenizer.pad_token_id)
    drawn = sum(len(reply.token_ids) for _, reply in backend.asked.values())
    assert int(batch.batch["response_mask"].sum()) == drawn  # every token that was drawn is learnt once
    return expected


# ------------------------------------------------------------------------------------------------------ in every token


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=[family.name for family in FAMILIES])
def test_a_batch_is_what_was_seen_and_drawn_for_every_template(number):
    family, think, by_turn = FAMILIES[number], number % 2 == 1, number // 2 % 2 == 1
    backend = RecordingBackend(family.tokenizer(), seed=int(by_turn))
    batch, states = played(backend, config_of(enable_think=think, use_turn_scores=by_turn))
    check_batch(backend, batch, states, by_turn=by_turn)
    assert max(len(state["history"]) for state in states) > 2


@pytest.mark.parametrize("by_turn", [False, True], ids=["trajectory", "turn"])
@pytest.mark.parametrize("window", [-1, 1, 2])
@pytest.mark.parametrize("mode", [FULL, LIMITED, SINGLE])
def test_a_batch_is_what_was_seen_and_drawn_in_every_window(mode, window, by_turn):
    backend = RecordingBackend(load_tokenizer(), seed=int(by_turn))
    settings = {"context_window_mode": mode, "max_context_window": window, "use_turn_scores": by_turn}
    batch, states = played(backend, config_of(**settings))
    expected = check_batch(backend, batch, states, mode, by_turn)
    if mode != FULL:
        assert len(expected) == len(backend.asked)


def test_a_batch_is_what_was_seen_and_drawn_where_contexts_are_shortened():
    rollout = {"max_model_len": 700, "response_length": 100}
    backend = RecordingBackend(load_tokenizer(), 1)
    batch, states = played(backend, config_of(rollout))
    check_batch(backend, batch, states)
    assert max(len(request.prompt_ids) for request, _ in backend.asked.values()) <= 600


def test_without_the_response_mask_states_are_learnt_too_in_the_tokens_that_were_seen():
    backend = RecordingBackend(load_tokenizer(), 1)
    batch, _ = played(backend, {**config_of(), "enable_response_mask": False})
    for row in range(len(batch)):
        loss, drawn = batch.batch["loss_mask"][row].bool(), batch.batch["response_mask"][row].bool()
        assert (loss | drawn).equal(loss) and int(loss.sum()) > int(drawn.sum())


def test_a_trajectory_whose_first_prompt_got_no_reply_is_a_row_without_loss_among_the_others():
    backend = RecordingBackend(load_tokenizer(), fails={(1, 0), (2, 1)})
    batch, states = played(backend, config_of())
    assert [len(state["history"]) for state in states][1:3] == [1, 2]
    ids = batch.non_tensor_batch["env_ids"].tolist()
    assert ids == sorted(ids) and ids.count(1) == 1
    assert batch.batch["response_mask"][ids.index(1)].sum() == 0
    learnt = batch.batch["responses"][ids.index(2)][batch.batch["response_mask"][ids.index(2)].bool()]
    assert learnt.tolist() == backend.asked[2, 0][1].token_ids
    assert "rollout_log_probs" in batch.batch.keys()  # noqa: SIM118


def test_log_probabilities_that_are_not_all_known_are_left_out():
    backend = RecordingBackend(load_tokenizer())
    reply = backend._reply
    backend._reply = lambda request: Reply(
        (found := reply(request)).text, found.token_ids, found.log_probs if request.env_id else None
    )
    batch, _ = played(backend, config_of())
    assert "rollout_log_probs" not in batch.batch.keys()  # noqa: SIM118
    assert int(batch.batch["response_mask"].sum()) == sum(len(reply.token_ids) for _, reply in backend.asked.values())


def test_with_training_tokens_text_a_trajectory_is_one_row_with_whole_replies_as_they_are_shown():
    backend = RecordingBackend(load_tokenizer(), 1)
    batch, states = played(backend, config_of(training_tokens="text"))
    assert batch.non_tensor_batch["env_ids"].tolist() == list(range(ENVS))
    for row, state in enumerate(states):
        learnt = backend.tokenizer.decode(batch.batch["responses"][row][batch.batch["loss_mask"][row].bool()])
        assert learnt == "".join(f"{turn['llm_response'].strip()}<|im_end|>" for turn in state["history"][:-1])


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=[family.name for family in FAMILIES])
def test_without_tokens_a_trajectory_is_one_row_of_text(number):
    tokenizer = FAMILIES[number].tokenizer()
    batches = []
    for training_tokens in ("sampled", "text"):
        backend = RecordingBackend(tokenizer, 4, tells_tokens=False)
        batches.append(played(backend, config_of(training_tokens=training_tokens))[0])
    sampled, text = batches
    assert len(sampled) == ENVS and "rollout_log_probs" not in sampled.batch.keys()  # noqa: SIM118
    assert all(sampled.batch[name].equal(text.batch[name]) for name in text.batch.keys())  # noqa: SIM118
