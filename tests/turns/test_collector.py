"""The collector: who is prompted, what a batch holds, which groups stay, and equality however environments run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen.errors import BackendError, CollectError, InputError
from ragen.llm_agent.prompts.replies import create_projection_function
from ragen.turns.container import MultiProcessEnvironmentContainer
from ragen.turns.managers import SokobanEnvironmentManager
from ragen.validity import env_error
from support.image_processor import TOKENS, StandInProcessor
from support.later import collecting, shipped
from support.stand_ins import StandInActor, StandInWorkers, any_move

SOKOBAN = {"dim_x": 6, "dim_y": 6, "num_boxes": 1}
COLUMNS = {
    *("uid", "traj_uid", "anchor_obs", "index", "data_source", "is_action_valid", "rewards", "active_masks"),
    *("episode_rewards", "episode_lengths", "tool_callings", "success_rate"),
}
TENSORS = {"prompts", "responses", "input_ids", "attention_mask", "position_ids"}


def config(**more: Any) -> dict[str, Any]:
    """verl-agent's keys."""
    env = {"max_steps": 4, "rollout": {"n": 2}, "history_length": 2}
    return {"env": env, "data": {"max_prompt_length": 700, "train_batch_size": 2}, **more}


def managed(max_steps: int = 3, group_n: int = 2, env_num: int = 2, **more: Any) -> SokobanEnvironmentManager:
    settings = more.pop("settings", {"use_lanes": False})
    kwargs = {**SOKOBAN, "max_steps": max_steps}
    envs = MultiProcessEnvironmentContainer("sokoban", env_num, group_n, 42, kwargs, settings=settings, **more)
    return SokobanEnvironmentManager(envs, create_projection_function("sokoban"), "sokoban")


def collector_of(settings: Any, tokenizer: Any = None, *more: Any) -> Any:
    return collecting.TrajectoryCollector(settings, tokenizer or shipped(), *more)


def alter(envs: Any, change: Any) -> None:
    """Change what each step of a manager's container returns."""
    play = envs.envs.step
    envs.envs.step = lambda actions: change(*play(actions))


def prompts(rows: int = 0, **meta_info: Any) -> Any:
    from verl import DataProto

    if not rows:
        return DataProto(meta_info=meta_info)
    columns = {"data_source": np.array([f"set {row}" for row in range(rows)], object)}
    return DataProto.from_dict(tensors=None, non_tensors=columns, meta_info=meta_info)


def test_a_batch_has_a_row_for_each_turn_trajectory_after_trajectory():
    with managed() as envs:
        batch = collector_of(config()).multi_turn_loop(prompts(), StandInActor(), envs)
    objects = batch.non_tensor_batch
    assert set(objects) >= COLUMNS and set(batch.batch.keys()) >= TENSORS and len(batch) == 12
    assert [list(objects["traj_uid"]).index(uid) for uid in objects["traj_uid"]] == [row // 3 * 3 for row in range(12)]
    assert len(set(objects["uid"])) == 2 and len(set(objects["uid"][:6])) == 1
    assert objects["anchor_obs"][0] == objects["anchor_obs"][3] != objects["anchor_obs"][6]
    sums = [sum(objects["rewards"][start : start + 3]) for start in range(0, 12, 3)]
    assert objects["episode_rewards"][::3] == pytest.approx(sums) and set(objects["episode_lengths"]) == {3.0}
    assert {type(valid) for valid in objects["is_action_valid"]} == {bool} and all(objects["active_masks"])
    tensors = batch.batch
    assert tensors["prompts"].shape == (12, 700) and (tensors["position_ids"][:, 700:].diff(dim=-1) == 1).all()
    seen = tensors["attention_mask"].bool()
    for row in range(12):
        asked = shipped().decode(tensors["prompts"][row][seen[row, :700]])
        said = shipped().decode(tensors["responses"][row][seen[row, 700:]])
        assert shipped().decode(tensors["input_ids"][row][seen[row]]) == asked + said
        assert said == any_move(asked.split("\n", 1)[1].rsplit("<|im_end|>", 1)[0]) + "<|im_end|>"
        assert tensors["response_mask"][row].bool().equal(seen[row, 700:])


def test_only_environments_whose_episode_goes_on_are_prompted():
    actor, turns, solved = StandInActor(), [], {0: 2, 3: 1}  # which environment is over after how many turns

    def change(shown: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        turns.append(0)
        return shown, rewards, [len(turns) >= solved.get(row, 9) for row in range(4)], infos

    with managed(max_steps=9) as envs:
        alter(envs, change)
        batch = collector_of(config()).multi_turn_loop(prompts(), actor, envs)
    assert actor.asked == [[0, 1, 2, 3], [0, 1, 2], [1, 2], [1, 2]]
    assert list(batch.non_tensor_batch["env_ids"]) == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_worker_groups_are_given_multiples_of_their_size():
    actor = StandInWorkers(shipped(), world_size=3)
    with managed() as envs:
        batch = collector_of(config()).multi_turn_loop(prompts(), actor, envs)
    assert len(batch) == 12 and len(actor.asked) == 3
    assert batch.batch["responses"].shape[0] == 12 and "rollout_log_probs" in batch.batch.keys()  # noqa: SIM118


def test_an_actor_that_answers_too_few_prompts_is_refused():
    class Short(StandInActor):
        def generate_sequences(self, prompts: Any) -> Any:
            return super().generate_sequences(prompts)[:-1]

    with managed() as envs, pytest.raises(BackendError):
        collector_of(config()).multi_turn_loop(prompts(), Short(), envs)


def test_prompts_of_a_data_set_are_repeated_for_groups_and_name_their_source():
    collector = collector_of(config())
    with managed() as envs:
        batch = collector.multi_turn_loop(prompts(2), StandInActor(), envs)
        assert list(batch.non_tensor_batch["data_source"]) == ["set 0"] * 6 + ["set 1"] * 6
        batch = collector.multi_turn_loop(prompts(4), StandInActor(), envs, is_train=False)
        assert len(set(batch.non_tensor_batch["data_source"])) == 4
        with pytest.raises(InputError, match="prompts"):
            collector.multi_turn_loop(prompts(3), StandInActor(), envs)


@pytest.mark.parametrize(("is_train", "shown"), [(True, [2, 3]), (False, [0, 2, 3])])
def test_an_environment_that_fails_counts_as_no_failure_of_the_model(is_train, shown):
    """In training, the other member of its group has nothing to be compared with."""
    with managed() as envs:
        collector = collector_of(config())

        def change(shown: Any, rewards: Any, dones: Any, infos: Any) -> Any:
            infos = [{**info, "success": True} for info in infos]
            dones[1], infos[1] = True, {"env_error": "it broke"}
            return shown, rewards, dones, infos

        alter(envs, change)
        batch = collector.multi_turn_loop(prompts(), StandInActor(), envs, is_train)
    assert list(map(env_error, collector.played)) == [None, "it broke", None, None]
    assert sorted(set(batch.non_tensor_batch["env_ids"])) == shown
    assert set(batch.non_tensor_batch["success_rate"]) == {1.0}


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
def test_prompts_that_are_too_long_lose_what_is_asked_for(truncation):
    short = config(data={"max_prompt_length": 60, "truncation": truncation})
    with managed() as envs:
        obs, _ = envs.reset()
        whole = collector_of(config()).preprocess_batch(prompts(), obs)
        cut = collector_of(short).preprocess_batch(prompts(), obs)
    ids, kept = whole.non_tensor_batch["raw_prompt_ids"][0], cut.non_tensor_batch["raw_prompt_ids"][0]
    assert kept == {"left": ids[-60:], "right": ids[:60], "middle": ids[:30] + ids[-30:]}[truncation]
    assert cut.batch["input_ids"].shape == (4, 60)
    with pytest.raises(InputError, match="max_prompt_length"):
        collector_of(config(data={"max_prompt_length": 60})).preprocess_batch(prompts(), obs)


# Groups


@pytest.mark.parametrize(
    ("rewards", "last_try", "kept"),
    [
        ([1, 1, 0, 2, 3, 3 + 1e-9], False, [2, 3]),
        ([1, 1, 2, 2], False, []),
        ([1, 1, 0, 2], True, [0, 1, 2, 3]),
        ([1, 1, 1], False, None),
    ],
)
def test_groups_whose_rewards_are_all_equal_are_left_out(rewards, last_try, kept):
    numbers = np.arange(len(rewards))
    given = list(numbers), np.array(rewards, np.float32), numbers, {"success_rate": numbers}, numbers, numbers
    if kept is None:
        with pytest.raises(InputError):
            collecting.filter_group_data(*given, config(), last_try)
    else:
        rows, _, *others = collecting.filter_group_data(*given, config(), last_try)
        assert rows == kept == others[1].pop("success_rate").tolist()
        assert [each.tolist() for each in (others[0], *others[2:])] == [kept] * 3


def dynamic(tries: int, on_exhausted: str = "keep") -> Any:
    groups = {"enable": True, "max_num_gen_batches": tries, "on_exhausted": on_exhausted}
    return collector_of(config(algorithm={"filter_groups": groups}))


def test_rollouts_are_repeated_until_enough_groups_differ_or_the_last_try():
    steps: list[int] = []

    def change(shown: Any, _: Any, __: Any, infos: Any) -> Any:
        steps.append(0)
        rewards = [float(6 < len(steps) < 10) * row for row in range(4)]  # equal in all rollouts but the third
        return shown, rewards, [len(steps) % 3 == 0] * 4, infos

    with managed() as envs:
        alter(envs, change)
        batch = dynamic(10).multi_turn_loop(prompts(), StandInActor(), envs)
        assert len(steps) == 9 and len(set(batch.non_tensor_batch["uid"])) == 2 and len(batch) == 12
        assert len(dynamic(2).multi_turn_loop(prompts(), StandInActor(), envs)) == 12
        with pytest.raises(CollectError, match="max_num_gen_batches"):
            dynamic(2, "raise").multi_turn_loop(prompts(), StandInActor(), envs)
        assert len(dynamic(2, "raise").multi_turn_loop(prompts(), StandInActor(), envs, False)) == 12


def test_rows_of_a_batch_are_dicts():
    import torch
    from verl import DataProto

    batch = DataProto.from_dict(tensors={"a": torch.arange(4).view(2, 2)}, non_tensors={"b": np.array(["x", "y"])})
    rows = collecting.to_list_of_dict(batch)
    assert rows[1]["a"].tolist() == [2, 3] and rows[1]["b"] == "y" and len(rows) == 2


def test_images_go_through_the_processor_in_the_place_of_what_is_seen_now():
    class Seeing(StandInActor):
        def generate_sequences(self, asked: Any) -> Any:
            self.chats = [chat[0]["content"] for chat in asked.non_tensor_batch["messages_list"]]
            self.shown = [data["images"] for data in asked.non_tensor_batch["multi_modal_data"]]
            return super().generate_sequences(asked)

    processor, actor = StandInProcessor(), Seeing(lambda items: "<action>up</action>")
    kwargs = {**SOKOBAN, "max_steps": 3, "render_mode": "rgb_array"}
    container = MultiProcessEnvironmentContainer("sokoban", 2, 2, 42, kwargs, settings={"use_lanes": False})
    with SokobanEnvironmentManager(container, create_projection_function("sokoban"), "sokoban") as envs:
        batch = collector_of(config(), processor.tokenizer, processor).multi_turn_loop(prompts(), actor, envs)
    objects = batch.non_tensor_batch
    assert (batch.batch["prompts"] == processor.image_token_id).sum(-1).tolist() == [TOKENS] * 12
    for inputs, seen in zip(objects["multi_modal_inputs"], objects["anchor_obs"], strict=True):
        assert inputs["pixel_values"][0].tolist() == seen.astype(np.float32).mean((0, 1)).tolist()
    before, image, after = actor.chats[0]  # of the last turn
    assert image["image"] is actor.shown[0][0] and len(actor.shown[0]) == 1
    assert before["text"].count("an image") == 2 and "image>" not in before["text"] + after["text"]
