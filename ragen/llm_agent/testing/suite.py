"""The equivalence suite: checks that rollouts in worker processes equal those in the main process.

    ragen suite                                     every environment, and all disturbances
    ragen suite --backend executor                  the same with another kind of workers
    ragen suite --backend ray --remove-nodes        with workers on a local Ray cluster of several nodes, some of which
                                                    are lost
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
import re
import signal
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from envlanes.settings import BACKENDS
from ragen.commands import CommandParser, beside, check_no_option, positive, refusing
from ragen.env import resolve_env
from ragen.env.registry import registered_names
from ragen.errors import ConfigError, RagenError
from ragen.extras import check_installed
from ragen.llm_agent.backends.policies import POLICIES
from ragen.llm_agent.config.environments import check_extras, read_config
from ragen.llm_agent.config.loading import load_config, referenced_sections, settings_of_base
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.random_player import RandomPlayer
from ragen.output import printable
from ragen.settings import setting
from ragen.tools.examples import Examples

if TYPE_CHECKING:
    from ragen.llm_agent.testing.equivalence import BeforeTurn, Recording
    from ragen.llm_agent.testing.local_cluster import LocalCluster

PROG = "ragen suite"
GROUPS, GROUP_SIZE = 2, 2  # of each tag
BASE_SEED = 10_000
MIXED = ("SimpleSokoban", "FrozenLake", "VisualSimpleSokoban", "Bandit", "Countdown", "MetamathQA", "WebShop")
_PLAYED = re.compile(r"custom_envs\.|es_manager\.(train|val)\.env_configs\.tags$").match  # keys that decide what is

CustomEnvs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Size:
    """The size of a check.

    Attributes:
        seeds: Number of episodes, each with new seeds.
        turns: Maximum number of turns of an episode.
        workers: Worker processes.
        backend: Kind of workers, as in ``es_manager.backend``; for ``ray``, a cluster is running.
        patience: Time-out in seconds, for checks that wait for one; longer than any turn takes.
        groups: Number of groups of each tag.
    """

    seeds: int = 2
    turns: int = 6
    workers: int = 2
    backend: str = "process"
    patience: float = 1.0
    groups: int = GROUPS


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
        waits: Whether a turn times out.
    """

    name: str
    custom_envs: CustomEnvs
    settings: Mapping[str, Any] = field(default_factory=dict)
    disturb: BeforeTurn | None = None
    finding: Callable[[EnvStateManager], str] = lambda manager: _played_in_main(manager)
    seeds: tuple[int | None, ...] | None = None
    replays: bool = False
    waits: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes:
        difference: The first difference or other finding, or why nothing was compared; empty if the rollouts are equal.
        sequential_s: Seconds in the main process.
        parallel_s: Seconds with workers.
        unproved: The tags of which no valid action was played, each with what to do.
        raised: The first errors of environments in the main process, undisturbed, by tag.
    """

    difference: str
    sequential_s: float = 0.0
    parallel_s: float = 0.0
    unproved: Mapping[str, str] = field(default_factory=dict)
    raised: Mapping[str, str] = field(default_factory=dict)


# What is played


@cache
def shipped_envs() -> dict[str, dict[str, Any]]:
    """All tags of the package's configurations, and the registered types without one."""
    tags = tags_of(load_config("base"))
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


def tags_of(config: Any, used: bool = False) -> dict[str, dict[str, Any]]:
    """The entries of ``custom_envs``; with ``used``, of the tags that ``es_manager`` trains and validates with."""
    from omegaconf import OmegaConf

    entries = cast(dict[str, dict[str, Any]], OmegaConf.to_container(config.custom_envs, resolve=True))
    if not used:
        return entries
    parts = [setting(config, f"es_manager.{mode}.env_configs.tags", Sequence, ()) for mode in ("train", "val")]
    names = dict.fromkeys(tag for tags in parts for tag in tags)
    if unknown := [tag for tag in names if tag not in entries]:
        raise ConfigError(f"es_manager uses the tags {unknown}, which custom_envs lacks; it has {sorted(entries)}.")
    return {tag: entries[tag] for tag in names}


def manager_config(custom_envs: CustomEnvs, settings: Mapping[str, Any], groups: int = GROUPS) -> dict[str, Any]:
    """A configuration with so many groups of every tag."""
    tags = list(custom_envs)
    part = {
        "env_groups": groups * len(tags),
        "group_size": GROUP_SIZE,
        "env_configs": {"tags": tags, "n_groups": [groups] * len(tags)},
    }
    entries = {tag: {"max_actions_per_traj": 10, **entry} for tag, entry in custom_envs.items()}
    return {
        "custom_envs": entries,
        "seed": {"train": BASE_SEED},
        "es_manager": {"train": part, "step_timeout": 60, **settings},
    }


def run(check: Check, size: Size) -> Report:
    """Play a check in the main process and in workers, and compare; where they differ, the main process plays twice."""
    in_main = {"use_multiprocessing": False}
    examples = _examples(check, size, in_main)
    expected, _ = _played(check, size, in_main, examples)
    for tag, each in examples.items():
        if each.failure:
            look = f"`ragen check {check.custom_envs[tag]['env_type']}` shows where"
            return Report(f"{tag} cannot be played: {each.failure}; {look}")
    raised = {tag: each.raised for tag, each in examples.items() if each.raised}
    workers = {"max_workers": size.workers, "backend": size.backend}
    settings = {"use_multiprocessing": True, **workers, **check.settings}
    if check.waits:
        settings["step_timeout"] = size.patience
    if check.waits or check.disturb is not None:
        settings["crash_report_dir"] = None  # what fails then is meant to
    got, finding = _played(check, size, settings, examples, check.disturb, check.finding)
    difference = str(expected.first_difference(got) or finding)
    if difference and (own := expected.first_difference(_played(check, size, in_main, examples)[0])):
        difference = f"not reproducible: the main process played it twice, and {own}"
    unproved = {tag: each.advice for tag, each in examples.items() if each.advice}
    return Report(difference, expected.seconds, got.seconds, unproved, raised)


def _examples(check: Check, size: Size, settings: Mapping[str, Any]) -> dict[str, Examples]:
    """The examples of every tag; where environments give some, a manager is played that asks for them."""
    entries = check.custom_envs.items()
    examples = {tag: Examples(entry, resolve_env(entry["env_type"])[0]) for tag, entry in entries}
    asked = [examples[tag] for tag, entry in entries if entry["env_type"] not in POLICIES and examples[tag].can_ask]
    for each in asked:
        each.asks = True
    if asked:
        _played(check, size, settings, examples)
    for each in asked:
        each.asks = False
    return examples


def _played(
    check: Check,
    size: Size,
    settings: Mapping[str, Any],
    examples: Mapping[str, Examples],
    disturb: BeforeTurn | None = None,
    finding: Callable[[EnvStateManager], str] = lambda manager: "",
) -> tuple[Recording, str]:
    """What a manager showed, and the finding."""
    from ragen.llm_agent.testing.equivalence import Recording, record_episode  # late, as it imports numpy

    recording = Recording()
    with EnvStateManager(manager_config(check.custom_envs, settings, size.groups)) as manager:
        manager.reset(BASE_SEED - 1)  # workers start, data is loaded: no part of the times; None goes on at BASE_SEED
        for episode, seed in enumerate(check.seeds or (None,) * size.seeds):
            player = RandomPlayer(episode, examples=examples)
            record_episode(manager, player, size.turns, seed, disturb, recording)
            for cache in manager.rollout_cache or ():
                is_known = check.custom_envs[cache["tag"]]["env_type"] in POLICIES
                examples[cache["tag"]].see(cache["history"], is_known)
        return recording, finding(manager)


# Disturbances


def switch(manager: EnvStateManager, turn: int) -> None:
    """Switch between the main process and workers."""
    manager.use_multiprocessing = turn % 2 == 1


def kill_a_worker(manager: EnvStateManager, turn: int) -> None:
    """Kill the worker of another lane in every turn."""
    pids = _worker_pids(manager)
    if pids:
        with suppress(ProcessLookupError):  # already dead
            os.kill(pids[turn % len(pids)], signal.SIGKILL)


def freeze_a_worker(manager: EnvStateManager, turn: int) -> None:
    """Stop a worker in the first turn of each episode, so that it misses its deadline."""
    pids = _worker_pids(manager)
    if turn == 0 and pids:
        os.kill(pids[0], signal.SIGSTOP)


def _worker_pids(manager: EnvStateManager) -> list[int]:
    return [lane.pid for lane in manager.lane_stats() if lane.pid not in (None, os.getpid())]


class Loses:
    """Kills a node of a cluster in every second turn, and starts another one.

    Attributes:
        lost: Number of killed nodes.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        """Take the cluster."""
        self.lost = 0
        self._cluster = cluster

    def __call__(self, manager: EnvStateManager, turn: int) -> None:
        """Kill a node that hosts environments, before a turn."""
        if turn % 2:
            used = {lane.node.rpartition("/")[2] for lane in manager.lane_stats() if lane.envs}
            ids = self._cluster.node_ids()
            index = next((index for index, node_id in enumerate(ids) if node_id[:6] in used), None)
            if index is not None:
                self.lost += 1
                self._cluster.remove_node(index)
                self._cluster.add_node()

    def finding(self, manager: EnvStateManager) -> str:
        """A finding if no node was lost, or no worker with it."""
        return _no_restart(manager) if self.lost else "no node was lost"


# Findings


def _played_in_main(manager: EnvStateManager) -> str:
    main, *lanes = manager.lane_stats()
    if main.turns:
        return f"the main process played {main.turns} turns"
    return "" if any(lane.turns for lane in lanes) else "no worker played a turn"


def _homes_with_webshop_in_main(manager: EnvStateManager) -> str:
    main, *lanes = manager.lane_stats()
    strays = {env_type for lane in lanes for env_type in lane.env_types} & {"webshop"}
    if main.env_types != ("webshop",) or strays or not lanes:
        return f"the main process hosts {main.env_types}, and workers host {[lane.env_types for lane in lanes]}"
    return ""


def _no_restart(manager: EnvStateManager) -> str:
    return "" if any(lane.restarts for lane in manager.lane_stats()) else "no worker was replaced"


def _anything(_: EnvStateManager) -> str:
    return ""


# The checks


def checks_of_tags(custom_envs: CustomEnvs) -> list[Check]:
    """One check for each tag."""
    return [Check(tag, {tag: entry}) for tag, entry in custom_envs.items()]


def checks_of_disturbances(custom_envs: CustomEnvs) -> list[Check]:
    """A check for each disturbance, with all of these tags in one manager."""
    together = [Check("all of them in one manager", custom_envs)] if len(custom_envs) > 1 else []
    return [
        *together,
        Check("auto", custom_envs, {"use_multiprocessing": "auto"}, finding=_anything),
        Check("fresh interpreters (spawn)", custom_envs, {"start_method": "spawn"}),
        Check("switched in mid-episode", custom_envs, disturb=switch, finding=_anything, replays=True),
        Check(
            "a worker killed before each turn", custom_envs, disturb=kill_a_worker, finding=_no_restart, replays=True
        ),
        Check(
            "a worker frozen in a turn, and timed out",
            custom_envs,
            disturb=freeze_a_worker,
            finding=_no_restart,
            replays=True,
            waits=True,
        ),
        Check("given seeds, the same twice", custom_envs, seeds=(7, 7, 2**32 - 100, None)),
    ]


def checks_of_the_engine() -> list[Check]:
    """A check of ``sequential_env_types``."""
    mixed = {tag: shipped_envs()[tag] for tag in MIXED}
    return [
        Check(
            "sequential_env_types: [webshop]",
            mixed,
            {"sequential_env_types": ["webshop"]},
            finding=_homes_with_webshop_in_main,
        ),
    ]


def shipped_checks() -> list[Check]:
    """All checks of the package itself."""
    mixed = {tag: shipped_envs()[tag] for tag in MIXED}
    return [*checks_of_tags(playable(shipped_envs())), *checks_of_disturbances(mixed), *checks_of_the_engine()]


# The command


@refusing
def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run checks, print a line for each, and return the exit status: 0 if all rollouts are equal, else 1."""
    top = parser(prog)
    options = top.parse_intermixed_args(arguments)
    sys.path.append(os.getcwd())  # environments of one's own are looked for where the command is given
    check_no_option(top, options.overrides, lambda name, _: name in settings_of_base())
    if options.overrides and options.config_name is None:
        raise ConfigError(f"{options.overrides[0]!r} changes a configuration; name one with --config-name.")
    if options.actions and options.env_type is None:
        raise ConfigError("--actions is for --env-type; a configuration names examples in env_instruction.")
    if options.backend == "ray":
        check_installed("ray", "--backend ray")
    elif options.remove_nodes:
        raise ConfigError("--remove-nodes is for --backend ray.")
    checks = _chosen_checks(options)
    size = Size(options.seeds, options.turns, options.workers, options.backend, options.patience)
    with _cluster(options.backend) as cluster:
        if options.remove_nodes and cluster is not None:
            tags = checks[0].custom_envs if options.env_type else {tag: shipped_envs()[tag] for tag in MIXED}
            loses = Loses(cluster)
            name = "a node lost before every second turn"
            checks.append(Check(name, tags, disturb=loses, finding=loses.finding, replays=True))
        return _run_all(checks, size)


def _cluster(backend: str) -> Any:
    """A context with a local cluster of three nodes for Ray, and with None for other kinds of workers."""
    if backend != "ray":
        return nullcontext()
    from ragen.llm_agent.testing.local_cluster import LocalCluster

    return LocalCluster()


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
    parser.add_argument("--env-type", help="a registered name, or package.module:Class, to check alone")
    parser.add_argument("--env-config", nargs="*", default=[], metavar="KEY=VALUE", help="fields of its configuration")
    parser.add_argument("--actions", nargs="+", default=[], metavar="TEXT", help="valid actions, if actions are texts")
    parser.add_argument("--max-actions", type=positive, default=10, help="its max_actions_per_traj (default 10)")
    parser.add_argument(
        "-cn",
        "--config-name",
        help="check the tags that this Hydra configuration trains and validates with, in the suite's own workers",
    )
    parser.add_argument(
        "-cp",
        "--config-path",
        "--config-dir",
        metavar="FOLDER",
        help="its folder (default: the package's own)",
    )
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="overrides of that configuration")
    parser.settings = settings_of_base
    size = Size()
    for name, what in (("seeds", "episodes"), ("turns", "turns per episode"), ("workers", "workers")):
        default = getattr(size, name)
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"number of {what} (default {default})")
    parser.add_argument("--patience", type=float, default=1.0, help="seconds until a turn is overdue (default 1)")
    parser.add_argument("--backend", choices=BACKENDS, default=size.backend, help="kind of workers")
    parser.add_argument("--remove-nodes", action="store_true", help="with ray: also remove nodes in mid-episode")
    return parser


def _chosen_checks(options: argparse.Namespace) -> list[Check]:
    if options.env_type is None and options.config_name is None:
        return shipped_checks()
    if options.config_name is not None:
        given = load_config(options.config_name, options.overrides, options.config_path)
        read_config(given, "train")  # its own es_manager is not used, but a mistake in it is not passed over either
        _tell_ignored(options.overrides, referenced_sections(given))
        chosen = tags_of(given, used=True)
    else:
        chosen = {options.env_type.rpartition(":")[2]: _own_entry(options)}
    check_extras(read_config(manager_config(chosen, {}), "train"))  # says what is wrong with them
    checks = [*checks_of_tags(chosen), *checks_of_disturbances(chosen)]
    return [check for check in checks if not check.replays or _are_replayable(chosen)]


def _tell_ignored(overrides: Sequence[str], referenced: Container[str]) -> None:
    """Print to standard error which overrides have no effect on a suite."""
    names = [override.lstrip("+~").partition("=")[0] for override in overrides]
    ignored = [name for name in names if "." in name and not _PLAYED(name) and name.partition(".")[0] not in referenced]
    if ignored:
        why = "the suite gives the replies itself, with its own seeds and workers"
        print(f"ignored: {', '.join(ignored)} ({why})", file=sys.stderr)


def _are_replayable(custom_envs: CustomEnvs) -> bool:
    classes = [resolve_env(entry["env_type"])[0] for entry in custom_envs.values()]
    return all(getattr(env_class, "replayable", True) for env_class in classes)


def _own_entry(options: argparse.Namespace) -> dict[str, Any]:
    from omegaconf import OmegaConf

    if malformed := [field for field in options.env_config if "=" not in field]:
        raise ConfigError(f"--env-config {' '.join(malformed)}: expected KEY=VALUE.")
    fields = OmegaConf.to_container(OmegaConf.from_dotlist(options.env_config))
    entry = {"env_type": options.env_type, "env_config": fields, "max_actions_per_traj": options.max_actions}
    return entry | {"env_instruction": "".join(f"<answer>{action}</answer>" for action in options.actions)}


def _run_all(checks: Sequence[Check], size: Size) -> int:
    print(f"{size.groups} groups of {GROUP_SIZE} for each tag, {size.workers} workers ({size.backend})")
    unequal = 0
    notes: dict[str, str] = {}
    with _quiet_log():
        for check in checks:
            try:
                report = run(check, size)
            except RagenError as error:
                report = Report(f"{type(error).__name__}: {error}")
            times = f"{report.sequential_s:.2f} s in main, {report.parallel_s:.2f} s in workers"
            print(beside(f"{check.name:<42} ", printable(report.difference) or f"equal: {times}"), flush=True)
            if report.difference:
                unequal += 1
                continue
            notes |= {tag: f"some of its episodes failed: {error}" for tag, error in report.raised.items()}
            notes |= {tag: f"no valid action was played: {advice}" for tag, advice in report.unproved.items()}
    for tag, note in notes.items():
        print(printable(f"{tag}: {note}"))
    print(f"{unequal} of {len(checks)} are not equal." if unequal else f"All {len(checks)} are equal.")
    return 1 if unequal else 0


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Suppress warnings about workers killed by checks."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
