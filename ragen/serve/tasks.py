"""The tasks and splits of OpenEnv's Task API.

The splits are the two modes, ``train`` and ``val``. A task is an initial state, determined by mode and seed: the index
of a task is its seed. Every environment thus has as many tasks as there are seeds; one with a data set starts again at
the first row after the last. ``reset(split=..., index=...)`` plays a task, and so does a reset with all fields of a
task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragen.errors import InputError, in_short
from ragen.seeds import SEED_LIMIT

SPLITS = {"train": "train", "val": "validation"}
"""OpenEnv's type of each split."""
CALLS = ("tasks", "num_tasks", "task", "task_range")
PREVIEW, LONGEST_RANGE = 1000, 10_000
"""Number of tasks that ``tasks`` lists, and maximum length of a range."""


def tag_of(name: str, tags: Sequence[str]) -> str | None:
    """The tag for a name in an address, ignoring case if that is unambiguous; None if there is none."""
    alike = [tag for tag in tags if tag == name] or [tag for tag in tags if tag.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def splits() -> list[dict[str, str]]:
    """The splits, as OpenEnv describes them."""
    return [{"name": name, "type": kind} for name, kind in SPLITS.items()]


def answer(call: str, env: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a call about the tasks of an environment.

    Args:
        call: ``"tasks"``, ``"num_tasks"``, ``"task"`` or ``"task_range"``.
        env: Tag of the environment.
        asked: The request's body.

    Raises:
        InputError: The body is invalid, or the range too long.
        IndexError: There is no task with this index.
    """
    split = asked.get("split")
    if not isinstance(split, str) or split not in SPLITS:
        raise InputError(f"split is {in_short(split)}; expected one of {', '.join(SPLITS)}.")
    every = range(SEED_LIMIT)
    if call == "num_tasks":
        return {"num_tasks": len(every)}
    if call == "task":
        index = _number("index", asked.get("index"))
        if not 0 <= index < len(every):
            raise IndexError(index)
        return {"task": _task(env, split, index)}
    if call == "tasks":
        return {"tasks": [_task(env, split, index) for index in every[:PREVIEW]], "env_name": env}
    start, stop = (None if asked.get(name) is None else _number(name, asked[name]) for name in ("start", "stop"))
    chosen = every[start:stop]
    if len(chosen) > LONGEST_RANGE:
        raise InputError(f"{len(chosen)} tasks are asked for; a range has at most {LONGEST_RANGE}.")
    return {"tasks": [_task(env, split, index) for index in chosen]}


def _number(name: str, value: Any) -> int:
    if type(value) is not int:
        raise InputError(f"{name} is {in_short(value)}; expected a whole number.")
    return value


def _task(env: str, split: str, index: int) -> dict[str, Any]:
    return {"id": f"{env}-{split}-{index}", "env": env, "split": split, "index": index, "seed": index}
