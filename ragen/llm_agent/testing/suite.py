"""The equivalence suite: checks that rollouts in worker processes equal those in the main process.

    ragen suite                                     every environment, and all disturbances
    ragen suite --backend executor                  the same with another kind of workers
    ragen suite --backend ray --remove-nodes        with workers on a local Ray cluster of several nodes, some of which
                                                    are lost
    ragen suite --config-name my_config key=value   the tags of a configuration
    ragen suite --env-type my_package.my_module:MyEnv --env-config size=8 level=hard

Each check plays the same seeds and replies twice: in the main process, undisturbed, and in workers. Everything that the
two managers show is compared without tolerance: states, image bytes, rewards and their types, infos, penalties,
statuses, metrics, and the order of ``env_outputs``. The command prints a table and exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ragen.commands import CommandParser, check_no_option, positive
from ragen.env import resolve_env
from ragen.env.base import BaseEnv
from ragen.env.registry import registered_names, warn_of_another_package
from ragen.errors import ConfigError, RagenError, without_values
from ragen.extras import check_installed
from ragen.llm_agent.backends.policies import POLICIES
from ragen.llm_agent.config.environments import check_extras, read_config
from ragen.llm_agent.config.loading import load_config, referenced_sections, settings_of_base
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.random_player import RandomPlayer
from ragen.output import new_console, print_table
from ragen.parallel.episode import program
from ragen.parallel.settings import BACKENDS
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
        raised: What environments raised first in the main process, undisturbed, by tag.
        is_compared: Whether rollouts were compared.
    """

    difference: str
    sequential_s: float
    parallel_s: float
    unproved: Mapping[str, str] = field(default_factory=dict)
    raised: Mapping[str, str] = field(default_factory=dict)
    is_compared: bool = True


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
            return Report(f"{tag} cannot be played: {each.failure}; {look}", expected.seconds, 0.0, is_compared=False)
    raised = {tag: each.raised for tag, each in examples.items() if each.raised}
    workers = {"max_workers": size.workers, "backend": size.backend}
    settings = {"use_multiprocessing": True, **workers, **check.settings}
    if check.waits:
        settings["step_timeout"] = size.patience
    if check.waits or check.disturb is not None:
        settings["crash_report_dir"] = None  # what fails then is meant to
    got, finding = _played(check, size, settings, examples, check.disturb, check.finding)
    differs = expected.first_difference(got)
    difference = str(differs or finding)
    if difference and (own := expected.first_difference(_played(check, size, in_main, examples)[0])):
        difference = f"not reproducible: the main process played it twice, and {own}"
        differs = own
    if differs:
        difference += "; `ragen check` looks for the cause"
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
        with contextlib.suppress(ProcessLookupError):  # already dead
            os.kill(pids[turn % len(pids)], signal.SIGKILL)


def freeze_a_worker(manager: EnvStateManager, turn: int) -> None:
    """Stop a worker in the first turn of each episode, so that it misses its deadline."""
    pids = _worker_pids(manager)
    if turn == 0 and pids:
        os.kill(pids[0], signal.SIGSTOP)


def _worker_pids(manager: EnvStateManager) -> list[int]:
    return [lane.pid for lane in manager.lane_stats() if lane.pid not in (None, os.getpid())]


@dataclass
class StallsOnceConfig:
    """Configuration of :class:`StallsOnce`.

    Attributes:
        folder: A folder, whose file ``stalled`` marks that it has happened.
        action_lookup: Number to name of the actions.
    """

    folder: str
    action_lookup: dict[int, str] = field(default_factory=lambda: {1: "One", 2: "Two"})


class StallsOnce(BaseEnv):
    """Counts; the first step in a worker without the file ``stalled`` never ends."""

    config_class = StallsOnceConfig
    uses_global_rng = False

    def __init__(self, config: StallsOnceConfig) -> None:
        """Take a configuration."""
        self.config = config
        self._count = 0

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        """Begin at the seed."""
        self._count = seed or 0
        return self.render()

    def step(self, action: int) -> tuple[str, float, bool, dict[str, Any]]:
        """Add the action, or stall."""
        if program.in_worker:
            with contextlib.suppress(FileExistsError):
                (Path(self.config.folder) / "stalled").touch(exist_ok=False)
                threading.Event().wait()
        self._count += action
        return self.render(), self._count / 10, self._count % 7 == 0, {"count": self._count}

    def render(self, mode: str | None = None) -> str:
        """The count."""
        return f"count: {self._count}"


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ragen-equivalence-")


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
    if main.envs or main.turns:
        return f"{main.envs} environments live in the main process, and it played {main.turns} turns"
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
    """Checks with environments made for them."""
    mixed = {tag: shipped_envs()[tag] for tag in MIXED}
    stalling = {"env_type": f"{__name__}:{StallsOnce.__name__}", "env_config": {"folder": _scratch().name}}
    beside = {tag: mixed[tag] for tag in ("SimpleSokoban", "Bandit")}
    return [
        Check(
            "sequential_env_types: [webshop]",
            mixed,
            {"sequential_env_types": ["webshop"]},
            finding=_homes_with_webshop_in_main,
        ),
        Check(
            "an environment hangs once, and falls back",
            {**beside, "StallsOnce": stalling},
            finding=_no_restart,
            waits=True,
        ),
    ]


def checks_of_losses(custom_envs: CustomEnvs, cluster: LocalCluster) -> list[Check]:
    """A check that loses nodes in mid-episode."""
    loses = Loses(cluster)
    name = "a node lost before every second turn"
    return [Check(name, custom_envs, disturb=loses, finding=loses.finding, replays=True)]


def shipped_checks() -> list[Check]:
    """All checks of the package itself."""
    mixed = {tag: shipped_envs()[tag] for tag in MIXED}
    return [*checks_of_tags(playable(shipped_envs())), *checks_of_disturbances(mixed), *checks_of_the_engine()]


# The command


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run checks, print a table, and return the exit status: 0 if all rollouts are equal, else 1."""
    top = parser(prog)
    options = top.parse_intermixed_args(arguments)
    sys.path.append(os.getcwd())  # environments of one's own are looked for where the command is given
    try:
        check_no_option(top, options.overrides, lambda name, _: name in settings_of_base())
        if options.overrides and options.config_name is None:
            raise ConfigError(f"{options.overrides[0]!r} changes a configuration; name one with --config-name.")
        if options.actions and options.env_type is None:
            raise ConfigError("--actions is for --env-type; a configuration names examples in env_instruction.")
        if options.backend != "ray" and (options.remove_nodes or options.nodes):
            raise ConfigError("--nodes and --remove-nodes are for --backend ray.")
        if options.backend == "ray":
            check_installed("ray", "--backend ray")
        checks = _chosen_checks(options)
    except RagenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    nodes = options.nodes or 3
    workers = options.workers or (nodes if options.backend == "ray" else Size.workers)
    size = Size(options.seeds, options.turns, workers, options.backend, options.patience)
    if options.backend != "ray":
        return _run_all(checks, size)
    from ragen.llm_agent.testing.local_cluster import LocalCluster

    with LocalCluster(nodes) as cluster:
        if options.remove_nodes:
            tags = checks[0].custom_envs if options.env_type else {tag: shipped_envs()[tag] for tag in MIXED}
            checks += checks_of_losses(tags, cluster)
        return _run_all(checks, size)


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
    default = Size()
    parser.add_argument(
        "--seeds", type=positive, default=default.seeds, help=f"number of episodes (default {default.seeds})"
    )
    parser.add_argument(
        "--turns", type=positive, default=default.turns, help=f"turns per episode (default {default.turns})"
    )
    parser.add_argument(
        "--patience", type=float, default=default.patience, help="seconds until a turn is overdue (default 1)"
    )
    parser.add_argument(
        "--workers", type=positive, help=f"number of workers (default {default.workers}; with ray, one per node)"
    )
    parser.add_argument("--backend", choices=BACKENDS, default=default.backend, help="kind of workers")
    parser.add_argument(
        "--nodes", type=positive, help="number of nodes in the cluster started for --backend ray (default 3)"
    )
    parser.add_argument("--remove-nodes", action="store_true", help="also remove nodes in mid-episode")
    return parser


def _chosen_checks(options: argparse.Namespace) -> list[Check]:
    if options.env_type is None and options.config_name is None:
        warn_of_another_package()
        return shipped_checks()
    if options.config_name is not None:
        given = load_config(options.config_name, options.overrides, options.config_path)
        warn_of_another_package(Path(options.config_path).parent if options.config_path else None)
        read_config(given, "train")  # its own es_manager is not used, but a mistake in it is not passed over either
        _tell_ignored(options.overrides, referenced_sections(given))
        chosen = tags_of(given, used=True)
    else:
        if resolve_env(options.env_type)[0].__module__.startswith("ragen."):
            warn_of_another_package()
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
    from rich.markup import escape

    from ragen.llm_agent.evaluation.tables import plain_table

    console = new_console()
    table = plain_table(_title(size), "what", "seeds", "turns", "sequential", "workers", "rollouts")
    different: dict[str, list[tuple[str, str]]] = {}
    not_compared = 0
    unproved: dict[str, str] = {}
    raised: dict[str, str] = {}
    with _quiet_log(), console.status("") as status:
        for number, check in enumerate(checks, 1):
            status.update(escape(f"{number} of {len(checks)}: {check}"))
            report = _run_or_explain(check, size)
            table.add_row(*_cells(check, size, report))
            unproved |= {} if report.difference else report.unproved
            raised |= {} if report.difference else report.raised
            not_compared += not report.is_compared
            if report.difference:
                different.setdefault(without_values(report.difference), []).append((check.name, report.difference))
    print_table(console, table)
    for alike in different.values():
        names, difference = "; ".join(name for name, _ in alike), alike[0][1]
        names = "every check" if len(alike) == len(checks) > 1 else names
        console.print(f"{names}: {difference}", style="red", markup=False, highlight=False, soft_wrap=True)
    for tag, advice in unproved.items():
        text = f"{tag}: equal, but no valid action was played: {advice}"
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for tag, error in raised.items():
        text = f"{tag}: equal, but some of its episodes failed, everywhere in the same way: {error}"
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    count = sum(map(len, different.values())) - not_compared
    counts = {"differ": count, "could not be played": not_compared}
    parts = [f"{number} of {len(checks)} {what}" for what, number in counts.items() if number]
    told = ", ".join(parts) or f"All {len(checks)} are equal"
    told += f"; no valid action of {', '.join(unproved)} was played." if unproved else "."
    style = "red" if different else "yellow" if unproved else "green"
    console.print(told, style=style, markup=False, highlight=False)
    return 1 if different else 0


def _title(size: Size) -> str:
    groups = f"{size.groups} groups of {GROUP_SIZE} for each tag"
    return f"{groups}, {size.workers} workers ({size.backend}), in reset and step"


def _run_or_explain(check: Check, size: Size) -> Report:
    try:
        return run(check, size)
    except RagenError as error:
        return Report(f"{type(error).__name__}: {error}", 0.0, 0.0, is_compared=False)


def _cells(check: Check, size: Size, report: Report) -> tuple[Any, ...]:
    from rich.text import Text

    verdict = Text("equal: see below", style="yellow") if report.unproved else Text("equal", style="green")
    what = "differ" if report.is_compared else "not played"
    verdict = Text(f"{what}: see below", style="red") if report.difference else verdict
    seeds = len(check.seeds or ()) or size.seeds
    times = (f"{1000 * seconds:.0f} ms" for seconds in (report.sequential_s, report.parallel_s))
    return Text(check.name), str(seeds), str(size.turns), *times, verdict


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Suppress warnings about workers killed by checks."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
