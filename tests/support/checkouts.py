"""Small checkouts of RAGEN in the shapes of both generations: their own games, manager and configurations."""

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BASE = """
class BaseEnv:
    def close(self):
        pass


class BaseLanguageBasedEnv(BaseEnv):
    pass
"""

UTILS = """
def register_resolvers():
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("mul", lambda x, y: x * y, replace=True)
"""

WALK = """
import random
from dataclasses import dataclass, field

from ragen.env.base import BaseLanguageBasedEnv


@dataclass
class WalkConfig:
    length: int = 4
    action_lookup: dict = field(default_factory=lambda: {1: "Left", 2: "Right"})


class WalkEnv(BaseLanguageBasedEnv):
    def __init__(self, config):
        self.config = config

    def reset(self, seed=None, mode=None):
        self.place = random.Random(seed).randrange(self.config.length)
        return self.render()

    def step(self, action):
        self.place += 2 * action - 3
        done = self.place >= self.config.length
        info = {"success": done, "place": self.place, "raw_reward": 0.5, "score": self.place}
        return self.render(), 1.0 if done else -0.1, done, info

    def render(self, mode=None):
        return "_" * max(0, self.place) + "P"
"""

COUNTER = """
from dataclasses import dataclass

from ragen.env.base import BaseLanguageBasedEnv


@dataclass
class CountedConfig:
    greeting: str = "hello"


class CountedEnv(BaseLanguageBasedEnv):
    built = 0

    def __init__(self, config):
        self.config = config
        self.number = CountedEnv.built
        CountedEnv.built += 1

    def reset(self, seed=None, mode=None):
        self.said = f"{self.config.greeting} {seed} {self.number}"

    def step(self, action):
        self.said = action
        return action, 0.0, action == "yes", {"success": action == "yes"}

    def render(self, mode=None):
        return self.said
"""

ENVS = """
from .walk.env import WalkEnv, WalkConfig
from .counted.env import CountedEnv, CountedConfig

REGISTERED_ENVS = {"walk": WalkEnv, "counted": CountedEnv}
REGISTERED_ENV_CONFIGS = {"walk": WalkConfig, "counted": CountedConfig}

try:
    from .absent.env import AbsentEnv, AbsentConfig
    REGISTERED_ENVS["absent"] = AbsentEnv
    REGISTERED_ENV_CONFIGS["absent"] = AbsentConfig
except ImportError:
    pass
"""

MANAGER = '''
from dataclasses import dataclass, field

import numpy as np
from ragen.env import REGISTERED_ENV_CONFIGS, REGISTERED_ENVS
from ragen.utils import register_resolvers

register_resolvers()


@dataclass
class EnvStatus:
    truncated: bool = False
    terminated: bool = False
    num_actions: int = 0
    rewards: list = field(default_factory=list)
    seed: int = None


class EnvStateManager:
    """One after the other; what the class of this generation shows of a turn."""

    def __init__(self, config, mode="train"):
        self.sys_config, self.mode, self.config = config, mode, config.es_manager[mode]
        self.seed_counter = 0
        self._init_envs()

    def _init_envs(self):
        self.envs = []
        for tag, groups in zip(self.config.env_configs.tags, self.config.env_configs.n_groups):
            entry = self.sys_config.custom_envs[tag]
            for _ in range(groups * self.config.group_size):
                config = REGISTERED_ENV_CONFIGS[entry.env_type](**(entry.env_config or {}))
                self.envs.append({
                    "tag": tag, "env_id": len(self.envs), "group_id": len(self.envs) // self.config.group_size,
                    "env": REGISTERED_ENVS[entry.env_type](config), "config": config, "status": EnvStatus(),
                    "max_actions_per_traj": entry.max_actions_per_traj,
                })

    def reset(self, seed=None):
        base, given = self.sys_config.seed[self.mode], seed
        seed = base + self.seed_counter if given is None else given
        if self.mode == "train":
            self.seed_counter = self.seed_counter + self.config.env_groups if given is None else given - base + 1
        self.rollout_cache = []
        for entry in self.envs:
            entry["status"] = EnvStatus(seed=seed + entry["group_id"])
            entry["env"].reset(seed=seed + entry["group_id"], mode=self.mode)
            first = {"state": entry["env"].render(), "actions_left": entry["max_actions_per_traj"]}
            place = {"group_id": entry["group_id"], "tag": entry["tag"]}
            self.rollout_cache.append({"env_id": entry["env_id"], "history": [first], **place, "penalty": 0})
        return self.rollout_cache

    def step(self, all_env_inputs):
        return [cache for cache in map(self._one, all_env_inputs) if cache]

    STEP

    def get_rollout_states(self):
        for entry, cache in zip(self.envs, self.rollout_cache):
            values = {}
            for turn in cache["history"]:
                for key, value in turn.get("info", {}).items():
                    if key != "success":
                        values.setdefault(key, []).append(float(value))
            status = entry["status"]
            means = {key: np.sum(each) / (len(cache["history"]) - 1) for key, each in values.items()}
            metrics = {"success": float(status.terminated and not status.truncated), "num_actions": status.num_actions}
            METRICS
            cache["history"][-1]["metrics"] = values
            cache["metrics"] = {f"{entry['tag']}/{key}": value for key, value in metrics.items()}
        for cache in self.rollout_cache:
            group = [other for other in self.rollout_cache if other["group_id"] == cache["group_id"]]
            passed = any(other["metrics"][f"{cache['tag']}/success"] for other in group)
            cache["metrics"][f"{cache['tag']}/pass@{self.config.group_size}"] = float(passed)
        return self.rollout_cache

    def render(self):
        return [entry["env"].render() for entry in self.envs]

    def close(self):
        pass
'''

STEP = """def _extract_map_valid_actions(self, given):
        entry, cache = self.envs[given["env_id"]], self.rollout_cache[given["env_id"]]
        status, lookup = entry["status"], getattr(entry["env"].config, "action_lookup", None)
        keys = {name.lower(): key for key, name in lookup.items()} if lookup else None
        asked = given["actions"]
        known = asked if keys is None else [keys[each.lower()] for each in asked if each.lower() in keys]
        done, reward, info, executed, raw = False, 0, {}, [], 0.0
        for action in known[: entry["max_actions_per_traj"] - status.num_actions]:
            _, gained, done, extra = entry["env"].step(action)
            reward, info = reward + gained, {**info, **extra}
            raw += extra.get("raw_reward", 0.0)
            executed.append(action)
            if done:
                break
        INFO
        if len(known) != len(asked) or not known:
            cache["penalty"] += self.sys_config.es_manager.format_penalty
        status.num_actions += len(executed)
        status.rewards.append(reward)
        left = entry["max_actions_per_traj"] - status.num_actions
        status.terminated = done or left <= 0
        status.truncated = status.terminated and not (done and info["success"])
        told = {key: given[key] for key in ("llm_response", "llm_raw_response")}
        cache["history"][-1].update(actions=executed, reward=reward, info=info, **told)
        cache["history"].append({"state": entry["env"].render(), "actions_left": left})
        LAST
        return None if status.terminated else cache

    _one = _extract_map_valid_actions
"""

CONFIG = """
defaults:
  - ppo_trainer
  - envs
seed: {train: 5, val: 123}
twice: 2
es_manager:
  format_penalty: -0.1
  train:
    env_groups: 4
    group_size: ${mul:${twice},1}
    env_configs: {tags: [Walk, Counted], n_groups: [2, 2]}
  val:
    env_groups: 2
    group_size: 1
    env_configs: {tags: [Walk, Absent], n_groups: [1, 1]}
"""

CUSTOM_ENVS = """
custom_envs:
  Walk: {env_type: walk, max_actions_per_traj: 6, env_config: {length: 3}}
  Counted: {env_type: counted, max_actions_per_traj: 3, env_config: null, env_instruction: <answer>yes</answer>}
  Absent: {env_type: absent, max_actions_per_traj: 3, env_config: null}
"""

HEAVY = '''"""This generation's package imports what workers have no need of."""

import sys

sys.modules["a_heavy_package"] = sys
APPLIED = True
'''


def write_checkout(folder: Path, generation: int) -> Path:
    """Write a checkout of the shape of 2025 or 2026."""
    newer = generation == 2026
    manager = MANAGER.replace("    STEP\n", textwrap.indent(textwrap.dedent("    " + STEP), "    "))
    if newer:
        manager = manager.replace(
            "INFO", 'info["raw_reward"] = raw\n        if not known:\n            info["manager_invalid_action"] = True'
        )
        manager = manager.replace(
            "LAST", 'if not known:\n            cache["history"][-1]["manager_invalid_action"] = True'
        )
        manager = manager.replace(
            "METRICS",
            'metrics |= {"episodic_return": float(np.sum(values["raw_reward"])), **means}\n'
            '            if values.get("score"):\n                metrics["final_score"] = values["score"][-1]',
        )
        manager += "\n    def _shutdown_executors(self):\n        pass\n"
    else:
        manager = manager.replace("INFO", "").replace("LAST", "").replace("METRICS", "metrics |= means")
    files = {
        "ragen/__init__.py": HEAVY if newer else "",
        **({"ragen/patches/__init__.py": ""} if newer else {}),
        "ragen/utils.py": UTILS,
        "ragen/llm_agent/__init__.py": "",
        "ragen/llm_agent/ctx_manager.py": "from ragen.env import REGISTERED_ENV_CONFIGS\n",
        "ragen/llm_agent/es_manager.py": manager,
        "ragen/env/__init__.py": ENVS,
        "ragen/env/base.py": BASE,
        "ragen/env/walk/__init__.py": "from .env import WalkEnv\n",
        "ragen/env/walk/env.py": WALK,
        "ragen/env/counted/env.py": COUNTER,
        "config/base.yaml": CONFIG,
        "config/envs.yaml": CUSTOM_ENVS,
        "train.py": "# its own trainer\r\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    os.chmod(folder / "ragen/llm_agent/es_manager.py", 0o755)
    return folder


def bytes_of(folder: Path) -> dict[str, tuple[str, int]]:
    """Digest and mode of every file of a folder, and every folder, with what Python or pytest caches left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found[name] = digest, path.stat().st_mode
    return found


def python(
    *arguments: str, cwd: Path, path: Path, timeout: float = 60, **environment: str
) -> subprocess.CompletedProcess:
    """Run Python with a path, and nothing written beside sources."""
    env = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
