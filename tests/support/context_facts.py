"""Rollouts of our own words for a context manager, and what is written down of what it makes of them.

RAGEN's context manager and ours are given the same, so this module imports nothing of either: with RAGEN's it is run
in a process of its own (``python context_facts.py up25|up26 TOKENIZER OUT``), whose package ``ragen`` is RAGEN's. Of
texts and token ids digests are kept.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]

GROUPS, SIZE, TURNS = 2, 2, 4
TAGS = {"Pond": "frozen_lake", "Depot": "sokoban"}
MOVES = ("Left", "Down", "Right", "Up")
WINDOWS = {
    "up25": {"window2": {"agent_proxy.max_context_window": 2}},
    "up26": {
        f"{mode}{window}": {"agent_proxy.context_window_mode": f"{mode}_turn", "agent_proxy.max_context_window": window}
        for mode in ("limited_multi", "single")
        for window in (1, 2)
    }
    | {
        f"house_single{window}{'' if thinks else '_nothink'}": {
            "custom_envs.Depot.env_type": "alfworld",
            "agent_proxy.context_window_mode": "single_turn",
            "agent_proxy.max_context_window": window,
            "agent_proxy.enable_think": thinks,
        }
        for window, thinks in ((-1, True), (1, True), (3, True), (3, False))
    },
}
SETTINGS = {
    "plain": {},
    "nothink": {"agent_proxy.enable_think": False},
    "sep": {"agent_proxy.action_sep": ";", "agent_proxy.max_actions_per_turn": 1},
    "turn_scores": {"agent_proxy.use_turn_scores": True},
    "learn_all": {"enable_response_mask": False},
    **{
        f"{method}_{grouping}": {
            "agent_proxy.reward_normalization.method": method,
            "agent_proxy.reward_normalization.grouping": grouping,
        }
        for method in ("mean_std", "mean", "asym_clip")
        for grouping in ("state", "batch", "inductive")
    },
}
READINGS = {
    "think": {},
    "one": {"agent_proxy.max_actions_per_turn": 1},
    "semicolon": {"agent_proxy.action_sep": ";", "agent_proxy.max_actions_per_turn": 2},
    "nothink": {"agent_proxy.enable_think": False},
}


def settings_of(version: str) -> dict[str, Record]:
    """The overrides of each setting that a generation has."""
    return SETTINGS | WINDOWS[version]


def config(overrides: Record) -> Record:
    """A whole configuration in RAGEN's form, with instructions of our own."""
    part = {
        "env_groups": GROUPS,
        "group_size": SIZE,
        "env_configs": {"tags": list(TAGS), "n_groups": [1, 1]},
    }
    whole: Record = {
        "seed": {"train": 7, "val": 8},
        "agent_proxy": {
            "context_window_mode": "full",
            "max_context_window": -1,
            "batch_adjust_mode": "copy",
            "max_turn": TURNS,
            "action_sep": "||",
            "max_actions_per_turn": 3,
            "use_turn_scores": False,
            "enable_think": True,
            "reward_normalization": {"grouping": "state", "method": "identity"},
        },
        "es_manager": {"format_penalty": -0.1, "train": part, "val": copy.deepcopy(part)},
        "enable_response_mask": True,
        "custom_envs": {
            tag: {
                "env_type": env_type,
                "max_actions_per_traj": 8,
                "env_instruction": f"Walk about the {tag.lower()} until it is done.",
                "max_tokens": 60,
                "env_config": {},
            }
            for tag, env_type in TAGS.items()
        },
        "actor_rollout_ref": {
            "model": {"path": "qwen-small"},
            "rollout": {"response_length": 200, "max_model_len": 50_000},
        },
    }
    for key, value in overrides.items():
        *path, last = key.split(".")
        section = whole
        for name in path:
            section = section[name]
        section[last] = value
    return whole


def replies() -> list[str]:
    """What models write behind the tag that opens a reply: well and badly formed, of our own words."""
    draws, found = random.Random(5), []
    for _ in range(60):
        moves = [draws.choice((*MOVES, "up", " Swim ", "")) for _ in range(draws.randint(0, 4))]
        thought = draws.choice(("", "Hm.", "two\nlines", "Übung macht 🙂"))
        answer = draws.choice(("||", " || ", ";", ",")).join(moves)
        found.append(f"{thought}</think><answer>{answer}</answer>")
        found.append(f" {thought} </think> <answer> {answer} </answer>{draws.choice(('', ' bye', '<|im_end|>'))}")
        found.append(f"{answer}</answer>")
        found.append(draws.choice(("", "no tags", "<answer>Up", "</think><answer></answer>", "a</think>b")))
    return found


def rollouts(overrides: Record) -> list[Record]:
    """Four finished rollouts of two groups, as an environment manager hands them on."""
    found, draws = [], random.Random(11)
    thinks = overrides.get("agent_proxy.enable_think", True)
    separator = overrides.get("agent_proxy.action_sep", "||")
    for env_id in range(GROUPS * SIZE):
        tag, penalty, history, left = list(TAGS)[env_id // SIZE], 0.0, [], 8
        for turn in range(TURNS - env_id % SIZE):
            moves = [draws.choice(MOVES) for _ in range(draws.randint(0, 3))]
            answer = f"<answer>{f' {separator} '.join(moves)}</answer>"
            reply = f"<think>Turn {turn}, {len(moves)} steps.</think>{answer}" if thinks else answer
            reward = round(draws.uniform(-1, 1), 2) if moves else 0
            penalty += 0 if moves else -0.1
            history.append(
                {
                    "state": f"place {draws.randint(0, 99)} of\nenv {env_id}",
                    "actions_left": left,
                    "actions": [MOVES.index(move) + 1 for move in moves],
                    "reward": reward,
                    "info": {"success": turn == 2, "action_is_valid": bool(moves)},
                    "llm_response": reply,
                    "llm_raw_response": reply,
                }
            )
            left -= len(moves)
        metrics = {"action_is_valid": [float(entry["info"]["action_is_valid"]) for entry in history]}
        history.append({"state": "the end", "actions_left": left, "metrics": metrics})
        found.append(
            {
                "env_id": env_id,
                "group_id": env_id // SIZE,
                "tag": tag,
                "penalty": penalty,
                "history": history,
                "metrics": {f"{tag}/success": float(env_id % 2), f"{tag}/num_actions": 8 - left, f"{tag}/pass@2": 1.0},
            }
        )
    houses = [tag for tag in TAGS if overrides.get(f"custom_envs.{tag}.env_type") == "alfworld"]
    return [_furnished(rollout) if rollout["tag"] in houses else rollout for rollout in found]


def _furnished(rollout: Record) -> Record:
    """A rollout whose states are in the form of ALFWorld's, and which says where a turn had no valid action."""
    env_id, draws = rollout["env_id"], random.Random(rollout["env_id"])
    for turn, entry in enumerate(rollout["history"]):
        names = draws.choices(("drawer", "lamp", "shelf"), k=30 if turn else 3)
        seen = [f"a {name} {draws.randint(1, 9)}" for name in names]
        words = f"There is {', '.join(seen)}."
        if turn == 0:
            words = f"-= Welcome to TextWorld, ALFRED! =-\n\n{words}\n \n"
            words += "Your task is to: light the lamp." if env_id % SIZE == 0 else "Find out what is wanted."
        if turn == 2:
            words += "\n\n\nYou have 7 actions left.\nAlways output: nothing.\nMax response length: none."
        listed = f"\n\nAdmissible actions: [{', '.join(MOVES[: turn + 1])}]" if turn != 3 else ""
        entry["state"] = words + listed
        if turn and not rollout["history"][turn - 1]["actions"]:
            entry["manager_invalid_action"] = True
    rollout["history"][1]["llm_response"] = "a reply without tags "
    return rollout


def asked(rollout: Record, turns: int) -> Record:
    """A rollout before its next reply, after so many turns."""
    history = copy.deepcopy(rollout["history"][: turns + 1])
    kept = ("state", "actions_left", "manager_invalid_action")
    history[-1] = {key: history[-1][key] for key in kept if key in history[-1]}
    return {key: rollout[key] for key in ("env_id", "group_id", "tag", "penalty")} | {"history": history}


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()[:16]


# What is written down


def prompt_facts(manager: Any, rollout: Record, turns: int) -> Record:
    """The prompt of one reply."""
    batch = manager.get_lm_inputs([asked(rollout, turns)], prepare_for_update=False)
    return {**_texts(batch, 0), "ids": digest(_ids(batch, 0))}


def batch_facts(manager: Any, tokenizer: Any, states: list[Record]) -> Record:
    """The batch that is learnt from."""
    batch = manager.formulate_rollouts(copy.deepcopy(states))
    rows = [_row(batch, tokenizer, row) for row in range(len(batch.batch["input_ids"]))]
    metrics = {key: float(value) for key, value in batch.meta_info["metrics"].items()}
    columns = {key: [str(value.dtype), value.ndim] for key, value in batch.batch.items()}
    return {"rows": rows, "metrics": metrics, "columns": columns}


def read_facts(manager: Any, text: str) -> list[str]:
    """What a reply is read as, its tidied text and its actions; ``text`` stands behind the opening tag."""
    import numpy as np
    from verl import DataProto

    outputs = DataProto()
    outputs.non_tensor_batch = {"env_ids": np.arange(1), "response_texts": [text]}
    (found,) = manager.get_env_inputs(outputs)
    return [digest(found["llm_response"]), digest(found["actions"])]


def _row(batch: Any, tokenizer: Any, row: int) -> Record:
    pad = int((batch.batch["attention_mask"][row] == 0).sum())
    mask, said, spans = batch.batch["loss_mask"][row].tolist(), [], []
    start = None
    for place, learnt in enumerate([*mask, 0]):
        if learnt and start is None:
            start = place
        elif not learnt and start is not None:
            spans.append([start - pad, place - pad])
            said.append(_reply(tokenizer.decode(batch.batch["responses"][row][start:place].tolist())))
            start = None
    scores = {key: float(batch.batch[key][row].double().sum()) for key in ("rm_scores", "original_rm_scores")}
    places = [place - pad for place, score in enumerate(batch.batch["rm_scores"][row].tolist()) if score]
    texts = {**_texts(batch, row), "ids": digest(_ids(batch, row))}
    return {**texts, "spans": digest(spans), "said": digest(said), "scores": scores, "score_places": digest(places)}


def _reply(text: str) -> str:
    """A span of learnt tokens without the tokens around the reply, of which RAGEN learns some."""
    for piece in ("<|im_start|>", "assistant\n", "<|im_end|>"):
        text = text.replace(piece, "")
    return text.strip()


def _texts(batch: Any, row: int) -> Record:
    return {"messages": digest(list(batch.non_tensor_batch["messages_list"][row]))}


def _ids(batch: Any, row: int) -> list[int]:
    return batch.batch["input_ids"][row][batch.batch["attention_mask"][row].bool()].tolist()


def settings_facts(manager: Any, tokenizer: Any, overrides: Record) -> Record:
    """All that is written down of one setting."""
    states = rollouts(overrides)
    plays = [(state, turns) for state in states[1:3] for turns in (0, 1, 2)]
    if "custom_envs.Depot.env_type" in overrides:
        plays += [(states[2], 3), *((states[3], turns) for turns in (0, 1, 2))]
    prompts = [prompt_facts(manager, *play) for play in plays]
    return {"prompts": prompts, "batch": batch_facts(manager, tokenizer, states)}


def recorded(version: str, tokenizer_folder: str) -> Iterator[Record]:
    """The facts of the context manager that this process imports as ``ragen``'s, which has to be RAGEN's own."""
    from omegaconf import OmegaConf
    from transformers import PreTrainedTokenizerFast

    from ragen.llm_agent.ctx_manager import ContextManager

    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    tokenizer.name_or_path = "qwen-small"  # what RAGEN tells a model's turn tokens by

    def manager(overrides: Record) -> Any:
        return ContextManager(OmegaConf.create(config(overrides)), tokenizer, mode="train")

    for name, overrides in settings_of(version).items():
        facts = settings_facts(manager(overrides), tokenizer, overrides)
        yield {"version": version, "setting": name, **facts}
    for name, overrides in READINGS.items():
        reader = manager(overrides)
        yield {"version": version, "reading": name, "replies": [read_facts(reader, text) for text in replies()]}


if __name__ == "__main__":
    lines = [json.dumps(record) for record in recorded(sys.argv[1], sys.argv[2])]
    Path(sys.argv[3]).write_text("\n".join(lines) + "\n", "utf-8")
