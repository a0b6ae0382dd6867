"""Facts of RAGEN's own runs, as digests and numbers: ``tests/data/reference``, which every clone has.

``tests/data/reference/README.md`` tells what each file holds and what it was taken from.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parents[1] / "data" / "reference"
VERSIONS = ("up25", "up26")

Record = dict[str, Any]

DEFAULTS_OF_UP26 = {"frozen_lake": {"p": 0.9, "success_rate": 0.8}, "rubikscube": {"legacy_b_move": True}}
ADDED_INFO = {"raw_reward", "manager_invalid_action"}  # raw_reward: there the sum over the turn, here the last action's
ADDED_METRICS = ADDED_INFO | {"episodic_return", "final_score", "max_tile"}


def digest(value: Any) -> str:
    """16 hexadecimal digits; floats count to the last bit, 1 is not 1.0, and keys keep their order."""
    text = json.dumps(value, default=_plain, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def shown(observation: Any) -> Any:
    """An observation to compare: a text itself, of an image its shape and type, since the art is our own."""
    if isinstance(observation, np.ndarray):
        return [list(observation.shape), str(observation.dtype)]
    return observation


def step_facts(observation: Any, render: Any, reward: Any, done: bool, info: Record) -> list[Any]:
    """What a step of an environment gave."""
    return [shown(observation), shown(render), reward, done, info]


def records(name: str) -> list[Record]:
    """The lines of a file of facts."""
    return list(_lines(DATA / f"{name}.jsonl.gz"))


@cache
def tags() -> dict[tuple[str, str], Record]:
    """The facts of one environment at a time, by generation and tag."""
    return {(record["version"], record["tag"]): record for record in records("envs") if "tag" in record}


def numbers(kind: str) -> Record:
    """The one record of ``envs`` of this kind: the numbers that data sets are made of."""
    return next(record for record in records("envs") if record.get("kind") == kind)


def write_data(folder: Path) -> dict[str, str]:
    """Data sets of our own words and the recorded numbers; the paths by the names that configurations have for them."""
    rows = numbers("countdown")["rows"]
    puzzles = [json.dumps({"nums": numbers, "target": target}) for numbers, target, _ in rows]
    problems = [
        json.dumps({"query": question(index), "response": f"The answer is: {answer}"})
        for index, answer in enumerate(numbers("metamathqa")["answers"])
    ]
    paths = {"countdown": folder / "countdown.jsonl", "metamathqa": folder / "metamathqa.jsonl"}
    for name, lines in (("countdown", puzzles), ("metamathqa", problems)):
        paths[name].write_text("\n".join(lines) + "\n", "utf-8")
    return {name: str(path) for name, path in paths.items()}


def question(index: int) -> str:
    """What stands here for a question of the recorded data set, whose answer alone was kept."""
    return f"Which number belongs to place {index}?"


def env_fields(version: str, record: Record, data: dict[str, str]) -> Record:
    """``env_config`` of a tag, as the recorded environment had it."""
    fields = dict(record["env_config"])
    if version == "up26":
        fields = DEFAULTS_OF_UP26.get(record["env_type"], {}) | fields
    if "data" in record:
        fields[record["data"]] = data[record["env_type"]]
    return fields


# A manager's records, of the recordings and of ours


def begun(tag: str, group_id: int, seed: int, penalty: float, entry: Record) -> list[Any]:
    """An environment after a reset; ``entry`` is the open entry of its history."""
    return [tag, group_id, seed, penalty, *_open(entry)]


def played(turn: Record, status: Record, penalty: float, entry: Record) -> list[Any]:
    """A turn; ``turn`` has ``executed, reward, info``, and ``entry`` is the open entry after it."""
    return [turn["executed"], turn["reward"], turn["info"], status, penalty, *_open(entry)]


def ended(record: Record, status: Record) -> list[Any]:
    """An episode: ``record`` has ``metrics, turn_metrics, history_len, history_keys, penalty``."""
    keys = ("metrics", "turn_metrics", "history_len", "history_keys", "penalty")
    return [*(record[key] for key in keys), status]


def _open(entry: Record) -> list[Any]:
    images = [[image.height, image.width, 3, image.mode] for image in entry.get("images", ())]
    return [entry["state"], entry["actions_left"], images]


def turn_of_2025(turn: Record) -> Record:
    """A turn without what RAGEN 2026 adds to it."""
    return turn | {"info": {key: value for key, value in turn["info"].items() if key not in ADDED_INFO}}


def end_of_2025(record: Record) -> Record:
    """An episode without what RAGEN 2026 adds to it."""
    turns = record["turn_metrics"]
    empty = {key for key, values in turns.items() if not values}  # where float() failed
    added = ADDED_METRICS | empty
    keys = [sorted(set(keys) - {"manager_invalid_action"}) for keys in record["history_keys"]]
    played = record["history_len"] - 1
    metrics = {
        key.replace("/traj_sum/", "/"): value / played if "/traj_sum/" in key else value
        for key, value in record["metrics"].items()
    }
    return record | {
        "metrics": {key: value for key, value in metrics.items() if key.partition("/")[2] not in added},
        "turn_metrics": {key: values for key, values in turns.items() if key not in ADDED_INFO | empty},
        "history_keys": keys,
    }


def _lines(path: Path) -> Iterator[Record]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _plain(value: Any) -> Any:
    """A value of numpy as Python has it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no digest")
