"""The engine: each environment lives in one process, plays its turns there, and survives failures.

    from envlanes import Engine, EnvSpec, Settings

    specs = [EnvSpec.of(MyEnv, MyConfig(), env_id=i, game=MyGame()) for i in range(64)]
    with Engine(specs, Settings(use_lanes="auto")) as engine:
        observations = engine.reset({i: seed for i in range(64)})            # by env_id; or EnvFailed
        results = engine.play({i: "Up" for i in range(64)})                  # by env_id; or EnvFailed; committed

``docs/architecture.md`` explains the design. Nothing here imports torch, verl, hydra, ray or transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach
from envlanes.version import __version__

if TYPE_CHECKING:
    from envlanes.engine import Engine
    from envlanes.env_set import EnvSet
    from envlanes.environments import EnvFailed
    from envlanes.episode.game import Game, Options
    from envlanes.episode.global_rng import EnvRng, outer_state_kept
    from envlanes.episode.journal import Change
    from envlanes.episode.spec import EnvSpec
    from envlanes.interrupts import holds_interrupts
    from envlanes.settings import Mode, Settings
    from envlanes.stats import LaneStats, Work
    from envlanes.workers.handle import WorkerKind

__all__ = [
    "Change",
    "Engine",
    "EnvFailed",
    "EnvRng",
    "EnvSet",
    "EnvSpec",
    "Game",
    "LaneStats",
    "Mode",
    "Options",
    "Settings",
    "Work",
    "WorkerKind",
    "__version__",
    "holds_interrupts",
    "outer_state_kept",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Change": "episode.journal",
        "Engine": "engine",
        "EnvFailed": "environments",
        "EnvRng": "episode.global_rng",
        "EnvSet": "env_set",
        "EnvSpec": "episode.spec",
        "Game": "episode.game",
        "WorkerKind": "workers.handle",
        "LaneStats": "stats",
        "Mode": "settings",
        "Options": "episode.game",
        "Settings": "settings",
        "Work": "stats",
        "holds_interrupts": "interrupts",
        "outer_state_kept": "episode.global_rng",
    },
)
