"""Prompts, replies, training batches: what the context manager makes of environments' histories."""

import copy
import subprocess
import sys
from types import MethodType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ragen.env import REGISTERED_ENV_CONFIGS
from ragen.errors import ConfigError, InputError, UnknownEnvError
from ragen.llm_agent.batches.dataproto import object_array
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.prompts.replies import ControlTokens, ReplyParser
from ragen.llm_agent.tokenizer import load_tokenizer
from support.chat_templates import FAMILIES

WALK = {
    "env_type": "support.configured_envs:Walk",
    "env_instruction": "Walk home.",
    "max_actions_per_traj": 10,
    "max_tokens": 50,
}


def config(agent_proxy=None, tags=("Walk",), n_groups=(2,), group_size=2, custom_envs=None, rollout=None, **rest):
    section = {
        "env_groups": sum(n_groups),
        "group_size": group_size,
        "env_configs": {"tags": list(tags), "n_groups": list(n_groups)},
    }
    return {
        "agent_proxy": {"max_actions_per_turn": 2, **(agent_proxy or {})},
        "es_manager": {"train": section, "val": section},
        "custom_envs": {"Walk": WALK, "Riddle": {"env_type": "support.configured_envs:Riddle"}, **(custom_envs or {})},
        "actor_rollout_ref": {"rollout": rollout or {}},
        **rest,
    }


def manager(tokenizer=None, processor=None, mode="train", **keys):
    return ContextManager(config(**keys), tokenizer or load_tokenizer(), processor, mode=mode)


def turn(number, reply=None, reward=0.5):
    return {
        "state": f"##{number}#\n#P_#",
        "actions_left": 10 - number,
        "actions": [1],
        "reward": reward,
        "info": {},
        "llm_response": f"<think>t{number}</think><answer>Up</answer>" if reply is None else reply,
        "llm_raw_response": "raw",
    }


def rollout(env_id=0, turns=2, rewards=None, replies=None, **keys):
    rewards = rewards or [0.5] * turns
    replies = replies or [None] * turns
    history = [turn(number, replies[number - 1], rewards[number - 1]) for number in range(1, turns + 1)]
    opened = {"state": "##end#\n#_P#", "actions_left": 10 - turns}
    return {
        "env_id": env_id,
        "group_id": env_id // 2,
        "tag": "Walk",
        "history": [*history, opened],
        "penalty": 0,
        "metrics": {},
        **keys,
    }


def rows(batch, name="input_ids"):
    return [
        ids[mask.bool()].tolist() for ids, mask in zip(batch.batch[name], batch.batch["attention_mask"], strict=True)
    ]


def texts(context, batch):
    return [context.tokenizer.decode(ids) for ids in rows(batch)]


def user_texts(batch, row=0):
    return [message["content"] for message in batch.non_tensor_batch["messages_list"][row] if message["role"] == "user"]


def learnt(context, batch, row=0, mask="loss_mask"):
    """The text of the tokens that a mask is 1 for."""
    return context.tokenizer.decode(batch.batch["responses"][row][batch.batch[mask][row].bool()])


def scored(batch, row=0, name="rm_scores"):
    """Position in ``responses`` and value of every score that is not 0."""
    scores = batch.batch[name][row]
    return [(int(place), pytest.approx(float(scores[place]), abs=1e-6)) for place in scores.nonzero().flatten()]


# ------------------------------------------------------------------------------------------------------------ prompts


def test_the_first_prompt_tells_rules_symbols_actions_limits_and_the_state():
    context = manager()
    batch = context.get_lm_inputs([rollout(turns=0)])
    [content] = user_texts(batch)
    assert content.startswith("Walk home.\nSymbols in the state: # is wall, P is you\nAvailable actions: Up, Down.")
    assert '"||"' in content and "2 in one turn, 10 in the whole episode" in content
    assert "Turn 1:\nState:\n##end#\n#_P#\nYou have 10 actions left. Always output: <think>" in content
    assert "50 words" in content


def test_without_thinking_a_prompt_asks_for_the_answer_alone():
    context = manager(agent_proxy={"enable_think": False})
    batch = context.get_lm_inputs([rollout()])
    assert texts(context, batch)[0].endswith("assistant\n<answer>")
    assert "<think>" not in user_texts(batch)[-1]


def test_a_prompt_that_the_template_opens_with_the_tag_gets_no_second_one():
    tokenizer = next(family for family in FAMILIES if family.name.startswith("deepseek")).tokenizer()
    context = manager(tokenizer)
    assert texts(context, context.get_lm_inputs([rollout()]))[0].endswith("<|Assistant|><think>\n")


def test_earlier_turns_are_told_with_their_replies_and_rewards():
    context = manager()
    messages = context.get_lm_inputs([rollout(rewards=[-0.30000000000000004, -0.0])]).non_tensor_batch["messages_list"][
        0
    ]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert messages[2]["content"] == "<think>t1</think><answer>Up</answer>"
    assert messages[3]["content"].startswith("Reward:\n-0.3\n\nTurn 2:\nState:\n##2#")
    assert messages[5]["content"].startswith("Reward:\n0\n\nTurn 3:\nState:\n##end#")


def test_the_prompt_is_the_template_of_the_messages():
    context = manager()
    batch = context.get_lm_inputs([rollout(), rollout(1, turns=1)])
    for text, messages in zip(texts(context, batch), batch.non_tensor_batch["messages_list"], strict=True):
        rendered = context.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert text == rendered + "<think>"


def test_a_batch_is_padded_on_the_left_and_positions_count_from_the_first_token():
    context = manager()
    batch = context.get_lm_inputs([rollout(turns=0), rollout(1, turns=3)])
    ids, mask, positions = (batch.batch[name] for name in ("input_ids", "attention_mask", "position_ids"))
    padding = int((mask[0] == 0).sum())
    assert padding > 0 and mask[0].tolist() == [0] * padding + [1] * (mask.shape[1] - padding)
    assert set(ids[0, :padding].tolist()) == {context.tokenizer.pad_token_id}
    assert positions[0].tolist() == [0] * padding + list(range(mask.shape[1] - padding))
    assert batch.batch["responses"].equal(ids[:, 1:])


def test_non_tensor_columns_have_one_dimension_and_ids_are_integers():
    batch = manager().get_lm_inputs([rollout(0), rollout(3)])
    assert len(batch) == 2
    for name, column in batch.non_tensor_batch.items():
        assert column.dtype == ("int64" if name.endswith("_ids") else object) and column.shape == (2,)
    assert batch.non_tensor_batch["env_ids"].tolist() == [0, 3]
    assert batch.non_tensor_batch["group_ids"].tolist() == [0, 1]
    assert batch.non_tensor_batch["tags"].tolist() == ["Walk", "Walk"]
    batch.check_consistency()


def test_caches_are_not_changed():
    caches = [rollout(), rollout(1, turns=1)]
    before = copy.deepcopy(caches)
    context = manager(agent_proxy={"max_context_window": 1})
    context.get_lm_inputs(caches)
    context.formulate_rollouts(caches)
    assert caches == before


def test_no_environments_is_an_error():
    with pytest.raises(InputError, match="get_lm_inputs"):
        manager().get_lm_inputs([])


def test_a_cache_without_tag_is_known_by_its_environment_id():
    context = manager(tags=("Walk", "Riddle"), n_groups=(1, 1))
    cache = rollout(3)
    del cache["tag"]
    assert context.get_lm_inputs([cache]).non_tensor_batch["tags"].tolist() == ["Riddle"]


def test_a_tag_that_is_not_configured_is_an_error():
    with pytest.raises(InputError, match=r"env_id=9.*'Swim'"):
        manager().get_lm_inputs([rollout(9, tag="Swim")])


# ------------------------------------------------------------------------------------------------- tags and their rules


def test_every_environment_has_the_instruction_of_its_tag():
    context = manager(tags=("Walk", "Riddle"), n_groups=(1, 2))
    assert list(context.prefix_lookup) == [0, 1, 2, 3, 4, 5]
    assert "Walk home." in context.prefix_lookup[1] and "Walk" not in context.prefix_lookup[2]
    assert context.env_nums == {"Walk": 2, "Riddle": 4}
    assert context.env_config_lookup[0]["max_tokens"] == 50


def test_the_environments_own_configuration_names_symbols_and_actions():
    own = {**WALK, "env_config": {"grid_vocab": {"W": "water"}, "action_lookup": {0: "Swim"}}}
    context = manager(custom_envs={"Walk": own})
    assert "W is water" in context.prefix_lookup[0] and "Available actions: Swim." in context.prefix_lookup[0]
    assert "wall" not in context.prefix_lookup[0]


def test_the_system_message_can_be_changed_and_left_out():
    changed = manager(agent_proxy={"system_prompt": "You are a fish."}).get_lm_inputs([rollout()])
    none = manager(agent_proxy={"system_prompt": ""}).get_lm_inputs([rollout()])
    assert changed.non_tensor_batch["messages_list"][0][0] == {"role": "system", "content": "You are a fish."}
    assert none.non_tensor_batch["messages_list"][0][0]["role"] == "user"


def test_only_the_configuration_of_an_environment_is_imported():
    script = (
        "import sys; from ragen.llm_agent.prompts.conversation import tag_prompt;"
        "from ragen.llm_agent.prompts.replies import *;"
        "from ragen.llm_agent.prompts.settings import ContextSettings;"
        "tag_prompt('S', {'env_type': 'sokoban'}, ContextSettings(), ControlTokens([]));"
        "assert 'ragen.env.sokoban.config' in sys.modules, 'config';"
        "bad = [m for m in ('ragen.env.sokoban.env', 'torch', 'verl', 'transformers') if m in sys.modules];"
        "assert not bad, bad"
    )
    try:
        REGISTERED_ENV_CONFIGS["sokoban"]
    except UnknownEnvError:
        pytest.skip("sokoban is not there")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------- bad configurations


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"agent_proxy": {"action_sep": " "}}, "agent_proxy.action_sep"),
        ({"agent_proxy": {"max_actions_per_turn": 0}}, "agent_proxy.max_actions_per_turn"),
        ({"agent_proxy": {"max_actions_per_turn": "x"}}, "agent_proxy.max_actions_per_turn"),
        ({"agent_proxy": {"context_window_mode": "half"}}, "context_window_mode"),
        ({"agent_proxy": {"reward_normalization": {"grouping": "x"}}}, "grouping"),
        ({"agent_proxy": {"reward_normalization": {"method": "x"}}}, "method"),
        ({"agent_proxy": {"use_turn_scores": True, "reward_normalization": {"method": "mean"}}}, "use_turn_scores"),
        ({"rollout": {"max_model_len": 100, "response_length": 100}}, "response_length"),
        ({"rollout": {"max_model_len": 60}}, "custom_envs.Walk"),
        ({"tags": ("Swim",), "n_groups": (1,)}, "'Swim'"),
        ({"n_groups": (1, 2)}, "n_groups"),
        ({"custom_envs": {"Walk": {"env_type": None}}}, "custom_envs.Walk.env_type"),
        ({"custom_envs": {"Walk": {"env_type": "swimming"}}}, "'swimming'"),
        ({"custom_envs": {"Walk": {**WALK, "env_config": {"colour": 1}}}}, "custom_envs.Walk.env_config"),
        ({"custom_envs": {"Walk": {**WALK, "env_config": [1]}}}, "custom_envs.Walk.env_config"),
        ({"mode": "test"}, "es_manager.test"),
    ],
)
def test_a_bad_configuration_is_refused_by_key(keys, named):
    with pytest.raises(ConfigError) as raised:
        manager(**keys)
    assert named in str(raised.value)


# ------------------------------------------------------------------------------------------------------------ replies


def parser(**keys):
    return ReplyParser(ControlTokens(["<|im_start|>", "<|im_end|>"]), **keys)


@pytest.mark.parametrize(
    ("reply", "text", "actions"),
    [
        ("go</think><answer>Up</answer>", "<think>go</think><answer>Up</answer>", ["Up"]),
        (
            "<think> go </think> \n <answer> Up || Down </answer>",
            "<think>go</think><answer>Up || Down</answer>",
            ["Up", "Down"],
        ),
        ("a</think><answer>Up||Down</answer>", "<think>a</think><answer>Up||Down</answer>", ["Up", "Down"]),
        (
            "a</think><answer>Up || || Down ||</answer>",
            "<think>a</think><answer>Up || || Down ||</answer>",
            ["Up", "Down"],
        ),
        ("a</think><answer></answer>", "<think>a</think><answer></answer>", []),
        ("a</think><answer>x</answer> more <answer>y</answer>", "<think>a</think><answer>x</answer>", ["x"]),
        ("a</think>b</think><answer>x</answer>", "<think>ab</think><answer>x</answer>", ["x"]),
        ("a</think><answer><answer>x</answer>", "<think>a</think><answer>x</answer>", ["x"]),
        ("a<|im_end|>b</think><answer>U<|im_start|>p</answer>", "<think>ab</think><answer>Up</answer>", ["Up"]),
        ("two\nlines</think><answer>3 +\n4</answer>", "<think>two\nlines</think><answer>3 +\n4</answer>", ["3 +\n4"]),
    ],
)
def test_a_reply_is_rebuilt_from_its_thought_and_answer(reply, text, actions):
    found = parser(enable_think=True).parse(reply)
    assert (found.text, found.actions) == (text, actions)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Up",
        "<answer>Up</answer>",
        "a</think>",
        "a</think> so <answer>Up</answer>",
        "a</think><answer>Up",
        "</answer><answer>",
    ],
)
def test_a_malformed_reply_gives_no_actions_and_is_kept(reply):
    found = parser(enable_think=True).parse(reply)
    assert found.actions == [] and found.text == found.raw == f"<think>{reply}"


def test_a_malformed_reply_is_kept_without_control_tokens():
    assert parser().parse("Up<|im_end|>\n<|im_start|>user\nno").text == "<think>Up\nuser\nno"


def test_actions_beyond_the_limit_are_dropped_from_the_reply_too():
    found = parser(max_actions=2).parse("a</think><answer>Up|| Down ||Up||Up</answer>")
    assert (found.text, found.actions) == ("<think>a</think><answer>Up || Down</answer>", ["Up", "Down"])


def test_without_thinking_the_answer_alone_is_read():
    found = parser(enable_think=False).parse("Up</answer>")
    assert (found.raw, found.text, found.actions) == ("<answer>Up</answer>", "<answer>Up</answer>", ["Up"])


def test_a_reply_that_has_its_first_tag_gets_no_second_one():
    assert parser().parse("\n<think>a</think><answer>Up</answer>").raw == "\n<think>a</think><answer>Up</answer>"


def test_reading_megabytes_takes_no_time():
    for reply in ("<think>" * 150_000, "</think>" * 150_000, "</think>   " * 90_000, "</think><answer>" * 70_000):
        assert parser().parse(reply).actions == []


@settings(max_examples=200, deadline=None)
@given(
    st.text()
    | st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "||", " ", "a", "<|im_"])).map("".join)
)
def test_any_string_is_a_legal_reply(reply):
    found = parser(max_actions=2).parse(reply)
    assert len(found.actions) <= 2 and "<|im_start|>" not in found.text
    if found.actions:  # what the history keeps means the same when it is read again
        assert parser(max_actions=2).parse(found.text) == found.__class__(found.text, found.text, found.actions)


def outputs(responses=None, response_texts=None, env_ids=(0, 1)):
    from tensordict import TensorDict
    from verl import DataProto

    columns = {"env_ids": object_array(env_ids)}
    if response_texts is not None:
        columns["response_texts"] = object_array(response_texts)
    batch = None if responses is None else TensorDict({"responses": responses}, batch_size=[len(responses)])
    return DataProto(batch=batch, non_tensor_batch=columns)


def test_replies_may_come_as_texts():
    found = manager().get_env_inputs(outputs(response_texts=["a</think><answer>Up</answer>", None]))
    assert found == [
        {
            "env_id": 0,
            "llm_raw_response": "<think>a</think><answer>Up</answer>",
            "llm_response": "<think>a</think><answer>Up</answer>",
            "actions": ["Up"],
        },
        {"env_id": 1, "llm_raw_response": "<think>", "llm_response": "<think>", "actions": []},
    ]


def test_replies_may_come_as_tokens_with_their_end_token_and_padding():
    tokenizer = load_tokenizer()
    reply = "go</think><answer>Up || Down</answer>"
    rows = tokenizer([f"{reply}<|im_end|>", "no<|im_end|>"], padding=True, padding_side="right", return_tensors="pt")
    found = manager(tokenizer).get_env_inputs(outputs(rows.input_ids, env_ids=(5, 7)))
    assert [each["env_id"] for each in found] == [5, 7]
    assert found[0]["llm_raw_response"] == f"<think>{reply}" and found[0]["actions"] == ["Up", "Down"]
    assert found[1]["llm_raw_response"] == "<think>no"


@pytest.mark.parametrize("lengths", [{"response_length": 20}, {"max_model_len": 2000, "response_length": 20}])
def test_a_reply_far_beyond_its_length_is_cut_off_and_no_other_is_changed(lengths, caplog):
    context = manager(rollout=lengths)
    fits = "a" * 500 + "</think><answer>Up</answer>"
    huge, whole = context.get_env_inputs(outputs(response_texts=["b" * 1_000_000 + "</think>", fits]))
    assert huge["actions"] == [] and len(huge["llm_response"]) < 1_000
    assert huge["llm_raw_response"].exchange.cut_off
    assert whole["llm_raw_response"] == f"<think>{fits}" and whole["actions"] == ["Up"]
    assert "env 0" in caplog.text


def test_output_without_replies_or_with_too_few_ids_is_an_error():
    with pytest.raises(InputError, match="response_texts"):
        manager().get_env_inputs(outputs())
    with pytest.raises(InputError, match="env_ids"):
        manager().get_env_inputs(outputs(response_texts=["a", "b"], env_ids=[0]))


# --------------------------------------------------------------------------------------------------- training batches


def test_without_the_response_mask_states_are_learnt_too():
    context = manager(enable_response_mask=False)
    batch = context.formulate_rollouts([rollout(), rollout(1, turns=3)])
    text = learnt(context, batch)
    assert text.startswith("Walk home.") and "##2#" in text and "system" not in text
    assert learnt(context, batch, 0, "response_mask").startswith("<think>t1</think>")


def test_a_trajectory_without_any_reply_gives_a_row_without_loss():
    context = manager()
    batch = context.formulate_rollouts([rollout(turns=0), rollout(1)])
    assert batch.batch["loss_mask"][0].sum() == 0
    assert batch.batch["rm_scores"][0].sum() == 0


def test_turn_scores_stand_at_the_end_token_of_their_turns():
    context = manager(agent_proxy={"use_turn_scores": True})
    batch = context.formulate_rollouts([rollout(turns=3, rewards=[1.0, 0.0, -2.0], penalty=-0.5), rollout(1, turns=1)])
    end = context.tokenizer.eos_token_id
    ends = [
        place
        for place, (token, mask) in enumerate(
            zip(batch.batch["responses"][0], batch.batch["loss_mask"][0], strict=True)
        )
        if token == end and mask
    ]
    assert len(ends) == 3
    assert scored(batch) == [(ends[0], 1.0), (ends[2], -2.5)]
    assert scored(batch, name="original_rm_scores") == [(ends[0], 1.0), (ends[2], -2.0)]


def test_metrics_are_means_over_the_environments_of_their_tag():
    caches = [
        rollout(0, metrics={"Walk/success": 1.0, "Walk/effort": 3}),
        rollout(1, metrics={"Walk/success": 0.0}),
        rollout(4, tag="Riddle", metrics={"Riddle/success": 1.0}),
    ]
    metrics = manager(tags=("Walk", "Riddle"), n_groups=(2, 1)).formulate_rollouts(caches).meta_info["metrics"]
    assert metrics["Walk/success"] == 0.5 and metrics["Riddle/success"] == 1.0
    assert metrics["Walk/non-zero/success"] == 1.0
    assert metrics["Walk/effort"] == 1.5 and metrics["Walk/non-zero/effort"] == 3


# ----------------------------------------------------------------------------------------------------- context window


def test_a_window_shows_the_last_turns_and_keeps_their_numbers():
    context = manager(agent_proxy={"max_context_window": 2})
    first, second = user_texts(context.get_lm_inputs([rollout(turns=4)]))
    assert first.startswith("Walk home.") and "Turn 4:" in first and "Turn 3:" not in first
    assert "Turn 5:" in second


def test_with_limited_multi_turn_every_turn_is_a_row_as_the_model_saw_it():
    context = manager(agent_proxy={"max_context_window": 2, "context_window_mode": "limited_multi_turn"})
    cache = rollout(turns=3, rewards=[1.0, 2.0, 4.0])
    batch = context.formulate_rollouts([cache, rollout(1, turns=1)])
    assert batch.non_tensor_batch["episode_ids"].tolist() == [0, 0, 0, 1]
    assert batch.non_tensor_batch["env_ids"].tolist() == [0, 0, 0, 1]
    assert [learnt(context, batch, row) for row in range(3)] == [
        f"<think>t{number}</think><answer>Up</answer><|im_end|>" for number in (1, 2, 3)
    ]
    assert batch.batch["rm_scores"].sum(-1).tolist() == [7, 7, 7, 0.5]
    for played, text in enumerate(texts(context, batch)[:3]):
        seen = {**cache, "history": [*cache["history"][:played], {**cache["history"][played]}]}
        for name in ("llm_response", "reward"):
            seen["history"][-1].pop(name)
        [prompt] = texts(context, context.get_lm_inputs([seen]))
        assert text.startswith(prompt)


def test_with_limited_multi_turn_turn_scores_are_each_turns_own():
    context = manager(agent_proxy={"context_window_mode": "limited_multi_turn", "use_turn_scores": True})
    batch = context.formulate_rollouts([rollout(turns=3, rewards=[1.0, 2.0, 4.0], penalty=-0.5)])
    assert batch.batch["rm_scores"].sum(-1).tolist() == [1, 2, 3.5]


def test_with_single_turn_the_turns_before_are_told_in_one_message():
    context = manager(agent_proxy={"max_context_window": 2, "context_window_mode": "single_turn"})
    batch = context.get_lm_inputs([rollout(turns=3)])
    [content] = user_texts(batch)
    assert "Turn 2:" not in content and "Turn 3:\nState:\n##3#" in content and "<think>t3</think>" in content
    assert content.rsplit("---", 1)[1].strip().startswith("Turn 4:\nState:\n##end#")
    rows = context.formulate_rollouts([rollout(turns=3)])
    assert len(rows) == 3
    assert learnt(context, rows, 2) == "<think>t3</think><answer>Up</answer><|im_end|>"


def test_a_transcript_shows_all_turns_whatever_the_window():
    context = manager(agent_proxy={"max_context_window": 1, "context_window_mode": "single_turn"})
    messages = context.transcript(rollout(turns=3))
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 3]
    assert "Turn 1:" in messages[1]["content"] and "##end#" not in messages[-2]["content"]


# ------------------------------------------------------------------------------------------------------ context length


def test_a_prompt_that_is_too_long_loses_its_oldest_turns():
    full = manager().get_lm_inputs([rollout(turns=6)]).batch["input_ids"].shape[1]
    context = manager(rollout={"max_model_len": full - 1, "response_length": 50})
    batch = context.get_lm_inputs([rollout(turns=6), rollout(1, turns=1)])
    assert batch.batch["input_ids"].shape[1] <= full - 51
    content = user_texts(batch)
    assert content[0].startswith("Walk home.") and "Turn 1:" not in content[0] and "Turn 7:" in content[-1]
    assert len(user_texts(batch, 1)) == 2
    assert texts(context, batch)[0].startswith("<|im_start|>system\n")


def test_a_prompt_loses_no_more_turns_than_it_must():
    full = manager().get_lm_inputs([rollout(turns=6)]).batch["input_ids"].shape[1]
    batch = manager(rollout={"max_model_len": full - 1}).get_lm_inputs([rollout(turns=6)])
    assert "Turn 2:" in user_texts(batch)[0]


def test_a_training_row_that_is_too_long_loses_its_oldest_turns_and_no_score():
    cache = rollout(turns=4, rewards=[1.0, 2.0, 3.0, 4.0])
    full = manager().formulate_rollouts([cache]).batch["input_ids"].shape[1]
    context = manager(rollout={"max_model_len": full - 1})
    batch = context.formulate_rollouts([cache])
    assert batch.batch["input_ids"].shape[1] <= full - 1
    assert learnt(context, batch).startswith("<think>t2</think>")
    assert float(batch.batch["rm_scores"].sum()) == 10


def test_turn_scores_of_turns_that_are_not_shown_are_left_out():
    context = manager(agent_proxy={"use_turn_scores": True, "max_context_window": 2})
    batch = context.formulate_rollouts([rollout(turns=3, rewards=[1.0, 2.0, 4.0])])
    assert [value for _, value in scored(batch)] == [2, 4]


def test_a_turn_that_does_not_fit_alone_is_an_error_that_names_it():
    context = manager(rollout={"max_model_len": 600, "response_length": 100})
    cache = rollout(1, turns=2)
    cache["history"][-1]["state"] = "#" * 700
    with pytest.raises(InputError, match=r"env 1 \(tag 'Walk'\), turns 1-3"):
        context.get_lm_inputs([cache])


# -------------------------------------------------------------------------------------------------------------- images


def picture(seed, size=(56, 84)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8))


def seen(env_id=0, turns=2, images_a_turn=1):
    cache = rollout(env_id, turns)
    for number, entry in enumerate(cache["history"]):
        entry["state"] = "<images>" * images_a_turn
        entry["images"] = [picture((env_id, number, place)) for place in range(images_a_turn)]
    return cache


IMAGE_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% for c in m.content %}"
    "{% if c.type == 'image' %}IMAGE{% else %}{{ c.text }}{% endif %}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def llava():
    """Every image becomes as many tokens as it has patches."""
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = load_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
        chat_template=IMAGE_TEMPLATE.replace("IMAGE", "<image>"),
    )


def qwen2_vl():
    """The number of an image's tokens depends on its size, and positions have three dimensions."""
    from transformers import Qwen2VLConfig, Qwen2VLProcessor
    from transformers.models.qwen2_vl import Qwen2VLModel
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class WithoutVideo(Qwen2VLProcessor):
        def check_argument_for_proper_class(self, name, argument):
            return None if name == "video_processor" else super().check_argument_for_proper_class(name, argument)

    tokenizer = load_tokenizer()
    marks = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    processor = WithoutVideo(
        image_processor=Qwen2VLImageProcessorPil(size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16}),
        tokenizer=tokenizer,
        video_processor=None,
        chat_template=IMAGE_TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )
    start, _, image, video = tokenizer.convert_tokens_to_ids(marks)
    processor.config = Qwen2VLConfig(vision_start_token_id=start, image_token_id=image, video_token_id=video)
    processor.get_rope_index = MethodType(Qwen2VLModel.get_rope_index, processor)  # as verl's hf_processor does
    if hasattr(Qwen2VLModel, "get_vision_position_ids"):
        processor.get_vision_position_ids = MethodType(Qwen2VLModel.get_vision_position_ids, processor)
    return processor


@pytest.mark.parametrize("make", [llava, qwen2_vl])
def test_with_processor_messages_and_columns_carry_the_images(make):
    processor = make()
    context = manager(processor.tokenizer, processor)
    caches = [seen(0, turns=2), seen(1, turns=1, images_a_turn=2), rollout(2, turns=1)]
    batch = context.get_lm_inputs(caches)
    expected = [[image for entry in cache["history"] for image in entry.get("images", [])] for cache in caches]
    assert [row.get("images", []) for row in batch.non_tensor_batch["multi_modal_data"]] == expected
    items = [item for message in batch.non_tensor_batch["messages_list"][0] for item in message["content"]]
    assert [item["image"] for item in items if item["type"] == "image"] == expected[0]
    assert not any("<images>" in item.get("text", "") for item in items)
    inputs = batch.non_tensor_batch["multi_modal_inputs"]
    assert "pixel_values" in inputs[0] and not inputs[2]
    assert "input_ids" not in inputs[0] and "attention_mask" not in inputs[0]
    image_token = processor.tokenizer.convert_tokens_to_ids("<image>" if make is llava else "<|image_pad|>")
    assert (batch.batch["input_ids"] == image_token).sum(-1).tolist()[2] == 0
    assert (batch.batch["input_ids"][0] == image_token).sum() > 3


@pytest.mark.parametrize("make", [llava, qwen2_vl])
def test_masks_are_right_among_image_tokens(make):
    processor = make()
    context = manager(processor.tokenizer, processor)
    batch = context.formulate_rollouts([seen(0, turns=3), rollout(1, turns=1), seen(2, turns=2, images_a_turn=2)])
    for row, count in enumerate((3, 1, 2)):
        replies = [f"<think>t{number}</think><answer>Up</answer><|im_end|>" for number in range(1, count + 1)]
        assert learnt(context, batch, row) == "".join(replies)


def test_three_dimensional_positions_are_given_to_models_that_want_them():
    processor = qwen2_vl()
    batch = manager(processor.tokenizer, processor).formulate_rollouts([seen(0, turns=2), rollout(1, turns=1)])
    positions, mask = batch.batch["position_ids"], batch.batch["attention_mask"]
    assert positions.shape == (2, 4, mask.shape[1])
    assert positions[0, 0].tolist() == (mask[0].cumsum(-1) - 1).clamp(min=0).tolist()
    assert not positions[0, 1].equal(positions[0, 2])
    words = mask[1].bool()
    assert all(positions[1, axis][words].tolist() == list(range(int(words.sum()))) for axis in range(4))
    inputs = batch.non_tensor_batch["multi_modal_inputs"][0]
    assert inputs["images_seqlens"].tolist() == [int(h * w) for _, h, w in inputs["image_grid_thw"].tolist()]


def test_marks_that_do_not_fit_the_images_are_an_error():
    processor = llava()
    cache = seen(0, turns=0, images_a_turn=2)
    cache["history"][0]["images"].pop()
    with pytest.raises(InputError, match=r"env 0 \(tag 'Walk'\), turns 1-1"):
        manager(processor.tokenizer, processor).get_lm_inputs([cache])
