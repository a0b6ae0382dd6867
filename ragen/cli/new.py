"""The command ``ragen new NAME``: writes a template environment with a test and a configuration.

The template works: its test passes, and its configuration can be played. Nothing is overwritten.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from string import Template

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError, suggestion
from ragen.files import why_no_folder

PROG = "ragen new"

_ENVIRONMENT = '''\
"""$title: walk along a corridor to a door that only the seed knows."""

import random
from dataclasses import dataclass, field

from ragen.env import BaseDiscreteActionEnv


@dataclass
class ${cls}Config:
    """The keys of ``env_config``."""

    length: int = 7
    turns: int = 10
    action_lookup: dict[int, str] = field(default_factory=lambda: {1: "Left", 2: "Right"})


class $cls(BaseDiscreteActionEnv):
    """After ``reset(seed)``, everything follows from the configuration, the seed and the actions."""

    config_class = ${cls}Config
    uses_global_rng = False  # it draws from a generator of its own

    def __init__(self, config=None):
        self.config = config or ${cls}Config()

    def reset(self, seed=None, mode=None):
        rng = random.Random(seed)
        self.place, self.door = rng.sample(range(self.config.length), 2)
        self.left = self.config.turns
        return self.render()

    def step(self, action):
        """Play a key of ``action_lookup``; returns observation, reward, whether the episode is over, and info."""
        move = -1 if action == 1 else 1
        self.place = min(max(self.place + move, 0), self.config.length - 1)
        self.left -= 1
        success = self.place == self.door
        return self.render(), float(success), success or not self.left, {"success": success}

    def render(self, mode=None):
        """The text that the model sees."""
        tiles = ["_"] * self.config.length
        tiles[self.door] = "D"
        tiles[self.place] = "P"
        return "".join(tiles)
'''

_TEST = '''\
"""Tests of $module: it can be won, and it plays the same in worker processes as in the main process."""

from $module import $cls

from ragen.tools.check import check_parallel


def test_walking_to_the_door_is_a_success():
    env = $cls()
    env.reset(seed=1)
    while env.place != env.door:
        _, reward, done, info = env.step(1 if env.door < env.place else 2)
    assert (reward, done, info["success"]) == (1.0, True, True)


def test_the_turns_run_out():
    env = $cls()
    env.reset(seed=1)
    away = 2 if env.door < env.place else 1
    results = [env.step(away) for _ in range(env.config.turns)]
    assert [done for _, _, done, _ in results] == [False] * (env.config.turns - 1) + [True]
    assert not results[-1][3]["success"]


def test_a_seed_decides_the_episode():
    first, second = $cls(), $cls()
    assert first.reset(seed=3) == second.reset(seed=3)
    assert len({first.reset(seed=seed) for seed in range(20)}) > 5


def test_it_is_fit_for_worker_processes():
    report = check_parallel($cls)
    assert report.ok, report
'''

_CONFIG = """\
# ragen rollout --config-name ./$module
defaults:
  - base
  - _self_

custom_envs:
  $cls:
    env_type: $module:$cls
    max_actions_per_traj: 10
    max_tokens: 100
    env_instruction: P is you, D is the door. Walk to the door, for example <answer>Left || Left</answer>
    env_config: {length: 7, turns: 10}

agent_proxy:
  max_turn: 5
  max_actions_per_turn: 3
  action_sep: "||"  # between the actions of a reply; if yours are texts that may contain it, choose another

es_manager:
  val: &played
    env_groups: 4
    group_size: 4
    env_configs:
      tags: [$cls]
      n_groups: [4]
  train: *played
"""

FILES = {"$module.py": _ENVIRONMENT, "test_$module.py": _TEST, "$module.yaml": _CONFIG}
"""The templates by file name."""


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Write an environment, its test and its configuration into a folder. All three work as they are; "
        "replace the game with your own.",
        examples=(f"{prog} my_env",),
    )
    top.add_argument("name", help="name of the module, such as my_env; the class is then MyEnv")
    top.add_argument("--folder", type=Path, default=Path(), help="folder for the files (default: this folder)")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0, or 2 if the name is invalid, a file already exists, or the folder cannot be written to.
    """
    paths = write(options.name, options.folder)
    print(f"written: {', '.join(map(str, paths))}")
    cls = class_name(options.name)
    pytest = "" if find_spec("pytest") else "pip install pytest && "
    is_clone = (options.folder / "ragen").is_dir() and (options.folder / "conftest.py").exists()
    alone = (
        "-c /dev/null --rootdir . --noconftest " if is_clone else ""
    )  # the clone's pytest options are for its own tests
    where = "" if options.folder == Path() else f"cd {options.folder}\n  "
    print(
        f"next:\n  {where}ragen play {options.name}:{cls}\n  ragen check {options.name}:{cls}\n"
        f"  ragen rollout --config-name ./{options.name}\n  {pytest}python -m pytest {alone}{paths[1].name}"
    )
    return 0


def write(name: str, folder: Path) -> list[Path]:
    """Write the files.

    Args:
        name: Name of the module.
        folder: The folder; created if needed.

    Returns:
        Their paths: the environment, its test, its configuration.

    Raises:
        ConfigError: The name is not valid for a module or is another module's, one of the files exists, or the folder
            cannot be written to.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        meant = re.sub(r"\W+", "_", name).strip("_").lower()
        asked = suggestion([meant] if meant.isidentifier() and not keyword.iskeyword(meant) else [])
        raise ConfigError(f"{name!r} is not a valid name of a Python module.{asked}")
    if hidden := _hidden_by(name, folder):
        raise ConfigError(f"{name!r} is {hidden}, which {name}.py would hide; choose another name, such as {name}_env.")
    words = {"module": name, "cls": class_name(name), "title": name.replace("_", " ").capitalize()}
    texts = {
        folder / Template(path).substitute(words): Template(text).substitute(words) for path, text in FILES.items()
    }
    if there := [str(path) for path in texts if path.exists()]:
        exist = "exists" if len(there) == 1 else "exist"
        raise ConfigError(f"{', '.join(there)} already {exist}; nothing was written. Choose another name or folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"--folder is {str(folder)!r}: {why_no_folder(folder, error)}.") from error
    return list(texts)


def _hidden_by(name: str, folder: Path) -> str:
    """The module that a module of this name would hide, in words; empty for none."""
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    if name == __name__.partition(".")[0]:  # it may be installed from this folder
        return "this package"
    found = PathFinder.find_spec(name, [each for each in sys.path if each and Path(each).resolve() != Path.cwd()])
    places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    outside = [each for each in places if each and not Path(each).resolve().is_relative_to(folder.resolve())]
    return f"an installed module ({outside[0]})" if outside else ""


def class_name(module: str) -> str:
    """The name of the class: ``my_env`` has ``MyEnv``."""
    return "".join(part[:1].upper() + part[1:] for part in module.split("_")) or "Env"
