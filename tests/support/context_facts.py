"""Rollouts of our own words for a context manager, and what is written down of what it makes of them.

RAGEN's context managers were given the same. Of texts digests are kept.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from typing import Any

from omegaconf import OmegaConf

Record = dict[str, Any]

GROUPS, SIZE, TURNS = 2, 2, 4
TAGS = {"Pond": "frozen_lake", "Depot": "sokoban"}
MOVES = ("Left", "Down", "Right", "Up")
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
    made = OmegaConf.create(whole)
    for key, value in overrides.items():
        OmegaConf.update(made, key, value)
    return OmegaConf.to_container(made)


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
    return found


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()[:16]


# What is written down


def batch_facts(manager: Any, tokenizer: Any, states: list[Record]) -> Record:
    """The batch that is learnt from."""
    batch = manager.formulate_rollouts(copy.deepcopy(states))
    rows = [_row(batch, tokenizer, row) for row in range(len(batch.batch["input_ids"]))]
    metrics = {key: float(value) for key, value in batch.meta_info["metrics"].items()}
    return {"rows": rows, "metrics": metrics}


def read_facts(manager: Any, text: str) -> list[str]:
    """What a reply is read as, its tidied text and its actions; ``text`` stands behind the opening tag."""
    import numpy as np
    from verl import DataProto

    outputs = DataProto()
    outputs.non_tensor_batch = {"env_ids": np.arange(1), "response_texts": [text]}
    (found,) = manager.get_env_inputs(outputs)
    return [digest(found["llm_response"]), digest(found["actions"])]


def _row(batch: Any, tokenizer: Any, row: int) -> Record:
    mask, said, start = batch.batch["loss_mask"][row].tolist(), [], None
    for place, learnt in enumerate([*mask, 0]):
        if learnt and start is None:
            start = place
        elif not learnt and start is not None:
            said.append(_reply(tokenizer.decode(batch.batch["responses"][row][start:place].tolist())))
            start = None
    return {"said": digest(said), "score": float(batch.batch["rm_scores"][row].double().sum())}


def _reply(text: str) -> str:
    """A span of learnt tokens without the tokens around the reply, of which RAGEN learns some."""
    for piece in ("<|im_start|>", "assistant\n", "<|im_end|>"):
        text = text.replace(piece, "")
    return text.strip()
