"""The engine: each environment lives in one process, plays its turns there, and survives failures.

    from ragen.parallel import EnvEngine, EnvSpec, Settings
    from ragen.parallel.episode.turn import Turn

    specs = [EnvSpec.of(MyEnv, MyConfig(), env_id=i) for i in range(64)]
    with EnvEngine(specs, Settings(use_lanes="auto")) as engine:
        observations = engine.reset({i: seed for i in range(64)})            # by env_id; or EnvFailed
        results = engine.play({i: Turn(("Up",), 10) for i in range(64)})     # by env_id; or EnvFailed; committed

``docs/architecture.md`` explains the design. Nothing here imports torch, verl, hydra, ray or transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ragen.lazy import attach

if TYPE_CHECKING:
    from ragen.parallel.engine import EnvEngine
    from ragen.parallel.env_set import EnvSet
    from ragen.parallel.environments import EnvFailed
    from ragen.parallel.episode.game import Game, Options
    from ragen.parallel.episode.global_rng import EnvRng, PythonRng, outer_state_kept
    from ragen.parallel.episode.journal import Change
    from ragen.parallel.episode.spec import EnvSpec
    from ragen.parallel.interrupts import holds_interrupts
    from ragen.parallel.lanes.handle import LaneKind
    from ragen.parallel.settings import Mode, Settings
    from ragen.parallel.stats import LaneStats, Work

__all__ = [
    "Change",
    "EnvEngine",
    "EnvFailed",
    "EnvRng",
    "EnvSet",
    "EnvSpec",
    "Game",
    "LaneKind",
    "LaneStats",
    "Mode",
    "Options",
    "PythonRng",
    "Settings",
    "Work",
    "holds_interrupts",
    "outer_state_kept",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Change": "episode.journal",
        "EnvEngine": "engine",
        "EnvFailed": "environments",
        "EnvRng": "episode.global_rng",
        "EnvSet": "env_set",
        "EnvSpec": "episode.spec",
        "Game": "episode.game",
        "LaneKind": "lanes.handle",
        "LaneStats": "stats",
        "Mode": "settings",
        "Options": "episode.game",
        "PythonRng": "episode.global_rng",
        "Settings": "settings",
        "Work": "stats",
        "holds_interrupts": "interrupts",
        "outer_state_kept": "episode.global_rng",
    },
)
