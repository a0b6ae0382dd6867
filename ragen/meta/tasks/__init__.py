"""Environments with tasks; importing this module registers them with gymnasium under ``ragen/...``.

Each takes its task from ``reset(options={"task": ...})``, and samples one from its own generator if none is given. Its
class defines how tasks are sampled (``sample_task``), so that the main process can sample them once for all copies.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

_HERE = "ragen.meta.tasks"

IDS = {
    "ragen/Bandit-v0": ("toy:Bandit", 100),
    "ragen/PointRobot-v0": ("toy:PointRobot", 60),
    "ragen/SparsePointRobot-v0": ("toy:SparsePointRobot", 60),
    "ragen/Wind-v0": ("toy:Wind", 75),
    "ragen/HalfCheetahVel-v0": ("locomotion:HalfCheetahVel", 200),
    "ragen/HalfCheetahDir-v0": ("locomotion:HalfCheetahDir", 200),
    "ragen/AntDir-v0": ("locomotion:AntDir", 200),
}
"""The class of each environment, and its number of steps per episode."""

for _name, (_place, _steps) in IDS.items():
    if _name not in registry:
        register(_name, entry_point=f"{_HERE}.{_place}", max_episode_steps=_steps)
