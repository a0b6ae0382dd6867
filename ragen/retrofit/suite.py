"""Whether a retrofitted checkout plays as it did: ``cd CHECKOUT && python -m ragen.retrofit.suite``.

Every tag that the checkout's configurations play is played four times with the same seeds and the same replies: in the
main process, in workers, in workers of which one is killed before each turn, and by the ``EnvStateManager`` that the
checkout had before. Caches, statuses and what is rendered are compared. Then it is timed with as many environments as
the configurations have, or fewer where those take long.

Configurations are put together without Hydra, verl or anything that they start: a file's ``defaults`` are followed
within the folder, and what is not there (verl's ``ppo_trainer``) says nothing of environments.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import json
import logging
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from PIL import Image
from yaml import YAMLError

from ragen.env.registry import resolve_env
from ragen.errors import ConfigError, RagenError, in_short
from ragen.llm_agent.es_manager import EnvStateManager

EQUAL, DIFFERENT, REFUSED, NOTHING = 0, 1, 2, 3
GROUPS, GROUP_SIZE, SEED, EPISODES, TURNS = 2, 2, 10_000, 2, 4
ODD = ("", "fly", "Up Down", "<answer>Up</answer>", "search[lamp]", "1 + 1", "\u2191")
_SECTIONS = ("es_manager", "custom_envs", "seed")
_BUDGET = 1.5  # seconds that a timed episode may take in the main process
_MOST_TIMED = 64
_PATIENCE = 30  # seconds that an episode of one tag may take; what takes longer waits for something that is not here
_ABSENT = object()


# What configurations play


@dataclass(frozen=True)
class Played:
    """A tag as configurations play it.

    Attributes:
        tag: The tag.
        entry: Its entry in ``custom_envs``.
        configs: Names of the configurations that play it so.
        most: Environments that the largest of them has.
        format_penalty: The penalty that the first of them sets.
    """

    tag: str
    entry: dict[str, Any]
    configs: tuple[str, ...]
    most: int
    format_penalty: float


def played_tags(folder: Path, names: list[str] | None = None) -> list[Played]:
    """Every tag that the configurations of a folder train or validate with, once for each way of playing it.

    Args:
        folder: The folder.
        names: The configurations; None for all that have environments.

    Raises:
        ConfigError: A configuration that was asked for is not there, or cannot be read.
    """
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"{folder} has no configuration {', '.join(unknown)}; it has {', '.join(known) or 'none'}.")
    found: dict[str, Played] = {}
    for name in names or known:
        for tag, entry, most, penalty in _tags(composed(folder, name)):
            key = json.dumps([tag, entry], sort_keys=True, default=str)
            before = found.get(key, Played(tag, entry, (), 0, penalty))
            found[key] = Played(tag, entry, (*before.configs, name), max(most, before.most), before.format_penalty)
    return list(found.values())


def composed(folder: Path, name: str) -> dict[str, Any]:
    """The sections of a configuration that are about environments, as plain Python; an absent section is empty.

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
    """A file merged over those of its defaults that lie in the folder."""
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


def _tags(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], int, float]]:
    for mode in ("train", "val"):
        part = config["es_manager"].get(mode) or {}
        tags = (part.get("env_configs") or {}).get("tags") or ()
        size = int(part.get("env_groups") or 1) * int(part.get("group_size") or 1)
        penalty = config["es_manager"].get("format_penalty")
        for tag in tags:
            if tag in config["custom_envs"]:
                yield tag, config["custom_envs"][tag], size, -0.1 if penalty is None else penalty


def manager_config(played: Played, groups: int, size: int, **settings: Any) -> Any:
    """A configuration of one tag, as OmegaConf has it: RAGEN's own manager reads attributes."""
    part = {"env_groups": groups, "group_size": size, "env_configs": {"tags": [played.tag], "n_groups": [groups]}}
    settings = {"format_penalty": played.format_penalty, "crash_report_dir": None, **settings}
    entries = {played.tag: {"env_config": None, **played.entry}}
    return OmegaConf.create(
        {"seed": {"train": SEED}, "custom_envs": entries, "es_manager": {"train": part, **settings}}
    )


# Playing


@dataclass
class Verdict:
    """What was found of a tag.

    Attributes:
        played: The tag.
        skipped: Why it was not played; empty if it was.
        differences: What differed, a sentence each.
        entries: History entries that were compared with those of the checkout's own manager.
        envs: Environments that were timed; 0 if none were.
        main_s: Seconds that an episode of these took in the main process.
        workers_s: Likewise in workers.
        stays: Whether it stays in the main process, so that there is nothing to time.
    """

    played: Played
    skipped: str = ""
    differences: list[str] = field(default_factory=list)
    entries: int = 0
    envs: int = 0
    main_s: float = 0.0
    workers_s: float = 0.0
    stays: bool = False


class Replies:
    """Draws replies once, and gives the same ones to every manager that plays the same episodes after that."""

    def __init__(self) -> None:
        """Start with nothing drawn."""
        self._drawn: dict[tuple[int, int, int], list[str]] = {}

    def inputs(self, manager: Any, caches: Sequence[dict[str, Any]], episode: int, turn: int) -> list[dict[str, Any]]:
        """Inputs of ``EnvStateManager.step`` for the environments of these caches."""
        given = []
        for cache in caches:
            key = episode, turn, cache["env_id"]
            if key not in self._drawn:
                self._drawn[key] = self._draw(manager.envs[cache["env_id"]], key)
            actions = self._drawn[key]
            answer = f"<answer>{' || '.join(actions)}</answer>"
            raw = f"<think></think>{answer}"
            given.append({"env_id": key[2], "actions": actions, "llm_response": answer, "llm_raw_response": raw})
        return given

    def _draw(self, entry: dict[str, Any], key: tuple[int, int, int]) -> list[str]:
        rng = random.Random(str(key))
        lookup = getattr(entry["env"].config, "action_lookup", None)
        names = [str(name) for name in lookup.values()] if lookup else [*ODD]
        actions = [rng.choice(names) for _ in range(rng.randint(1, 3))]
        return [*actions, rng.choice(ODD)] if rng.random() < 0.2 else actions


class ClassCounters:
    """Numbers that a class of environments keeps in itself, such as its instances; every run begins with the same."""

    def __init__(self, env_type: str) -> None:
        """Remember the numbers of the class of a type as they are now."""
        self._class: Any = None
        with contextlib.suppress(RagenError):  # it is not played, then
            self._class = resolve_env(env_type)[0]
        self._values = self._read()

    def restore(self) -> None:
        """Set what has changed since this was made."""
        for name, value in self._read().items():
            if name in self._values and value != self._values[name]:
                setattr(self._class, name, self._values[name])

    def _read(self) -> dict[str, Any]:
        values = vars(self._class) if self._class is not None else {}
        return {name: value for name, value in values.items() if type(value) in (int, float) and name[:2] != "__"}


def examine(played: Played, workers: int, own: Any) -> Verdict:
    """Play a tag in every way, compare, and time it."""
    verdict, replies = Verdict(played), Replies()
    counters = ClassCounters(played.entry["env_type"])
    lanes = {"use_multiprocessing": True, "max_workers": workers}
    try:
        with _alarm(_PATIENCE):
            _shown(played, Replies(), 1, use_multiprocessing=False, on_env_failure="raise")
        counters.restore()
        start = time.perf_counter()
        expected, _ = _shown(played, replies, use_multiprocessing=False)
        seconds = (time.perf_counter() - start) / (EPISODES * GROUPS * GROUP_SIZE)
    except Exception as error:
        verdict.skipped = first_line(error)
        return verdict
    for name, disturb in (("in workers", None), ("with workers killed", kill_a_worker)):
        counters.restore()
        try:
            got, placement = _shown(played, replies, disturb=disturb, **lanes)
        except Exception as error:
            verdict.differences.append(f"{name}: {first_line(error)}")
            continue
        verdict.stays = placement == "main"
        if difference := first_difference(expected, got, strict=True):
            verdict.differences.append(f"{name}: {difference}")
    if own is not None:
        _compare_with_own(verdict, replies, own, counters, expected)
    if not verdict.differences and not verdict.stays:
        _time(verdict, lanes, seconds)
    return verdict


def _shown(
    played: Played, replies: Replies, episodes: int = EPISODES, disturb: Any = None, **settings: Any
) -> tuple[list[Any], str]:
    """What a manager of ours shows of some episodes, and where its first environment lived."""
    with EnvStateManager(manager_config(played, GROUPS, GROUP_SIZE, **settings)) as manager:
        return _episodes(manager, replies, episodes, disturb), manager.home(0)


def _episodes(
    manager: Any,
    replies: Replies,
    episodes: int = EPISODES,
    before_turn: Callable[[EnvStateManager, int], None] | None = None,
) -> list[Any]:
    """Everything that a manager shows, RAGEN's or ours, as it is after each call."""
    shown: list[Any] = []
    for episode in range(episodes):
        active = manager.reset()
        shown.append(copy.deepcopy(active))
        for turn in range(TURNS):
            if not active:
                break
            inputs = replies.inputs(manager, active, episode, turn)
            if before_turn is not None:
                before_turn(manager, turn)
            active = manager.step(inputs)
            statuses = [vars(entry["status"]) for entry in manager.envs]
            shown.append(copy.deepcopy([active, statuses]))
        shown.append(copy.deepcopy({"render": manager.render(), "states": manager.get_rollout_states()}))
    return shown


def kill_a_worker(manager: EnvStateManager, turn: int) -> None:
    """Kill another worker in every turn."""
    pids = [lane.pid for lane in manager.lane_stats() if lane.pid not in (None, os.getpid())]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[turn % len(pids)], signal.SIGKILL)  # type: ignore[arg-type]


def _compare_with_own(
    verdict: Verdict, replies: Replies, own: Any, counters: ClassCounters, expected: list[Any]
) -> None:
    """Play what was played with the checkout's own manager too."""
    counters.restore()
    try:
        manager = own(manager_config(verdict.played, GROUPS, GROUP_SIZE, use_multiprocessing=False))
        got = _episodes(manager, replies)
        manager.close()
    except Exception as error:
        verdict.differences.append(f"its own EnvStateManager raised: {first_line(error)}")
        return
    ends = [each["states"] for each in got if isinstance(each, dict)]
    verdict.entries = sum(len(cache["history"]) for states in ends for cache in states)
    if difference := first_difference(got, expected):
        verdict.differences.append(f"from its own EnvStateManager's: {difference}")


def _time(verdict: Verdict, lanes: dict[str, Any], seconds: float) -> None:
    """Time an episode in the main process and in workers, after one that warms both up."""
    affordable = int(_BUDGET / max(seconds, 1e-6)) // GROUP_SIZE * GROUP_SIZE
    verdict.envs = max(4 * GROUP_SIZE, min(verdict.played.most, _MOST_TIMED, affordable))
    times = []
    for settings in ({"use_multiprocessing": False}, lanes):
        replies = Replies()
        groups = max(1, verdict.envs // GROUP_SIZE)
        with EnvStateManager(manager_config(verdict.played, groups, GROUP_SIZE, **settings)) as manager:
            manager.reset(SEED - 1)
            times.append(min(_timed_episode(manager, replies, episode) for episode in range(2)))
    verdict.main_s, verdict.workers_s = times


def _timed_episode(manager: EnvStateManager, replies: Replies, episode: int) -> float:
    start = time.perf_counter()
    active = manager.reset(SEED)
    spent = time.perf_counter() - start
    for turn in range(TURNS):
        inputs = replies.inputs(manager, active, episode, turn)
        start = time.perf_counter()
        active = manager.step(inputs) if inputs else []
        spent += time.perf_counter() - start
    return spent


# Comparing


def first_difference(expected: Any, got: Any, place: str = "", strict: bool = False) -> str:
    """Where two values differ, and what is there; empty if they are equal.

    Args:
        expected: One.
        got: The other.
        place: Where they are, for the message.
        strict: Whether ``1``, ``1.0`` and ``numpy.float64(1)``, and a list and a tuple, are different. NaN always
            equals itself.
    """
    pairs: Any = ()
    if not strict and isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        got = type(expected)(got)
    if type(expected) is not type(got) and (strict or not (_is_number(expected) and _is_number(got))):
        return f"{place or 'value'}: {_excerpt(expected)} became {_excerpt(got)}"
    if isinstance(expected, Mapping):
        keys = dict.fromkeys([*expected, *got])
        pairs = [(f"{place}.{key}", expected.get(key, _ABSENT), got.get(key, _ABSENT)) for key in keys]
    elif isinstance(expected, list | tuple):
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip_longest(expected, got, fillvalue=_ABSENT))]
    elif not _same(expected, got):
        return f"{place or 'value'}: {_excerpt(expected)} became {_excerpt(got)}"
    return next(filter(None, (first_difference(a, b, where, strict) for where, a, b in pairs)), "")


def _same(expected: Any, got: Any) -> bool:
    if isinstance(expected, Image.Image):
        return (expected.mode, expected.size, expected.tobytes()) == (got.mode, got.size, got.tobytes())
    if isinstance(expected, np.ndarray):
        return expected.dtype == got.dtype and np.array_equal(expected, got)
    if _is_number(expected):
        return bool(expected == got) or (math.isnan(expected) and math.isnan(got))
    return bool(expected == got)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_)


def _excerpt(value: Any) -> str:
    return "nothing" if value is _ABSENT else in_short(value, 120)


def first_line(error: BaseException) -> str:
    """The message of an exception, or of its cause where it is one of this package's."""
    cause = error
    while cause.__cause__ is not None and isinstance(cause, RagenError):
        cause = cause.__cause__
    text = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return f"{type(cause).__name__}: {text}"[:200]


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """Interrupt what takes longer."""

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
    """Environments, the packages they import and the processes they start print nothing meanwhile."""
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
    """Examine every tag, print a table, and return 0 if all that could be played is equal.

    Returns:
        0; 1 if something differed, 2 if a configuration cannot be read, 3 if nothing could be played.
    """
    parser = argparse.ArgumentParser(prog="python -m ragen.retrofit.suite", description=__doc__.split("\n\n")[1])
    parser.add_argument("--config-dir", type=Path, default=Path("config"), help="default: %(default)s")
    parser.add_argument(
        "--config-name", action="append", help="one of them; may be given more than once (default: all)"
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: %(default)s)")
    parser.add_argument("--own", type=Path, help="file of the EnvStateManager that the checkout had before")
    options = parser.parse_args(arguments)
    try:
        tags = played_tags(options.config_dir, options.config_name)
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
        print(_row(verdict), flush=True)
    return _conclude(verdicts)


def _own_manager(path: Path | None) -> Any:
    """The class of the manager that the checkout had before; None, with a line that says why, if there is none."""
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("own_es_manager", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print(f"its own EnvStateManager cannot be imported here, so nothing is compared with it: {first_line(error)}")
        return None
    return module.EnvStateManager


def _row(verdict: Verdict) -> str:
    name = f"  {verdict.played.tag:24}"
    if verdict.skipped:
        return f"{name} not played: {verdict.skipped}"
    if verdict.differences:
        return f"{name} DIFFERS {'; '.join(verdict.differences)}"
    same = f"equal, {verdict.entries} entries as its own manager's" if verdict.entries else "equal"
    if verdict.stays:
        return f"{name} {same}; stays in the main process"
    gain = verdict.main_s / verdict.workers_s
    pays = f"workers pay, x{gain:.1f}" if gain > 1.1 else "workers do not pay"
    return (
        f"{name} {same}; an episode of {verdict.envs}: {1e3 * verdict.main_s:.1f} ms in the main process, "
        f"{1e3 * verdict.workers_s:.1f} ms in workers: {pays}"
    )


def _conclude(verdicts: list[Verdict]) -> int:
    skipped = [each for each in verdicts if each.skipped]
    different = [each for each in verdicts if each.differences]
    paying = sorted({v.played.tag for v in verdicts if v.envs and v.main_s > 1.1 * v.workers_s})
    equal = len(verdicts) - len(skipped) - len(different)
    print(f"{equal} equal, {len(different)} different, {len(skipped)} not played.")
    if equal:
        print(
            f"workers pay for: {', '.join(paying) or 'none of them'} (use_multiprocessing: auto finds that out itself)"
        )
    if different:
        return DIFFERENT
    return EQUAL if equal else NOTHING


if __name__ == "__main__":
    sys.exit(main())
