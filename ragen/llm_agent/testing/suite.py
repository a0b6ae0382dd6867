"""The equivalence suite: checks that rollouts in worker processes equal those in the main process.

    ragen suite                                     every environment, and all disturbances
    ragen suite --backend executor                  the same with another kind of workers
    ragen suite --config-name my_config key=value   the tags of a configuration
    ragen suite --env-type my_package.my_module:MyEnv --env-config size=8 level=hard

Each check plays the same seeds and replies twice: in the main process, undisturbed, and in workers. Everything that the
two managers show is compared without tolerance: states, image bytes, rewards and their types, infos, penalties,
statuses, metrics, and the order of ``env_outputs``. The command prints a line for each check, and exits with 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from envlanes.settings import BACKENDS
from ragen.commands import CommandParser, beside, positive, refusing
from ragen.config.command_line import command_keys
from ragen.config.loading import load_config
from ragen.env import resolve_env
from ragen.env.registry import registered_names
from ragen.errors import ConfigError, RagenError
from ragen.extras import check_installed
from ragen.llm_agent.environments import check_extras, custom_env, read_config
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.random_player import RandomPlayer
from ragen.output import printable

if TYPE_CHECKING:
    from ragen.llm_agent.testing.equivalence import BeforeTurn, Recording

PROG = "ragen suite"
GROUP_SIZE = 2
BASE_SEED = 10_000
MIXED = ("SimpleSokoban", "FrozenLake", "VisualSimpleSokoban", "Bandit", "Countdown", "MetamathQA", "WebShop")

CustomEnvs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Size:
    """The size of a check: episodes, the most turns of each, workers, their kind, and groups of each tag."""

    seeds: int = 2
    turns: int = 6
    workers: int = 2
    backend: str = "process"
    groups: int = 2


@dataclass(frozen=True)
class Check:
    """A comparison with the main process.

    Attributes:
        name: Its name.
        custom_envs: The tags, as in a configuration.
        settings: ``es_manager`` settings of the manager with workers.
        disturb: Called before each of its turns.
        finding: Returns what is wrong with it after the last turn, if anything; by default, that an environment was
            played in the main process.
        seeds: The seed of each ``reset``; None for None in every episode.
        replays: Whether environments are rebuilt from their journals.
    """

    name: str
    custom_envs: CustomEnvs
    settings: Mapping[str, Any] = field(default_factory=dict)
    disturb: BeforeTurn | None = None
    finding: Callable[[EnvStateManager], str] = lambda manager: _played_in_main(manager)
    seeds: tuple[int | None, ...] | None = None
    replays: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes:
        difference: The first difference or other finding, or why nothing was compared; empty if the rollouts are equal.
        seconds: Seconds in the main process, and with workers.
        notes: Observations of the main process, by tag: an error, or no valid action.
    """

    difference: str
    seconds: tuple[float, float] = (0.0, 0.0)
    notes: Mapping[str, str] = field(default_factory=dict)


@cache
def shipped_envs() -> dict[str, dict[str, Any]]:
    """All tags of the package's configurations, and the registered types without one."""
    tags = {tag: dict(entry) for tag, entry in load_config("base").custom_envs.items()}
    types = {entry["env_type"] for entry in tags.values()}
    return tags | {name: {"env_type": name} for name in registered_names() if name not in types}


def playable(custom_envs: CustomEnvs) -> dict[str, dict[str, Any]]:
    """The tags whose environments can be built on this machine; the others are named on standard error."""
    found = {}
    for tag, entry in custom_envs.items():
        env_class, config_class = resolve_env(entry["env_type"])
        try:
            env = env_class(config_class(**(entry.get("env_config") or {})) if config_class else None)
            getattr(env, "close", lambda: None)()
        except RagenError as error:
            print(f"{tag} is left out: {error}", file=sys.stderr)
        else:
            found[tag] = dict(entry)
    return found


def manager_config(custom_envs: CustomEnvs, settings: Mapping[str, Any], groups: int = Size.groups) -> dict[str, Any]:
    """A configuration with so many groups of every tag."""
    sizes = {"tags": list(custom_envs), "n_groups": [groups] * len(custom_envs)}
    part = {"env_groups": groups * len(custom_envs), "group_size": GROUP_SIZE, "env_configs": sizes}
    return {
        "custom_envs": {tag: {"max_actions_per_traj": 10, **entry} for tag, entry in custom_envs.items()},
        "seed": {"train": BASE_SEED},
        "es_manager": {"train": part, "step_timeout": 60, **settings},
    }


def run(check: Check, size: Size) -> Report:
    """Play a check in the main process and in workers, and compare; where they differ, the main process plays twice."""
    notes: dict[str, str] = {}
    alone = Check(check.name, check.custom_envs, {"use_multiprocessing": False}, None, lambda manager: "", check.seeds)
    expected, _ = _played(alone, size, notes)
    workers = {"use_multiprocessing": True, "max_workers": size.workers, "backend": size.backend}
    if check.disturb is not None:
        workers["crash_report_dir"] = None  # a failure from here on is intended
    got, finding = _played(check, size, {}, workers)
    difference = str(expected.first_difference(got) or finding)
    if difference and (own := expected.first_difference(_played(alone, size, {})[0])):
        difference = f"not reproducible: the main process played it twice, and {own}"
    return Report(difference, (expected.seconds, got.seconds), notes)


def _played(
    check: Check, size: Size, notes: dict[str, str], settings: Mapping[str, Any] | None = None
) -> tuple[Recording, str]:
    """A manager's output, and the finding."""
    from ragen.llm_agent.testing.equivalence import Recording, record_episode  # late, as it imports numpy

    recording, valid, acted = Recording(), set[str](), set[str]()
    config = manager_config(check.custom_envs, {**(settings or {}), **check.settings}, size.groups)
    with EnvStateManager(config) as manager:
        manager.reset(BASE_SEED - 1)  # workers start, data is loaded: no part of the times; None goes on at BASE_SEED
        for episode, seed in enumerate(check.seeds or (None,) * size.seeds):
            record_episode(manager, RandomPlayer(episode), size.turns, seed, check.disturb, recording)
            for tag, turn in ((each["tag"], turn) for each in manager.rollout_cache or () for turn in each["history"]):
                info = turn.get("info") or {}
                if turn.get("actions"):
                    acted.add(tag)
                if error := info.get("env_error"):
                    notes.setdefault(tag, error)
                elif turn.get("actions") and info.get("action_is_valid", True):
                    valid.add(tag)
        for tag in set(notes) - acted:
            entry = check.custom_envs[tag]
            raise ConfigError(f"{tag} cannot be played: {notes[tag]}; `ragen check {entry['env_type']}` shows where")
        for tag in set(check.custom_envs) - valid:
            notes.setdefault(tag, "no valid action was played; give it an example_action, or name some by --actions")
        return recording, check.finding(manager)


# Disturbances and findings


def switch(manager: EnvStateManager, turn: int) -> None:
    """Switch between the main process and workers."""
    manager.use_multiprocessing = turn % 2 == 1


def kill_a_worker(manager: EnvStateManager, turn: int) -> None:
    """Kill another worker in every turn."""
    if pids := _worker_pids(manager):
        with suppress(ProcessLookupError):  # already dead
            os.kill(pids[turn % len(pids)], signal.SIGKILL)


def freeze_a_worker(manager: EnvStateManager, turn: int) -> None:
    """Stop a worker in the first turn of each episode, so that it misses its deadline."""
    if turn == 0 and (pids := _worker_pids(manager)):
        os.kill(pids[0], signal.SIGSTOP)


def _worker_pids(manager: EnvStateManager) -> list[int]:
    return [lane.pid for lane in manager.lane_stats() if lane.pid not in (None, os.getpid())]


def _played_in_main(manager: EnvStateManager) -> str:
    main, *lanes = manager.lane_stats()
    if main.turns:
        return f"the main process played {main.turns} turns"
    return "" if any(lane.turns for lane in lanes) else "no worker played a turn"


def _homes_with_webshop_in_main(manager: EnvStateManager) -> str:
    main, *lanes = manager.lane_stats()
    if main.env_types == ("webshop",) and lanes and not any("webshop" in lane.env_types for lane in lanes):
        return ""
    return f"the main process hosts {main.env_types}, and workers host {[lane.env_types for lane in lanes]}"


def _no_restart(manager: EnvStateManager) -> str:
    return "" if any(lane.restarts for lane in manager.lane_stats()) else "no worker was replaced"


# The checks


def checks_of_tags(custom_envs: CustomEnvs) -> list[Check]:
    """One check for each tag."""
    return [Check(tag, {tag: entry}) for tag, entry in custom_envs.items()]


def checks_of_disturbances(envs: CustomEnvs) -> list[Check]:
    """A check for each disturbance, with all of these tags in one manager."""
    replayed: dict[str, Any] = {"finding": _no_restart, "replays": True}
    return [
        *([Check("all of them in one manager", envs)] if len(envs) > 1 else []),
        Check("auto", envs, {"use_multiprocessing": "auto"}, finding=lambda manager: ""),
        Check("fresh interpreters (spawn)", envs, {"start_method": "spawn"}),
        Check("switched in mid-episode", envs, disturb=switch, finding=lambda manager: "", replays=True),
        Check("a worker killed before each turn", envs, disturb=kill_a_worker, **replayed),
        Check("a worker frozen in a turn, and timed out", envs, {"step_timeout": 1.0}, freeze_a_worker, **replayed),
        Check("given seeds, the same twice", envs, seeds=(7, 7, 2**32 - 100, None)),
    ]


def checks_of_the_engine() -> list[Check]:
    """A check of ``sequential_env_types``."""
    mixed, settings = {tag: shipped_envs()[tag] for tag in MIXED}, {"sequential_env_types": ["webshop"]}
    return [Check("sequential_env_types: [webshop]", mixed, settings, finding=_homes_with_webshop_in_main)]


# The command


@refusing
def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run checks, print a line for each, and return the exit status: 0 if all rollouts are equal, else 1."""
    top = parser(prog)
    options = top.parse_intermixed_args(arguments)
    sys.path.append(os.getcwd())  # environments of one's own are looked for where the command is given
    if options.overrides and options.config_name is None:
        raise ConfigError(f"{options.overrides[0]!r} changes a configuration; name one with --config-name.")
    if options.actions and options.env_type is None:
        raise ConfigError("--actions is for --env-type; a configuration names examples in env_instruction.")
    if options.backend == "ray":
        check_installed("ray", "--backend ray")
    checks = _chosen_checks(options)
    size = Size(options.seeds, options.turns, options.workers, options.backend)
    print(f"{size.groups} groups of {GROUP_SIZE} for each tag, {size.workers} workers ({size.backend})")
    logging.disable(logging.WARNING)  # of workers that are killed here
    try:
        return _run_all(checks, size)
    finally:
        logging.disable(logging.NOTSET)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The argument parser."""
    parser = CommandParser(
        prog=prog,
        description="Play every environment in the main process and in workers, disturb and kill the workers, and "
        "compare everything that can be seen. Exit code 1 where anything differs.",
        examples=(
            f"{prog}",
            f"{prog} --backend executor",
            f"{prog} --config-name _2_sokoban custom_envs.SimpleSokoban.env_config.dim_x=8",
            f"{prog} --env-type my_package.my_game:MyGame --env-config size=4",
        ),
    )
    add, size = parser.add_argument, Size()
    add("--env-type", help="a registered name, or package.module:Class, to check alone")
    add("--env-config", nargs="*", default=[], metavar="KEY=VALUE", help="fields of its configuration")
    add("--actions", nargs="+", default=[], metavar="TEXT", help="valid actions, if actions are texts")
    add("-cn", "--config-name", help="check the tags that this configuration trains and validates with")
    add("-cp", "--config-path", "--config-dir", metavar="FOLDER", help="its folder (default: the package's own)")
    add("overrides", nargs="*", default=[], metavar="key=value", help="overrides of that configuration")
    parser.settings = command_keys
    for name, what in (("seeds", "episodes"), ("turns", "turns per episode"), ("workers", "workers")):
        default = getattr(size, name)
        add(f"--{name}", type=positive, default=default, help=f"number of {what} (default {default})")
    add("--backend", choices=BACKENDS, default=size.backend, help="kind of workers")
    return parser


def _chosen_checks(options: argparse.Namespace) -> list[Check]:
    if options.env_type is None and options.config_name is None:
        mixed = {tag: shipped_envs()[tag] for tag in MIXED}
        tagged = checks_of_tags(playable(shipped_envs()))
        return [*tagged, *checks_of_disturbances(mixed), *checks_of_the_engine()]
    if options.config_name is not None:
        given = load_config(options.config_name, options.overrides, options.config_path)
        read_config(given, "train")  # its own es_manager is not used, but a mistake in it is not passed over either
        modes = (given.es_manager.train, given.es_manager.val)
        tags = [tag for mode in modes if mode for tag in mode.env_configs.tags]
        chosen = {tag: custom_env(given, tag) for tag in tags}
    else:
        chosen = {options.env_type.rpartition(":")[2]: _own_entry(options)}
    check_extras(read_config(manager_config(chosen, {}), "train"))  # says what is wrong with them
    classes = [resolve_env(entry["env_type"])[0] for entry in chosen.values()]
    replays = all(getattr(env_class, "replayable", True) for env_class in classes)
    checks = [*checks_of_tags(chosen), *checks_of_disturbances(chosen)]
    return [check for check in checks if replays or not check.replays]


def _own_entry(options: argparse.Namespace) -> dict[str, Any]:
    from omegaconf import OmegaConf

    if malformed := [field for field in options.env_config if "=" not in field]:
        raise ConfigError(f"--env-config {' '.join(malformed)}: expected KEY=VALUE.")
    instruction = "".join(f"<answer>{action}</answer>" for action in options.actions)
    fields = OmegaConf.to_container(OmegaConf.from_dotlist(options.env_config))
    return {"env_type": options.env_type, "env_config": fields, "env_instruction": instruction}


def _run_all(checks: Sequence[Check], size: Size) -> int:
    unequal, notes = 0, dict[str, str]()
    for check in checks:
        try:
            report = run(check, size)
        except RagenError as error:
            report = Report(f"{type(error).__name__}: {error}")
        times = "equal: {:.2f} s in main, {:.2f} s in workers".format(*report.seconds)
        print(beside(f"{check.name:<42} ", printable(report.difference) or times), flush=True)
        unequal += bool(report.difference)
        notes |= report.notes
    for tag, note in notes.items():
        print(printable(f"{tag}: {note}"))
    print(f"{unequal} of {len(checks)} are not equal." if unequal else f"All {len(checks)} are equal.")
    return 1 if unequal else 0
