"""Configurations, and whole episodes played from them, to compare one way of stepping with another."""

from __future__ import annotations

import copy
import os
import pkgutil
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from envlanes.ragen.manager import RolloutManager
from envlanes.ragen.settings import ManagerSettings, engine_settings, read_settings

SEED = 1000
BACKEND = "RAGEN_TESTS_BACKEND"  # environment variable: the kind of workers, for programs that tests start too
PATIENT = {"step_timeout": 60, "reset_timeout": 60, "startup_timeout": 60, "crash_report_dir": None}


def config(tags: Mapping[str, Any], groups: Iterable[tuple[str, int]], **es_manager: Any) -> dict[str, Any]:
    """A whole configuration: what ``custom_envs`` says of each tag, tags with their number of groups, settings."""
    names, counts = zip(*groups, strict=True)
    size = es_manager.pop("group_size", 1)
    part = {
        "env_groups": sum(counts),
        "group_size": size,
        "env_configs": {"tags": list(names), "n_groups": list(counts)},
    }
    custom = {tag: {"max_actions_per_traj": 30, **settings} for tag, settings in tags.items()}
    return {
        "es_manager": {**usual(), **es_manager, "train": part, "val": copy.deepcopy(part)},
        "custom_envs": custom,
        "seed": {"train": SEED, "val": SEED},
    }


def walks(**es_manager: Any) -> dict[str, Any]:
    """Eight environments on three workers of nodes."""
    settings = {"use_multiprocessing": True, "backend": "ray", "max_workers": 3, **es_manager}
    return config({"Good": {"env_type": "support.faulty_envs:Walk"}}, [("Good", 8)], **settings)


def backend() -> str:
    """The kind of workers that is being tested."""
    return os.environ.get(BACKEND, "process")


def usual() -> dict[str, Any]:
    """Settings of ``es_manager`` that tests do not care about."""
    return {"max_workers": 2, "backend": backend(), **PATIENT}


def inputs(env_ids: Iterable[int], turn: int) -> list[dict[str, Any]]:
    """Answers of a model: one to three actions, never two environments alike."""
    return [
        {
            "env_id": env_id,
            "actions": ["ab"[(env_id + turn + i) % 2] * (i + 1) for i in range(1 + (env_id + turn) % 3)],
            "llm_response": f"response {turn}",
            "llm_raw_response": f"raw {turn}",
        }
        for env_id in env_ids
    ]


def play(
    manager: EnvStateManager,
    turns: int = 4,
    before_turn: Callable[[int], object] | None = None,
    seed: int | None = None,
) -> list[dict[str, Any]]:
    """Play an episode; what the manager has to say of it in the end."""
    active = manager.reset(seed)
    for turn in range(turns):
        if before_turn is not None:
            before_turn(turn)
        active = manager.step(inputs([cache["env_id"] for cache in active], turn))
    return manager.get_rollout_states()


def play_answers(
    manager: EnvStateManager,
    answers: Callable[[dict[str, Any], int], list[str]],
    turns: int,
    before_turn: Callable[[int], object] = lambda turn: None,
) -> Any:
    """Play an episode with what a player answers to a cache in a turn; what the manager has to say of it, frozen."""
    active = manager.reset()
    for turn in range(turns):
        before_turn(turn)
        active = manager.step(
            [
                {"env_id": c["env_id"], "actions": answers(c, turn), "llm_response": "", "llm_raw_response": ""}
                for c in active
            ]
        )
    return freeze(manager.get_rollout_states())


def kill_workers(manager: EnvStateManager) -> None:
    """Kill every worker that the manager has; there has to be one."""
    pids = [lane.pid for lane in manager.lane_stats() if lane.lane != "main" and lane.pid]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def sequential(
    configuration: dict[str, Any], turns: int = 4, episodes: int = 1, manager_class: type[Any] | None = None
) -> list[list[dict[str, Any]]]:
    """The reference: the same episodes, played in this process."""
    settings = {**configuration["es_manager"], "use_multiprocessing": False}
    with (manager_class or EnvStateManager)({**configuration, "es_manager": settings}) as manager:
        return [freeze(play(manager, turns)) for _ in range(episodes)]


def freeze(value: Any) -> Any:
    """A rollout as plain values that ``==`` compares in full, images and types included."""
    if isinstance(value, dict):
        return {key: freeze(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [freeze(item) for item in value]
    if hasattr(value, "tobytes") and (hasattr(value, "size") or isinstance(value, np.generic)):
        return type(value).__name__, getattr(value, "mode", None), getattr(value, "size", None), value.tobytes()
    if isinstance(value, float) and value != value:
        return "nan"
    return value


def errors(cache: dict[str, Any]) -> list[str | None]:
    """For each turn that was played, what its ``env_error`` says."""
    return [turn["info"].get("env_error") for turn in cache["history"] if "info" in turn]


TYPES: dict[str, Any] = {}  # environments' classes by their names, beside those that a path names


def register_env(name: str, env_class: Any) -> None:
    TYPES[name] = env_class


class EnvStateManager(RolloutManager):
    """A manager of the environments of a :func:`config`."""

    def _read_settings(self, config: Any, mode: str) -> ManagerSettings:
        entry = config["custom_envs"].__getitem__
        return read_settings(
            ManagerSettings, config, entry, mode, resolve, lambda _: engine_settings(config["es_manager"])
        )

    @staticmethod
    def _handle_mm_state(observation: list[Any]) -> Any:
        return observation  # as arrays: pictures are of another library


def resolve(env_type: str, where: str, fields: Mapping[str, Any]) -> tuple[Any, Any]:
    """The class of an environment, and that of its configuration."""
    env_class = TYPES[env_type] if env_type in TYPES else pkgutil.resolve_name(env_type)
    return env_class, getattr(env_class, "config_class", None) or dict


class Holder:
    """Has a manager, in whichever process it is made."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.manager = EnvStateManager(settings)

    def play(self, turns: int) -> list[dict[str, Any]]:
        return freeze(play(self.manager, turns))

    def workers(self) -> int:
        return sum(lane.pid is not None for lane in self.manager.lane_stats()[1:])
