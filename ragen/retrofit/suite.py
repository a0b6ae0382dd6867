"""Tests a retrofitted checkout: run in it by ``ragen retrofit CHECKOUT``.

Every tag of the checkout's configurations is played in the modes in which they use it (``train``, ``val``), five times
each with the same seeds and replies: in the main process, in workers, in workers of which one is killed before each
turn, where ``auto`` places it, and by the checkout's original ``EnvStateManager``. Caches, statuses and renderings are
compared as by ``ragen suite``.

Configurations are composed without Hydra and verl: a file's ``defaults`` are followed within the folder, and those
outside of it, such as verl's ``ppo_trainer``, do not concern environments.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import logging
import os
import random
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ragen.commands import CommandParser, beside
from ragen.env.registry import REGISTERED_ENVS, resolve_env
from ragen.errors import ConfigError, RagenError, UnknownEnvError, did_you_mean
from ragen.llm_agent.config.environments import check_engine_settings
from ragen.llm_agent.config.groups import check_tag
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.equivalence import BeforeTurn, Recording
from ragen.retrofit.backup import ENVS, HOW_TO_ADD
from ragen.retrofit.checkout import OWN_PACKAGE
from ragen.retrofit.imports import PACKAGE, modules, needed_modules, references
from ragen.tools.examples import ODD, Examples

EQUAL, REFUSED, NOTHING, DIFFERENT, UNREPEATED = 0, 2, 3, 4, 5  # not 1, which is Python's if it cannot run the suite
GROUPS, GROUP_SIZE, SEED, EPISODES, TURNS = 2, 2, 10_000, 2, 4
_SECTIONS = ("es_manager", "custom_envs", "seed")
_COUNTS = (int, float, list, dict, set)
_PATIENCE = 120  # seconds that a tag may take; what takes longer waits for something that is not here


# What configurations play


@dataclass(frozen=True)
class Played:
    """A tag with its settings, in one mode.

    Attributes:
        tag: The tag.
        mode: ``"train"`` or ``"val"``.
        entry: Its entry in ``custom_envs``.
        seeds: The configuration's seeds by mode; ``"train"`` always has one.
        format_penalty: The penalty of the first configuration that uses the tag.
        sequential: The ``sequential_env_types`` of the configuration: types that it keeps in the main process.
    """

    tag: str
    mode: str
    entry: dict[str, Any]
    seeds: dict[str, int]
    format_penalty: float
    sequential: tuple[str, ...] = ()

    def config(self, **settings: Any) -> Any:
        """A configuration of this tag only, for OmegaConf, since RAGEN's manager reads attributes.

        The other mode has one group of one environment: a manager that reads the wrong part shows.
        """
        sizes = {mode: (GROUPS, GROUP_SIZE) if mode == self.mode else (1, 1) for mode in ("train", "val")}
        parts = {
            mode: {"env_groups": n, "group_size": size, "env_configs": {"tags": [self.tag], "n_groups": [n]}}
            for mode, (n, size) in sizes.items()
        }
        settings = {"format_penalty": self.format_penalty, "crash_report_dir": None, **settings}
        settings |= {"sequential_env_types": list(self.sequential)} if self.sequential else {}
        entries = {self.tag: {"env_config": None, **self.entry}}
        return OmegaConf.create({"seed": self.seeds, "custom_envs": entries, "es_manager": {**parts, **settings}})


def played_tags(folder: Path, names: list[str] | None = None) -> list[Played]:
    """Every tag with which a folder's configurations train or validate, once per mode and combination of settings.

    Args:
        folder: The folder.
        names: The configurations; None for all with environments.

    Raises:
        ConfigError: A configuration does not exist, cannot be read, or has invalid settings of the engine; or one that
            is named has a tag that is no key of ``custom_envs``.
    """
    found: dict[str, Played] = {}
    for name in names or sorted(path.stem for path in folder.glob("*.yaml")):
        config = composed(folder, name)
        try:
            check_engine_settings(config)
            if names and config["custom_envs"]:
                for tag in (*_tags_of(config, "train"), *_tags_of(config, "val")):
                    check_tag(tag, config["custom_envs"])
        except (ConfigError, UnknownEnvError) as error:
            raise ConfigError(f"{folder / name}.yaml: {error}") from error
        for played in _tags(config):
            key = [played.tag, played.mode, played.entry, played.seeds, played.sequential]
            found.setdefault(json.dumps(key, sort_keys=True, default=str), played)
    return list(found.values())


def composed(folder: Path, name: str) -> dict[str, Any]:
    """The sections of a configuration about environments, as plain Python; absent ones are empty.

    Raises:
        ConfigError: A file cannot be read, or its defaults form a circle.
    """
    try:
        whole = _merged(folder, name, ())
        kept = {key: whole[key] for key in _SECTIONS if whole.get(key) is not None}
        return {key: OmegaConf.to_container(kept[key], resolve=True) if key in kept else {} for key in _SECTIONS}
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ConfigError(f"{folder / name}.yaml cannot be read: {' '.join(str(error).split())}") from error


def _merged(folder: Path, name: str, seen: tuple[str, ...]) -> Any:
    """A file merged over those of its defaults that are in the folder."""
    if name in seen:
        raise ConfigError(f"{folder}: the defaults {' -> '.join((*seen, name))} form a circle.")
    own: Any = OmegaConf.load(folder / f"{name}.yaml")
    if not OmegaConf.is_dict(own):  # an empty file
        return OmegaConf.create({})
    defaults = list(own.pop("defaults", []))
    parts: list[Any] = []
    for default in defaults if "_self_" in defaults else [*defaults, "_self_"]:
        if default == "_self_":
            parts.append(own)
        elif isinstance(default, str) and (folder / f"{default}.yaml").is_file():
            parts.append(_merged(folder, default, (*seen, name)))
    return OmegaConf.merge(*parts)


def _tags_of(config: Mapping[str, Any], mode: str) -> Sequence[Any]:
    part = config["es_manager"].get(mode) or {}
    return (part.get("env_configs") or {}).get("tags") or ()


def _tags(config: Mapping[str, Any]) -> Iterator[Played]:
    penalty = config["es_manager"].get("format_penalty")
    seeds = {mode: seed for mode, seed in config["seed"].items() if seed is not None}
    seeds.setdefault("train", SEED)  # RAGEN draws one
    stay = tuple(config["es_manager"].get("sequential_env_types") or ())
    for mode in ("train", "val"):
        for tag in _tags_of(config, mode):
            if tag in config["custom_envs"]:
                yield Played(tag, mode, config["custom_envs"][tag], seeds, -0.1 if penalty is None else penalty, stay)


# Playing


@dataclass
class Verdict:
    """The result for a tag in one mode.

    Attributes:
        played: The tag.
        skipped: Why it was not played or not compared in workers; empty if it was.
        differences: The differences, one sentence each.
        unrepeated: How its environment type played the same episodes differently, if that may be why they differ.
        stays: Whether its environments stay in the main process.
        own: Whether it was compared with the checkout's own manager.
        advice: What to do if no valid action was played; else empty.
    """

    played: Played
    skipped: str = ""
    differences: list[str] = field(default_factory=list)
    unrepeated: str = ""
    stays: bool = False
    own: bool = False
    advice: str = ""

    def __str__(self) -> str:
        name = f"  {self.played.tag:24} {self.played.mode:5} "
        if self.unrepeated:
            return beside(
                name,
                f"NOT REPRODUCIBLE {self.played.entry['env_type']}: {self.unrepeated}. Nothing can be compared with "
                "it: seed its generators in reset(seed), keep nothing in its module, and draw from no global generator "
                "in step (this engine keeps the state of those for each environment, that manager does not). "
                f"{self._next_step()}",
            )
        if self.differences:
            return beside(name, f"DIFFERS {'; '.join(self.differences)}. {self._next_step()}")
        if self.skipped:
            return beside(name, self.skipped)
        equal = "equal, also to its own manager's" if self.own else "equal"
        stays = "; stays in the main process" if self.stays else ""
        unproved = f", but no valid action was played: {self.advice}" if self.advice else ""
        return beside(name, f"{equal}{stays}{unproved}")

    def _next_step(self) -> str:
        """The command that looks for the cause of a difference."""
        env_type, settings = self.played.entry["env_type"], self.played.entry.get("env_config") or {}
        check = shlex.join(["python", "-m", "ragen.tools.check", env_type, *map(_as_word, settings.items())])
        light = "RAGEN_IMPORT_LIGHT=1 " if missing_at_import() else ""
        return f"With --keep, `{light}{check}` in the checkout looks for the cause"


class ClassCounters:
    """What an environment class counts or collects, such as its instances; each run begins with the same values."""

    def __init__(self, env_type: str) -> None:
        """Store the current counters of the class of a type."""
        self._class: Any = None
        with contextlib.suppress(RagenError):  # it is not played, then
            self._class = resolve_env(env_type)[0]
        self._values = self._read()

    def restore(self) -> None:
        """Restore the stored counters."""
        for name, value in self._read().items():
            if name in self._values and repr(value) != repr(self._values[name]):
                setattr(self._class, name, copy.deepcopy(self._values[name]))

    def _read(self) -> dict[str, Any]:
        values = vars(self._class) if self._class is not None else {}
        kept = {}
        for name, value in values.items():
            if type(value) in _COUNTS and name[:2] != "__":
                with contextlib.suppress(Exception):  # something in it cannot be copied
                    kept[name] = copy.deepcopy(value)
        return kept


def examine(played: Played, workers: int, own: Any) -> Verdict:
    """Play a tag in one mode in all five ways, and compare; where they differ, find out whether one way repeats."""
    examples, error = _examples(played)
    verdict = _compared(played, workers, own, examples)
    if error is not None and not verdict.skipped:  # of example_action, since nothing else raises again
        verdict.skipped = f"not compared: {first_line(error)}"
    if verdict.differences:
        verdict.unrepeated = _unrepeated(played, own, examples)
    return verdict


def _compared(played: Played, workers: int, own: Any, examples: Examples) -> Verdict:
    verdict, counters = Verdict(played, own=own is not None), ClassCounters(played.entry["env_type"])
    in_main, mode = played.config(use_multiprocessing=False), played.mode
    strict = played.config(use_multiprocessing=False, on_env_failure="raise")
    ours, error = attempt(EnvStateManager, strict, mode, examples, _PATIENCE)
    if error is not None:
        when = f"not compared in workers: raises in episode {ours.episodes}:" if ours.notes else "not played:"
        verdict.skipped = f"{when} {_why(played, error)}"
    if own is not None and not isinstance(error, TimeoutError):
        counters.restore()
        theirs, their_error = attempt(own, in_main, mode, examples)
        if error is None and their_error is not None:
            verdict.differences.append(f"its own EnvStateManager raised: {first_line(their_error)}")
        elif error is not None and their_error is None:
            verdict.differences.append(f"its own EnvStateManager did not raise {first_line(error)}")
        elif difference := theirs.first_difference(ours):
            verdict.differences.append(f"from its own EnvStateManager's: {difference}")
        elif ours.notes and their_error is not None and error is not None:
            is_same = first_line(their_error) == first_line(error)
            verdict.skipped += f"; its own manager {'does so too' if is_same else f'raises {first_line(their_error)}'}"
    if error is not None:
        return verdict
    counters.restore()
    try:
        with EnvStateManager(in_main, mode) as manager:
            expected = record(manager, examples)
    except Exception as failure:
        verdict.skipped = f"not compared in workers: {first_line(failure)}"
        return verdict
    ways = ("in workers", True, None), ("with workers killed", True, kill_a_worker), ("under auto", "auto", None)
    for name, placed, disturb in ways:
        counters.restore()
        try:
            with EnvStateManager(played.config(use_multiprocessing=placed, max_workers=workers), mode) as manager:
                got = record(manager, examples, before_turn=disturb)
                if placed is True:
                    verdict.stays = manager.home(0) == "main"
        except Exception as failure:
            verdict.differences.append(f"{name}: {first_line(failure)}")
            continue
        if difference := expected.first_difference(got):
            verdict.differences.append(f"{name}: {difference}")
    verdict.advice = examples.advice
    return verdict


def _examples(played: Played) -> tuple[Examples, Exception | None]:
    """The examples of a tag; where its environments give some, a manager is played that asks for them."""
    env_class = None
    with contextlib.suppress(RagenError):  # it is not played, then
        env_class = resolve_env(played.entry["env_type"])[0]
    examples, error = Examples(played.entry, env_class), None
    if examples.can_ask:
        examples.asks, counters = True, ClassCounters(played.entry["env_type"])
        strict = played.config(use_multiprocessing=False, on_env_failure="raise")
        _, error = attempt(EnvStateManager, strict, played.mode, examples, _PATIENCE)
        counters.restore()
        examples.asks = False
    return examples, error


def _why(played: Played, error: Exception) -> str:
    env_type = played.entry["env_type"]
    if not isinstance(error, UnknownEnvError) or ":" in env_type or env_type in REGISTERED_ENVS:
        return first_line(error)
    return f"{ENVS} registers no {env_type!r}.{did_you_mean(env_type, REGISTERED_ENVS) or f' {HOW_TO_ADD}.'}"


def missing_modules(env_types: Iterable[str]) -> list[str]:
    """Names of the packages that the sources of environments import, and that this Python lacks.

    Args:
        env_types: Their types.
    """
    names: set[str] = set()
    for path in filter(None, map(REGISTERED_ENVS.path_of, env_types)):
        module = PACKAGE.parent.joinpath(*path.partition(":")[0].split(".")).with_suffix(".py")
        for file in module.parent.glob("*.py") if module.parent.name != "env" else [module]:
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                names.update(target.partition(".")[0] for target, _ in references(file))
    return _lacked(names)


def missing_at_import() -> list[str]:
    """Names of the packages that the checkout's own ``ragen/__init__.py`` imports, and that this Python lacks."""
    own = OWN_PACKAGE.removesuffix(".py").replace("/", ".")
    if own not in modules():
        return []
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        return _lacked(needed_modules((own,)).outside)
    return []


def _lacked(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


def _unrepeated(played: Played, own: Any, examples: Examples) -> str:
    """How a manager, played twice in this process, shows something else the second time; empty if none does."""
    config, counters = played.config(use_multiprocessing=False), ClassCounters(played.entry["env_type"])
    managers = {"its own EnvStateManager": own, "the main process": EnvStateManager}
    for name, kind in managers.items():
        if kind is None:
            continue
        first, again = (_fresh(counters, kind, config, played.mode, examples) for _ in range(2))
        if difference := first.first_difference(again):
            return f"{name} played it twice with the same seeds and replies, and {difference}"
    return ""


def _fresh(counters: ClassCounters, kind: Any, config: Any, mode: str, examples: Examples) -> Recording:
    counters.restore()
    return attempt(kind, config, mode, examples, _PATIENCE)[0]


def attempt(
    kind: Any, config: Any, mode: str, examples: Examples, seconds: int = 0
) -> tuple[Recording, Exception | None]:
    """Record a new manager as far as it comes.

    Args:
        kind: Its class.
        config: The configuration.
        mode: The mode.
        examples: Examples of actions.
        seconds: How long it may take; 0 for any time.

    Returns:
        The recording, with numbers alike, and the exception that ended it early.
    """
    seen = Recording()
    try:
        with _alarm(seconds), contextlib.closing(kind(config, mode=mode)) as manager:
            record(manager, examples, as_numbers=True, seen=seen)
    except Exception as error:
        return seen, error
    return seen, None


def record(
    manager: Any,
    examples: Examples,
    before_turn: BeforeTurn | None = None,
    as_numbers: bool = False,
    seen: Recording | None = None,
) -> Recording:
    """Record everything that a manager, RAGEN's or ours, shows after each call of some episodes.

    Two resets follow, one with a seed and one without.

    Args:
        manager: The manager.
        examples: Examples of actions; they see what was played.
        before_turn: Called with the manager and the turn's index before each turn, to disturb it.
        as_numbers: Whether ``1``, ``1.0`` and ``numpy.float64(1)`` are equal, a list and a tuple too, the order of keys
            does not matter, and :data:`_DERIVED` is left out.
        seen: The recording to add to; None for a new one.
    """
    seen = Recording() if seen is None else seen
    shown = _loose if as_numbers else lambda value: value

    def note(place: str, caches: Any) -> None:
        seen.note(place, shown([caches, [vars(entry["status"]) for entry in manager.envs]]))

    for episode in range(EPISODES):
        seen.begin_episode()
        active = manager.reset()
        note("reset", active)
        for turn in range(TURNS):
            if not active:
                break
            inputs = [_input(manager.envs[cache["env_id"]], examples, episode, turn) for cache in active]
            if before_turn is not None:
                before_turn(manager, turn)
            active = manager.step(inputs)
            note(f"turn {turn}", active)
        for cache in manager.rollout_cache:
            examples.see(cache["history"])
        seen.note("end", shown([manager.render(), manager.get_rollout_states()]))
    note("reset with a seed", manager.reset(seed=SEED))
    note("reset after it", manager.reset())
    return seen


def _input(entry: dict[str, Any], examples: Examples, episode: int, turn: int) -> dict[str, Any]:
    """An environment's input for ``EnvStateManager.step``, a function of environment, episode, turn and examples."""
    when = (episode, turn, entry["env_id"])
    rng = random.Random(str(when))
    lookup = getattr(entry["env"].config, "action_lookup", None)
    names = [str(name) for name in (lookup or {}).values()]
    only_good = rng.random() < 0.75
    choices = examples.choices(entry["env"], names, when, only_good)
    most = 3 if names or not only_good else 1  # a turn's info is that of its last action
    actions = [rng.choice(choices) for _ in range(rng.randint(1, min(most, len(choices))))]
    actions += [rng.choice(ODD)] if rng.random() < 0.2 else []
    if sum(when) % (GROUPS * GROUP_SIZE) == 0:
        actions = []  # of a reply that cannot be parsed
    answer = f"<answer>{' || '.join(actions)}</answer>"
    texts = {"llm_response": answer, "llm_raw_response": f"<think></think>{answer}"}
    return {"env_id": entry["env_id"], "actions": actions, **texts}


def _as_word(setting: tuple[str, Any]) -> str:
    """A setting as a command line takes it."""
    name, value = setting
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


_DERIVED = ("metrics", "raw_reward", "manager_invalid_action")
"""What managers compute from the infos that are compared, each version of RAGEN in its own way."""


def _loose(value: Any) -> Any:
    """A value with every number as a float, every sequence as a list, keys in one order, without :data:`_DERIVED`."""
    if isinstance(value, Mapping):
        return {key: _loose(value[key]) for key in sorted(value, key=repr) if key not in _DERIVED}
    if isinstance(value, list | tuple):
        return [_loose(each) for each in value]
    return float(value) if isinstance(value, int | float | np.number | np.bool_) else value


def kill_a_worker(manager: EnvStateManager, turn: int) -> None:
    """Kill another worker in every turn."""
    pids = [lane.pid for lane in manager.lane_stats() if lane.pid not in (None, os.getpid())]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[turn % len(pids)], signal.SIGKILL)  # type: ignore[arg-type]


def first_line(error: BaseException) -> str:
    """The message of an exception, or of its cause where it is one of this package's."""
    cause = error
    while cause.__cause__ is not None and isinstance(cause, RagenError):
        cause = cause.__cause__
    text = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return f"{type(cause).__name__}: {text}"[:200]


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """Interrupt the block after some seconds."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"it takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of environments, imported packages and child processes."""
    sys.stdout.flush()
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream, _ in kept:
            os.dup2(nothing, stream)
        yield
    finally:
        sys.stdout.flush()
        for stream, copied in kept:
            os.dup2(copied, stream)
            os.close(copied)
        os.close(nothing)


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine every tag, and print a line for each.

    Returns:
        0 if all rollouts are equal; 2 if a configuration cannot be read, 3 if none could be played, 4 if some differ,
        5 if they differ only where an environment does not repeat itself.
    """
    parser = CommandParser(prog="python -m ragen.retrofit.suite", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "--config-name", action="append", help="one of them; may be given more than once (default: all)"
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: %(default)s)")
    parser.add_argument("--own", type=Path, required=True, help="file of the EnvStateManager that it had before")
    options = parser.parse_args(arguments)
    try:
        tags = played_tags(Path("config"), options.config_name)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    logging.disable(logging.WARNING)
    own = _own_manager(options.own)
    verdicts = []
    for played in tags:
        with _quiet():
            verdict = examine(played, options.workers, own)
        verdicts.append(verdict)
        print(verdict, flush=True)
    unrepeated = sum(bool(v.unrepeated) for v in verdicts)
    different = sum(bool(v.differences) for v in verdicts) - unrepeated
    skipped = sum(bool(v.skipped and not v.differences) for v in verdicts)
    equal = len(verdicts) - skipped - different - unrepeated
    also = f"{unrepeated} not reproducible, " if unrepeated else ""
    unproved = sum(bool(v.advice and not v.differences and not v.skipped) for v in verdicts)
    but = f" ({unproved} without a valid action)" if unproved else ""
    print(f"{equal} equal{but}, {different} different, {also}{skipped} not compared.")
    if missing := missing_modules(dict.fromkeys(v.played.entry["env_type"] for v in verdicts if v.skipped)):
        advice = "To compare them, install what the checkout requires there, and run this again."
        print(beside("", f"Their sources import {', '.join(missing)}, which {sys.executable} lacks. {advice}"))
    code = DIFFERENT if different else UNREPEATED if unrepeated else EQUAL if equal else NOTHING
    if code == EQUAL and (missing := missing_at_import()):  # else the retrofit is usually undone
        names = ", ".join(missing)
        reason = f"which {sys.executable} lacks: {OWN_PACKAGE} imports it; RAGEN_IMPORT_LIGHT=1 leaves that out."
        print(beside("", f"`python -m ragen.tools.check` and your own scripts need {names}, {reason}"))
    return code


def _own_manager(path: Path) -> Any:
    """The checkout's original manager class; None, with a printed reason, if it cannot be imported."""
    spec = importlib.util.spec_from_file_location("own_es_manager", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print(f"its own EnvStateManager cannot be imported here, so nothing is compared with it: {first_line(error)}")
        return None
    return module.EnvStateManager


if __name__ == "__main__":
    sys.exit(main())
