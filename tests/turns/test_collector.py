"""The collector: who is prompted, what a batch holds, which groups stay, and equality however environments run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen.errors import CollectError, ConfigError, InputError
from ragen.llm_agent.prompts.replies import create_projection_function
from ragen.turns.container import MultiProcessEnvironmentContainer
from ragen.turns.managers import SokobanEnvironmentManager
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


def prompts(rows: int = 0, **meta_info: Any) -> Any:
    from verl import DataProto

    if not rows:
        return DataProto(meta_info=meta_info)
    columns = {"data_source": np.array([f"set {row}" for row in range(rows)], object)}
    return DataProto.from_dict(tensors=None, non_tensors=columns, meta_info=meta_info)


def test_a_batch_has_a_row_for_each_turn_trajectory_after_trajectory():
    with managed() as envs:
        batch = collector_of(config()).multi_turn_loop(prompts(), StandInActor(), envs)
    objects, size = batch.non_tensor_batch, len(batch)
    assert set(objects) >= COLUMNS and set(batch.batch.keys()) >= TENSORS
    assert size == 12 == len(objects["uid"]) and all(objects["active_masks"])
    assert [list(objects["traj_uid"]).index(uid) for uid in objects["traj_uid"]] == [row // 3 * 3 for row in range(12)]
    assert len(set(objects["uid"])) == 2 and len(set(objects["uid"][:6])) == 1
    assert objects["anchor_obs"][0] == objects["anchor_obs"][3] != objects["anchor_obs"][6]
    sums = [sum(objects["rewards"][start : start + 3]) for start in range(0, 12, 3)]
    assert objects["episode_rewards"][::3] == pytest.approx(sums)
    assert set(objects["episode_lengths"]) == {3.0} and objects["episode_rewards"].dtype == np.float32
    assert objects["success_rate"].shape == (size,) and len(set(objects["success_rate"])) == 1
    assert {type(valid) for valid in objects["is_action_valid"]} == {bool}


def test_tokens_are_the_prompt_and_its_reply():
    with managed() as envs:
        batch = collector_of(config()).multi_turn_loop(prompts(), StandInActor(), envs).batch
    assert batch["prompts"].shape[1] == 700
    whole = shipped().decode(batch["input_ids"][0][batch["attention_mask"][0].bool()])
    asked = shipped().decode(batch["prompts"][0][batch["attention_mask"][0][:700].bool()])
    said = shipped().decode(batch["responses"][0][batch["attention_mask"][0][700:].bool()])
    assert whole == asked + said and said == any_move(asked.split("\n", 1)[1].rsplit("<|im_end|>", 1)[0]) + "<|im_end|>"
    steps = batch["position_ids"].diff(dim=-1)
    assert set(steps.unique().tolist()) <= {0, 1} and (steps[:, 700:] == 1).all()


def test_only_environments_whose_episode_goes_on_are_prompted():
    solved = {0: 2, 3: 1}  # which environment is over after how many turns

    class Ending(SokobanEnvironmentManager):
        def step(self, text_actions: Any) -> Any:
            obs, rewards, dones, infos = super().step(text_actions)
            turns = self.turns = getattr(self, "turns", 0) + 1
            for row, turn in solved.items():
                dones[row] |= turns >= turn
            return obs, rewards, dones, infos

    actor = StandInActor(lambda prompt: "<action>up</action>")
    with managed(max_steps=9) as plain:
        envs = Ending(plain.envs, plain.projection_f, "sokoban")
        batch = collector_of(config()).multi_turn_loop(prompts(), actor, envs)
    assert actor.asked == [[0, 1, 2, 3], [0, 1, 2], [1, 2], [1, 2]]
    assert list(batch.non_tensor_batch["env_ids"]) == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_worker_groups_are_given_multiples_of_their_size():
    actor = StandInWorkers(shipped(), world_size=3)
    with managed() as envs:
        batch = collector_of(config()).multi_turn_loop(prompts(), actor, envs)
    assert len(batch) == 12 and len(actor.asked) == 3
    assert batch.batch["responses"].shape[0] == 12 and "rollout_log_probs" in batch.batch.keys()  # noqa: SIM118


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
        play = envs.envs.step

        def step(actions: Any) -> Any:
            shown, rewards, dones, infos = play(actions)
            infos = [{**info, "success": True} for info in infos]
            dones[1], infos[1] = True, {"env_error": "it broke"}
            return shown, rewards, dones, infos

        envs.envs.step = step  # type: ignore[method-assign]
        batch = collector.multi_turn_loop(prompts(4), StandInActor(), envs, is_train)
    assert collector.failures == {1: "it broke"}
    assert [each["env_error"] for each in collector.played] == [None, "it broke", None, None]
    assert sorted(set(batch.non_tensor_batch["env_ids"])) == shown
    assert set(batch.non_tensor_batch["success_rate"]) == {1.0}


@pytest.mark.parametrize(("failed", "kept"), [("0000", [0, 1]), ("0100", []), ("0011", [0, 1]), ("1111", [])])
def test_a_failed_trajectory_has_no_vote_in_its_groups_filter(failed, kept):
    rewards = [np.nan if flag == "1" else reward for flag, reward in zip(failed, (1, 2, 0, 0), strict=True)]
    found = collecting.filter_group_data(*some_rewards(*rewards), group_n=2)
    assert [each[0]["row"] for each in found[0]] == kept


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


def some_rewards(*rewards: float) -> tuple[Any, ...]:
    count = len(rewards)
    sums, names = np.array(rewards, np.float32), np.array([f"t{row}" for row in range(count)], object)
    rows = [[{"row": row}] for row in range(count)]
    return rows, sums, np.ones(count), {"success_rate": np.arange(count)}, names, np.zeros(count)


def test_groups_whose_rewards_are_all_equal_are_left_out():
    kept = collecting.filter_group_data(*some_rewards(1, 1, 0, 2, 3, 3 + 1e-9), config=config())
    assert [rows[0]["row"] for rows in kept[0]] == [2, 3]
    assert kept[3]["success_rate"].tolist() == [2, 3] and list(kept[4]) == ["t2", "t3"]


def test_the_last_try_is_kept_whole():
    assert len(collecting.filter_group_data(*some_rewards(1, 1, 0, 2), last_try=True)[0]) == 4
    for rewards, more in ((some_rewards(1, 1, 1), {"group_n": 2}), (some_rewards(1, 1), {})):
        with pytest.raises(InputError):
            collecting.filter_group_data(*rewards, **more)


def dynamic(tries: int, on_exhausted: str = "keep") -> Any:
    groups = {"enable": True, "max_num_gen_batches": tries, "on_exhausted": on_exhausted}
    return collector_of(config(algorithm={"filter_groups": groups}))


def test_rollouts_are_repeated_until_enough_groups_differ():
    with managed() as envs:
        play = envs.envs.step

        def step(actions: Any) -> Any:
            shown, _, _, infos = play(actions)
            steps.append(0)
            rewards = [float(len(steps) > 6) * row for row in range(4)]  # equal in two rollouts
            return shown, rewards, [len(steps) % 3 == 0] * 4, infos

        steps: list[int] = []
        envs.envs.step = step  # type: ignore[method-assign]
        batch = dynamic(10).multi_turn_loop(prompts(), StandInActor(), envs)
    assert len(steps) == 9 and len(set(batch.non_tensor_batch["uid"])) == 2 and len(batch) == 12


def test_after_the_last_try_all_is_kept_or_an_error_says_so():
    with managed() as envs:
        play = envs.envs.step

        def step(actions: Any) -> Any:
            shown, _, _, infos = play(actions)
            return shown, [0.0] * 4, [False] * 4, infos

        envs.envs.step = step  # type: ignore[method-assign]
        batch = dynamic(2).multi_turn_loop(prompts(), StandInActor(), envs)
        assert len(set(batch.non_tensor_batch["uid"])) == 2
        with pytest.raises(CollectError, match="max_num_gen_batches"):
            dynamic(2, "raise").multi_turn_loop(prompts(), StandInActor(), envs)
        assert len(dynamic(2, "raise").multi_turn_loop(prompts(), StandInActor(), envs, False)) == 16


def test_rows_of_a_batch_are_dicts():
    import torch
    from verl import DataProto

    batch = DataProto.from_dict(tensors={"a": torch.arange(4).view(2, 2)}, non_tensors={"b": np.array(["x", "y"])})
    rows = collecting.to_list_of_dict(batch)
    assert rows[1]["a"].tolist() == [2, 3] and rows[1]["b"] == "y" and len(rows) == 2


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"env": {"max_steps": 0}}, "max_steps"),
        ({"data": {"truncation": "top"}}, "truncation"),
        ({"algorithm": {"filter_groups": {"on_exhausted": "give up"}}}, "on_exhausted"),
    ],
)
def test_keys_that_cannot_work_are_named(wrong, match):
    with pytest.raises(ConfigError, match=match):
        collector_of(config(**wrong))


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
    assert set(objects) >= {*COLUMNS, "multi_modal_inputs"} and set(batch.batch.keys()) >= TENSORS and len(batch) == 12
    assert (batch.batch["prompts"] == processor.image_token_id).sum(-1).tolist() == [TOKENS] * 12
    for inputs, seen in zip(objects["multi_modal_inputs"], objects["anchor_obs"], strict=True):
        assert inputs["pixel_values"][0].tolist() == seen.astype(np.float32).mean((0, 1)).tolist()
    before, image, after = actor.chats[0]  # of the last turn
    assert image["image"] is actor.shown[0][0] and len(actor.shown[0]) == 1
    assert before["text"].count("an image") == 2 and "image>" not in before["text"] + after["text"]
