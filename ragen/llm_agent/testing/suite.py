"""The equivalence suite: checks that rollouts in worker processes equal those in the main process.

    ragen suite                                     every environment, and all disturbances
    ragen suite --backend executor                  the same with another kind of workers
    ragen suite --config-name my_config key=value   the tags of a configuration
    ragen suite --env-type my_package.my_module:MyEnv

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
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from envlanes.settings import BACKENDS
from ragen.commands import CommandParser, beside, command, positive
from ragen.config.command_line import add_config_arguments
from ragen.config.loading import load_config
from ragen.env import resolve_env
from ragen.env.registry import registered_names
from ragen.errors import RagenError
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
SHIPPED = "base"
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
    """

    name: str
    custom_envs: CustomEnvs
    settings: Mapping[str, Any] = field(default_factory=dict)
    disturb: BeforeTurn | None = None
    finding: Callable[[EnvStateManager], str] = lambda manager: _played_in_main(manager)
    seeds: tuple[int | None, ...] | None = None

    def __str__(self) -> str:
        return self.name


class Report(NamedTuple):
    """The result of a check.

    Attributes:
        difference: The first difference or other finding, or why nothing was compared; empty if the rollouts are equal.
        seconds: Seconds in the main process, and with workers.
    """

    difference: str
    seconds: tuple[float, float] = (0.0, 0.0)


@cache
def shipped_envs() -> dict[str, dict[str, Any]]:
    """All tags of the package's configurations, and the registered types without one."""
    tags = {tag: dict(entry) for tag, entry in load_config(SHIPPED).custom_envs.items()}
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
    alone = replace(check, settings={"use_multiprocessing": False}, disturb=None, finding=_nothing)
    expected, idle = _played(alone, size)
    if idle:
        return Report(idle)
    workers = {"use_multiprocessing": True, "max_workers": size.workers, "backend": size.backend}
    if check.disturb is not None:
        workers["crash_report_dir"] = None  # a failure from here on is intended
    got, finding = _played(replace(check, settings={**workers, **check.settings}), size)
    difference = expected.first_difference(got) or finding
    if difference and (own := expected.first_difference(_played(alone, size)[0])):
        difference = f"not reproducible: the main process played it twice, and {own}"
    return Report(difference, (expected.seconds, got.seconds))


def _played(check: Check, size: Size) -> tuple[Recording, str]:
    """A manager's output, and the finding."""
    from ragen.llm_agent.testing.equivalence import Recording, record_episode  # late, as it imports numpy

    recording, idle = Recording(), dict.fromkeys(check.custom_envs, "no valid action; give it an example_action")
    with EnvStateManager(manager_config(check.custom_envs, check.settings, size.groups)) as manager:
        manager.reset(BASE_SEED - 1)  # workers start, data is loaded: no part of the times; None goes on at BASE_SEED
        for episode, seed in enumerate(check.seeds or (None,) * size.seeds):
            record_episode(manager, RandomPlayer(episode), size.turns, seed, check.disturb, recording)
            for state in manager.get_rollout_states():
                if any(turn.get("actions") for turn in state["history"]):
                    idle.pop(state["tag"], None)
                elif state["tag"] in idle and "env_error" in state:
                    idle[state["tag"]] = state["env_error"]
        for tag, why in idle.items():
            return recording, f"nothing was played of {tag}: {why}"
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


def _nothing(manager: EnvStateManager) -> str:
    return ""


def _played_in_main(manager: EnvStateManager) -> str:
    main, *lanes = manager.lane_stats()
    if main.turns:
        return f"the main process played {main.turns} turns"
    return "" if any(lane.turns for lane in lanes) else "no worker played a turn"


def _no_restart(manager: EnvStateManager) -> str:
    return "" if any(lane.restarts for lane in manager.lane_stats()) else "no worker was replaced"


# The checks


def checks_of_disturbances(envs: CustomEnvs) -> list[Check]:
    """A check for each disturbance, with all of these tags in one manager."""
    types = {entry["env_type"]: resolve_env(entry["env_type"])[0] for entry in envs.values()}
    checks = [
        Check("auto", envs, {"use_multiprocessing": "auto"}, finding=_nothing),
        Check("fresh interpreters (spawn)", envs, {"start_method": "spawn"}),
        Check("given seeds, the same twice", envs, seeds=(7, 7, 2**32 - 100, None)),
    ]
    if len(types) > 1:
        checks.append(Check("all of them in one manager", envs))
    if all(getattr(env_class, "replayable", True) for env_class in types.values()):
        checks += [
            Check("switched in mid-episode", envs, disturb=switch, finding=_nothing),
            Check("a worker killed before each turn", envs, disturb=kill_a_worker, finding=_no_restart),
            Check("a worker frozen in a turn", envs, {"step_timeout": 1.0}, freeze_a_worker, _no_restart),
        ]
    return checks


# The command


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The argument parser."""
    top = CommandParser(
        prog=prog,
        description="Play every environment in the main process and in workers, disturb and kill the workers, and "
        "compare everything that can be seen. Exit code 1 where anything differs.",
        examples=(
            f"{prog}",
            f"{prog} --backend executor",
            f"{prog} --config-name _2_sokoban custom_envs.SimpleSokoban.env_config.dim_x=8",
            f"{prog} --env-type my_package.my_game:MyGame",
        ),
    )
    add_config_arguments(top, SHIPPED)
    top.add_argument("--env-type", help="a registered name, or package.module:Class, to check alone")
    size = Size()
    for name, what in (("seeds", "episodes"), ("turns", "turns per episode"), ("workers", "workers")):
        default = getattr(size, name)
        top.add_argument(f"--{name}", type=positive, default=default, help=f"number of {what} (default {default})")
    top.add_argument("--backend", choices=BACKENDS, default=size.backend, help="kind of workers")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run checks, print a line for each, and return the exit status: 0 if all rollouts are equal, else 1."""
    sys.path.append(os.getcwd())  # environments of one's own are looked for where the command is given
    if options.backend == "ray":
        check_installed("ray", "--backend ray")
    checks = _chosen_checks(options)
    size = Size(options.seeds, options.turns, options.workers, options.backend)
    print(f"{size.groups} groups of {GROUP_SIZE} for each tag, {size.workers} workers ({size.backend})")
    logging.disable(logging.WARNING)  # of workers that are killed here
    try:
        unequal = sum(_is_unequal(check, size) for check in checks)
    finally:
        logging.disable(logging.NOTSET)
    print(f"{unequal} of {len(checks)} are not equal." if unequal else f"All {len(checks)} are equal.")
    return 1 if unequal else 0


def _chosen_checks(options: argparse.Namespace) -> Sequence[Check]:
    mixed: CustomEnvs = {}
    config = load_config(options.config_name, options.overrides, options.config_path)
    if options.env_type is not None:
        envs = {options.env_type.rpartition(":")[2]: {"env_type": options.env_type}}
    elif options.config_name != SHIPPED or options.overrides:
        read_config(config, "train")  # its own es_manager is not used, but a mistake in it is not passed over either
        modes = (config.es_manager.train, config.es_manager.val)
        envs = {tag: custom_env(config, tag) for mode in modes if mode for tag in mode.env_configs.tags}
    else:
        envs = playable(shipped_envs())
        mixed = {tag: envs[tag] for tag in MIXED if tag in envs}
    check_extras(read_config(manager_config(envs, {}), "train"))  # says what is wrong with them
    return [*(Check(tag, {tag: entry}) for tag, entry in envs.items()), *checks_of_disturbances(mixed or envs)]


def _is_unequal(check: Check, size: Size) -> bool:
    try:
        report = run(check, size)
    except RagenError as error:
        report = Report(f"{type(error).__name__}: {error}")
    times = "equal: {:.2f} s in main, {:.2f} s in workers".format(*report.seconds)
    print(beside(f"{check.name:<42} ", printable(report.difference) or times), flush=True)
    return bool(report.difference)
