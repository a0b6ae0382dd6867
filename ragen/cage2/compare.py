"""Compares the embedded simulator with the real CAGE Challenge 2: ``python -m ragen.cage2 compare --episodes 200``.

Both play the same policies against the same agents, each episode from its own seed. Since they draw random numbers in
different orders, only distributions can be equal. Every row has both values, their difference, and the 95 % margin of
chance: one in twenty rows lies outside even if the simulators are equal. The policies are three simple Blue policies
that use only the 52 bits.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ragen.cage2 import layout
from ragen.cage2.env import Cage2Config
from ragen.cage2.layout import HOSTS, N_BITS, N_HOSTS
from ragen.commands import CommandParser, refusing
from ragen.errors import ConfigError
from ragen.files import json_text
from ragen.games import GYM
from ragen.parallel import Change, EnvEngine, EnvSpec, Settings
from ragen.statistics import z_value

# Blue policies


class Policy(Protocol):
    """Chooses Blue's actions for one episode."""

    def act(self, bits: Sequence[Any]) -> int:
        """The action for an observation of 52 bits."""


class Sleep:
    """Does nothing."""

    def __init__(self, seed: int) -> None:
        """Draw nothing."""

    def act(self, bits: Sequence[Any]) -> int:
        """Sleep."""
        return layout.SLEEP


class Random:
    """Takes each of the 145 actions with equal probability."""

    def __init__(self, seed: int) -> None:
        """Create a generator."""
        self._rng = random.Random(f"random policy {seed}")

    def act(self, bits: Sequence[Any]) -> int:
        """A random action."""
        return self._rng.randrange(layout.N_ACTIONS)


class ReactRestore:
    """Monitors; then restores, one after the other, the hosts that showed an exploit; then monitors again.

    Modeled on the challenge's baseline of that name, which uses process ids instead of bits: User0 is ignored, and so
    is activity during restores.
    """

    def __init__(self, seed: int) -> None:
        """Draw nothing."""
        self._waiting: list[int] = []
        self._has_monitored = False

    def act(self, bits: Sequence[Any]) -> int:
        """Restore the host that has waited longest, or monitor."""
        if self._has_monitored:
            self._waiting += [host for host in _exploited(bits) if host not in (layout.FOOTHOLD, *self._waiting)]
        self._has_monitored = not self._waiting
        return layout.RESTORE + self._waiting.pop(0) if self._waiting else layout.MONITOR


def _exploited(bits: Sequence[Any]) -> list[int]:
    shown = layout.ACTIVITY["exploit"]
    return [host for host in range(layout.N_HOSTS) if (int(bits[4 * host]), int(bits[4 * host + 1])) == shown]


POLICIES: dict[str, Callable[[int], Policy]] = {"Sleep": Sleep, "random": Random, "React-Restore": ReactRestore}


# Episodes


REDS = ("b_line", "meander")
SHOWN = {  # which of a host's bits, and their values
    "scanned": (0, (1, 0)),
    "exploited": (0, (1, 1)),
    "of unknown state": (2, (1, 0)),
    "compromised as a user": (2, (0, 1)),
    "compromised with privileges": (2, (1, 1)),
}
_ENVS = 8


class Episode(NamedTuple):
    """The measurements of an episode.

    Attributes:
        total: The sum of Blue's rewards.
        first_impact: The step of Red's first Impact that was reported to it as a success, from 1; 0 for none.
        tried: Exploits that Red tried, by host.
        worked: Exploits that opened a session, by host.
        shown: The count of each of :data:`SHOWN` over all steps and hosts.
    """

    total: float
    first_impact: int
    tried: tuple[int, ...]
    worked: tuple[int, ...]
    shown: tuple[int, ...]


class Contest:
    """Plays whole episodes in its process."""

    def __init__(self, config: Cage2Config) -> None:
        """Build the game."""
        self._game, self._steps = config.game(), config.max_steps

    def episode(self, policy: str, seed: int) -> Episode:
        """Play one."""
        blue, bits = POLICIES[policy](seed), self._game.reset(seed)
        total, first_impact, tried, worked = 0.0, 0, [0] * N_HOSTS, [0] * N_HOSTS
        shown = [0] * len(SHOWN)
        for step in range(1, self._steps + 1):
            bits, reward = self._game.step(blue.act(bits))
            total += reward
            shown = [count + more for count, more in zip(shown, _shown(bits), strict=True)]
            move, success = self._game.last_red
            if move.kind == "ExploitRemoteService":
                tried[move.target] += 1
                worked[move.target] += success
            elif move.kind == "Impact" and success and not first_impact:
                first_impact = step
        return Episode(total, first_impact, tuple(tried), tuple(worked), tuple(shown))


def _shown(bits: Sequence[int]) -> list[int]:
    pairs = [tuple(map(int, bits[start : start + 2])) for start in range(0, N_BITS, 2)]
    return [pairs[at // 2 :: 2].count(value) for at, value in SHOWN.values()]


def played(config: Cage2Config, policy: str, episodes: int, seed: int, workers: int) -> list[Episode]:
    """Play episodes in workers.

    Args:
        config: The simulator and the Red agent.
        policy: A key of :data:`~ragen.cage2.compare.POLICIES`.
        episodes: Number of episodes.
        seed: Seed of the first one; the others count up.
        workers: Number of workers; 0 for none.
    """
    build = partial(Contest, config)
    specs = [EnvSpec.of(build, env_id=i, tag="cage2", game=GYM) for i in range(min(_ENVS, episodes))]
    found: list[Episode] = []
    with EnvEngine(specs, Settings(use_lanes=workers > 0, max_workers=workers or None, step_timeout=600.0)) as engine:
        engine.settle()
        while len(found) < episodes:
            first = seed + len(found)
            ids = range(min(len(specs), episodes - len(found)))
            asked = {i: Change("episode", (policy, first + i)) for i in ids}
            for value in engine.change(asked, is_journalled=False).values():
                if isinstance(value, Exception):
                    raise value
                found.append(value)
    return found


# Compared quantities


@dataclass
class Row:
    """One quantity on both simulators.

    Attributes:
        what: Its description.
        embedded, cage2: Its mean on each.
        embedded_pm, cage2_pm: Half their 95 % intervals.
        difference: The embedded mean minus the real one.
        pm: The 95 % margin of chance of the difference.
    """

    what: str
    embedded: float
    embedded_pm: float
    cage2: float
    cage2_pm: float
    difference: float
    pm: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the margin of chance."""
        return abs(self.difference) <= self.pm + 1e-9


class Sample(NamedTuple):
    """A mean and its variance."""

    mean: float
    variance: float

    @property
    def pm(self) -> float:
        """Half the 95 % interval."""
        return z_value() * math.sqrt(self.variance)


def mean_of(values: Sequence[float]) -> Sample:
    """The mean of independent values."""
    count = len(values)
    mean = sum(values) / count
    return Sample(mean, sum((value - mean) ** 2 for value in values) / max(count - 1, 1) / count)


def rate_of(worked: Sequence[int], tried: Sequence[int]) -> Sample:
    """A success rate over episodes with several tries each, whose outcomes within an episode are correlated."""
    total, count = sum(tried), len(tried)
    rate = sum(worked) / total
    spread = sum((w - rate * t) ** 2 for w, t in zip(worked, tried, strict=True))
    smallest = 0.25 / total**2  # a lower bound, for rates of exactly 0 or 1
    return Sample(rate, max(spread / total**2 * count / max(count - 1, 1), smallest))


def row(what: str, embedded: Sample, cage2: Sample) -> Row:
    """A row of both simulators."""
    pm = z_value() * math.sqrt(embedded.variance + cage2.variance)
    difference = embedded.mean - cage2.mean
    return Row(what, embedded.mean, embedded.pm, cage2.mean, cage2.pm, difference, pm)


def rows_of(red: str, policy: str, embedded: list[Episode], cage2: list[Episode]) -> list[Row]:
    """All rows of a policy against an agent."""
    both = embedded, cage2
    name = f"{policy}, {red}"

    def each(measure: Callable[[Episode], float]) -> list[Sample]:
        return [mean_of([measure(episode) for episode in episodes]) for episodes in both]

    found = [row(f"{name}: return", *each(lambda episode: episode.total))]
    found.append(row(f"{name}: episodes with an Impact", *each(lambda episode: float(episode.first_impact > 0))))
    for index, what in enumerate(SHOWN):
        found.append(row(f"{name}: times a host is shown {what}", *each(partial(_times_shown, index))))
    reached = [[episode.first_impact for episode in episodes if episode.first_impact] for episodes in both]
    if all(len(steps) > 1 for steps in reached):
        found.append(row(f"{name}: step of the first Impact", *[mean_of(steps) for steps in reached]))
    for host, hostname in enumerate(HOSTS):
        tried = [[episode.tried[host] for episode in episodes] for episodes in both]
        worked = [[episode.worked[host] for episode in episodes] for episodes in both]
        if all(sum(counts) for counts in tried):
            rates = [rate_of(w, t) for w, t in zip(worked, tried, strict=True)]
            found.append(row(f"{name}: exploits of {hostname} that work", *rates))
    return found


def _times_shown(index: int, episode: Episode) -> float:
    return float(episode.shown[index])


def as_table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| quantity | embedded | CAGE 2 | difference | chance (95 %) | |", "|---|---|---|---|---|---|"]
    for each in rows:
        digits = 1 if abs(each.cage2) >= 10 else 3
        numbers = (
            f"{each.embedded:.{digits}f} ± {each.embedded_pm:.{digits}f}",
            f"{each.cage2:.{digits}f} ± {each.cage2_pm:.{digits}f}",
            f"{each.difference:+.{digits}f}",
            f"{each.pm:.{digits}f}",
        )
        lines.append(f"| {each.what} | {' | '.join(numbers)} | {'' if each.agrees else '*'} |")
    outside = sum(not each.agrees for each in rows)
    lines.append(f"\n{outside} of {len(rows)} rows (*) lie outside; {len(rows) / 20:.1f} are expected by chance alone.")
    return "\n".join(lines)


# The command


@refusing
def main(argv: Sequence[str] | None = None, prog: str = "python -m ragen.cage2 compare") -> int:
    """Compare, and print the table; returns the exit status.

    Args:
        argv: Arguments of the command line, without the program's name.
        prog: The program's name.
    """
    given = _arguments(prog).parse_args(argv)
    if given.episodes < 2 or given.workers < 0:
        raise ConfigError(f"--episodes {given.episodes} --workers {given.workers}: expected at least 2, and 0.")
    if given.json is not None and not (given.json.parent.is_dir() and os.access(given.json.parent, os.W_OK)):
        raise ConfigError(f"--json is {str(given.json)!r}: its folder is missing or not writable; name another file.")
    rows = compared(given)
    print(as_table(rows))
    if given.json is not None:
        given.json.write_text(json_text([asdict(each) for each in rows], indent=1) + "\n", "utf-8")
    return 0


def compared(given: argparse.Namespace) -> list[Row]:
    """Play on both simulators; returns all rows."""
    found: list[Row] = []
    for red in given.red:
        configs = [
            Cage2Config.of(red, given.steps, "embedded"),
            Cage2Config.of(red, given.steps, "cage2", given.cage2_path),
        ]
        for policy in given.policy:
            print(f"{policy} against {red} ...", file=sys.stderr, flush=True)
            both = [played(each, policy, given.episodes, given.seed, given.workers) for each in configs]
            found += rows_of(red, policy, *both)
    return found


def _arguments(prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=prog,
        description="Compare the embedded simulator with CAGE Challenge 2, episode by episode.",
        examples=(f"{prog} --episodes 20 --cage2-path ~/cage-challenge-2",),
    )
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each policy, agent and simulator")
    parser.add_argument("--steps", type=int, default=100, help="steps of an episode")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first episode")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="0 for none")
    parser.add_argument("--red", nargs="+", choices=REDS, default=list(REDS), help="attackers (default: all)")
    parser.add_argument(
        "--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES), help="defenders (default: all)"
    )
    parser.add_argument("--cage2-path", help="a checkout of CAGE Challenge 2")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser
