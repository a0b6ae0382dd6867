"""Prompts, replies, training batches: what the context manager makes of environments' histories."""

import copy
import re
from types import MethodType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ragen.errors import ConfigError, InputError
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


def rollout(env_id=0, turns=2, rewards=None, replies=None, state="##end#\n#_P#", **keys):
    rewards = rewards or [0.5] * turns
    replies = replies or [None] * turns
    history = [turn(number, replies[number - 1], rewards[number - 1]) for number in range(1, turns + 1)]
    opened = {"state": state, "actions_left": 10 - turns}
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


def test_a_prompt_that_the_template_opens_with_the_tag_gets_no_second_one():
    tokenizer = next(family for family in FAMILIES if family.name.startswith("deepseek")).tokenizer()
    context = manager(tokenizer)
    assert texts(context, context.get_lm_inputs([rollout()]))[0].endswith("<|Assistant|><think>\n")


def test_columns_have_one_dimension_and_ids_are_integers():
    batch = manager().get_lm_inputs([rollout(0), rollout(3)])
    for name, column in batch.non_tensor_batch.items():
        assert column.dtype == ("int64" if name.endswith("_ids") else object) and column.shape == (2,)
    found = [batch.non_tensor_batch[name].tolist() for name in ("env_ids", "group_ids", "tags")]
    assert found == [[0, 3], [0, 1], ["Walk", "Walk"]]


def test_caches_are_not_changed():
    caches = [rollout(), rollout(1, turns=1)]
    before = copy.deepcopy(caches)
    context = manager(agent_proxy={"max_context_window": 1})
    context.get_lm_inputs(caches)
    context.formulate_rollouts(caches)
    assert caches == before


def test_a_cache_without_tag_is_known_by_its_environment_id():
    context = manager(tags=("Walk", "Riddle"), n_groups=(1, 1))
    cache = rollout(3)
    del cache["tag"]
    assert context.get_lm_inputs([cache]).non_tensor_batch["tags"].tolist() == ["Riddle"]


# ------------------------------------------------------------------------------------------------- tags and their rules


def test_every_environment_has_the_instruction_of_its_tag():
    context = manager(tags=("Walk", "Riddle"), n_groups=(1, 2))
    assert list(context.prefix_lookup) == [0, 1, 2, 3, 4, 5]
    assert "Walk home." in context.prefix_lookup[1] and "Walk" not in context.prefix_lookup[2]
    assert context.env_nums == {"Walk": 2, "Riddle": 4}
    assert context.env_config_lookup[0]["max_tokens"] == 50


# ------------------------------------------------------------------------------------------------- bad configurations


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"agent_proxy": {"use_turn_scores": True, "reward_normalization": {"method": "mean"}}}, "use_turn_scores"),
        ({"rollout": {"max_model_len": 100, "response_length": 100}}, "response_length"),
        ({"rollout": {"max_model_len": 60}}, "custom_envs.Walk"),
        ({"tags": ("Swim",), "n_groups": (1,)}, "'Swim'"),
        ({"custom_envs": {"Walk": {**WALK, "env_config": {"colour": 1}}}}, "custom_envs.Walk.env_config"),
    ],
)
def test_a_bad_configuration_is_refused_by_key(keys, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        manager(**keys)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda context: context.get_lm_inputs([]), "get_lm_inputs"),
        (lambda context: context.get_lm_inputs([rollout(9, tag="Swim")]), "env_id=9.*'Swim'"),
        (lambda context: context.get_lm_inputs([rollout(1, state="#" * 700)]), r"env 1 \(tag 'Walk'\), turns 1-3"),
        (lambda context: context.get_env_inputs(outputs()), "response_texts"),
        (lambda context: context.get_env_inputs(outputs(response_texts=["a", "b"], env_ids=[0])), "env_ids"),
    ],
)
def test_input_that_cannot_work_is_refused_by_name(call, named):
    with pytest.raises(InputError, match=named):
        call(manager(rollout={"max_model_len": 600, "response_length": 100}))


# ------------------------------------------------------------------------------------------------------------ replies


def parser(**keys):
    return ReplyParser(ControlTokens(["<|im_start|>", "<|im_end|>"]), **keys)


UP = "<think>a</think><answer>Up</answer>"


@pytest.mark.parametrize(
    ("reply", "text", "actions", "keys"),
    [
        ("a</think><answer>Up</answer>", UP, ["Up"], {}),
        ("\n<think>a</think><answer>Up</answer>", UP, ["Up"], {}),
        ("<think> a </think> \n <answer> Up || Down </answer>", UP.replace("Up", "Up || Down"), ["Up", "Down"], {}),
        ("a</think><answer>Up || || Down ||</answer>", UP.replace("Up", "Up || || Down ||"), ["Up", "Down"], {}),
        ("a</think><answer></answer>", UP.replace("Up", ""), [], {}),
        ("a</think><answer>Up</answer> more <answer>y</answer>", UP, ["Up"], {}),
        ("a</think>b</think><answer><answer>Up</answer>", UP.replace("a", "ab", 1), ["Up"], {}),
        ("a<|im_end|></think><answer>U<|im_start|>p</answer>", UP, ["Up"], {}),
        ("a</think><answer>3 +\n4</answer>", UP.replace("Up", "3 +\n4"), ["3 +\n4"], {}),
        ("a</think><answer>Up||Down</answer>", UP, ["Up"], {"max_actions": 1}),
        ("Up</answer>", "<answer>Up</answer>", ["Up"], {"enable_think": False}),
        ("Up<|im_end|>\n<|im_start|>user\nno", "<think>Up\nuser\nno", [], {}),
    ],
)
def test_a_reply_is_rebuilt_from_its_thought_and_answer(reply, text, actions, keys):
    found = parser(**keys).parse(reply)
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


# --------------------------------------------------------------------------------------------------- training batches


def test_without_the_response_mask_states_are_learnt_too():
    context = manager(enable_response_mask=False)
    batch = context.formulate_rollouts([rollout(), rollout(1, turns=3)])
    text = learnt(context, batch)
    assert text.startswith("Walk home.") and "##2#" in text and "system" not in text
    assert learnt(context, batch, 0, "response_mask").startswith("<think>t1</think>")


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


def test_with_limited_multi_turn_every_turn_is_a_row_as_the_model_saw_it():
    context = manager(agent_proxy={"max_context_window": 2, "context_window_mode": "limited_multi_turn"})
    cache = rollout(turns=3, rewards=[1.0, 2.0, 4.0])
    batch = context.formulate_rollouts([cache, rollout(1, turns=1)])
    assert batch.non_tensor_batch["episode_ids"].tolist() == [0, 0, 0, 1]
    assert "Turn 1:" not in texts(context, batch)[2] and "Turn 2:" in texts(context, batch)[2]
    assert [learnt(context, batch, row) for row in range(3)] == [
        f"<think>t{number}</think><answer>Up</answer><|im_end|>" for number in (1, 2, 3)
    ]
    assert batch.batch["rm_scores"].sum(-1).tolist() == [7, 7, 7, 0.5]


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
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% for c in m.content %}{% if c.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c.text }}{% endif %}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
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
        chat_template=IMAGE_TEMPLATE,
    )
    start, _, image, video = tokenizer.convert_tokens_to_ids(marks)
    processor.config = Qwen2VLConfig(vision_start_token_id=start, image_token_id=image, video_token_id=video)
    processor.get_rope_index = MethodType(Qwen2VLModel.get_rope_index, processor)  # as verl's hf_processor does
    if hasattr(Qwen2VLModel, "get_vision_position_ids"):
        processor.get_vision_position_ids = MethodType(Qwen2VLModel.get_vision_position_ids, processor)
    return processor


def test_with_processor_messages_and_columns_carry_the_images():
    processor = qwen2_vl()
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
    image_token = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert (batch.batch["input_ids"] == image_token).sum(-1).tolist()[2] == 0
    assert (batch.batch["input_ids"][0] == image_token).sum() > 3
    caches[0]["history"][0]["images"].pop()
    with pytest.raises(InputError, match=r"env 0 \(tag 'Walk'\), turns 1-3"):
        context.get_lm_inputs(caches)


def test_masks_are_right_among_image_tokens():
    processor = qwen2_vl()
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
