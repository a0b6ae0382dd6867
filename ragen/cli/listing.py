"""The command ``ragen list``: environments with the cost of a turn, configurations, and backends.

The cost of cheap environments is measured for the list. Environments whose classes declare that they are heavy or wait
are not played; ``ragen check TYPE`` measures them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from ragen.commands import CommandParser, beside, command
from ragen.env.base import BaseEnv

PROG = "ragen list"
TOPICS = ("environments", "configurations", "backends")
_EPISODES, _TURNS = 8, 4  # of each environment
_SECONDS = 1.0  # after which no further turn of it is begun
_CHEAP = 1e-4  # seconds below which a loaded machine blurs the figure
_DECLARED = {"heavy": "heavy (declared)", "io": "waits (declared)"}


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="List environments with the cost of a turn, configurations, and backends.",
        examples=(f"{prog} environments",),
    )
    top.add_argument("topic", nargs="?", choices=TOPICS, help="list only this (default: all three)")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0.
    """
    rows = {"environments": environments, "configurations": configurations, "backends": backends}
    for name in TOPICS if options.topic is None else (options.topic,):
        found = list(rows[name]())
        widths = [max(len(row[column]) for row in found) for column in range(len(found[0]) - 1)]
        print(f"{name}:")
        for row in found:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            print(beside("".join(f"  {cell}" for cell in [*cells, ""]), row[-1]).rstrip())
    return 0


def environments() -> Iterator[tuple[str, ...]]:
    """Each known type: its name, the cost of a turn, and its description."""
    from ragen.env.registry import known_names, resolve_env
    from ragen.errors import RagenError, install_command
    from ragen.extras import extra_of, missing

    for name in known_names():
        try:
            env_class, config_class = resolve_env(name)
            about = [*(env_class.__doc__ or "").strip().splitlines(), ""][0].replace("`", "")
            if (extra := extra_of(env_class)) and missing(extra):
                yield name, "not installed", f"{about} Needs {install_command(extra)}"
            else:
                yield name, price(env_class, config_class), about
        except RagenError as error:
            yield name, "not here", str(error)


def price(env_class: Any, config_class: Any) -> str:
    """The cost of a turn in words, measured unless the class declares that it is heavy."""
    from envlanes.stats import duration

    hint = getattr(env_class, "cost_hint", None)
    if hint in _DECLARED:
        return _DECLARED[hint]
    try:
        seconds = _turn_seconds(env_class(config_class()) if config_class else env_class())
    except Exception as error:  # third-party environments may raise anything
        return f"cannot be played: {type(error).__name__}"
    return f"{duration(seconds) if seconds >= _CHEAP else f'under {duration(_CHEAP)}'} a turn"


def _turn_seconds(env: Any) -> float:
    """The median seconds of a turn of one action, in the first turns of a few episodes."""
    from envlanes.ragen.turn import Turn, action_lookup, play_turn
    from ragen.tools.examples import TEXTS

    took: list[float] = []
    rng, end = Random(0), time.perf_counter() + _SECONDS
    done = True
    for turn in range(_EPISODES * _TURNS):
        if turn % _TURNS == 0 or done:
            env.reset(seed=turn)
        example = env.example_action(rng) if isinstance(env, BaseEnv) else ""
        start = time.perf_counter()
        done = play_turn(env, Turn((example or next(iter((action_lookup(env) or {}).values()), TEXTS[0]),), 1)).done
        took.append(time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    env.close()
    return median(took)


def configurations() -> Iterator[tuple[str, ...]]:
    """Each configuration of the package: its name, and its first line."""
    from ragen.config.loading import config_names
    from ragen.files import config_directory

    folder = Path(config_directory())
    for name in config_names(folder):
        first = (folder / f"{name}.yaml").read_text("utf-8").splitlines()[0]
        about = first.removeprefix("#").strip() if first.startswith("#") else ""
        yield name, about.partition(". ")[0].rstrip(".:;,")


def backends() -> Iterator[tuple[str, ...]]:
    """Each backend for models and for workers: name, key, and missing packages."""
    from envlanes.settings import BACKENDS as WORKERS
    from ragen.errors import install_command
    from ragen.extras import EXTRAS, missing
    from ragen.llm_agent.backends.factory import BACKENDS as ACTORS

    for key, names in (("actor.backend", ACTORS), ("es_manager.backend", WORKERS)):
        for name in names:
            lacking = missing(name) if name in EXTRAS else ()
            yield f"{key}={name}", f"needs {install_command(name)}" if lacking else "ready"
