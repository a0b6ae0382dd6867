"""Two runs compared seed by seed: the command ``ragen compare A B``.

Every model plays the same seeds, so what differs between two models can be read from the seeds on which they differ;
how hard the seeds are cancels out. An episode of A is paired with the episode of B of the same tag and seed (members of
a group in their order). Episodes in which one of the models cannot be judged are left out for both: a prompt got no
reply (``error``), or the environment failed (``env_error``).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError, counted
from ragen.output import new_console
from ragen.results.rows import JUDGED, Row, name_of, outcome, read_rows, rows_of, unfinished
from ragen.results.tables import columns_of, percent, print_columns
from ragen.statistics import ALL, mean, paired_interval, sign_test

PROG = "ragen compare"

Key = tuple[str, int | None, int]


@dataclass(frozen=True)
class Comparison:
    """Two models on the episodes of one tag.

    Attributes:
        tag: The tag, or ``"all"``.
        pairs: Number of episodes that both played.
        a: The share of them in which A succeeded.
        b: The share in which B did.
        low: The lower end of the 95 % interval of ``b - a``.
        high: The upper end.
        only_a: Number of seeds on which A did better.
        only_b: Number of seeds on which B did better.
        p: The probability of at least as uneven a split of seeds if both are equally good.
    """

    tag: str
    pairs: int
    a: float
    b: float
    low: float
    high: float
    only_a: int
    only_b: int
    p: float

    @property
    def cells(self) -> dict[str, str]:
        """The comparison as text, by head of a column."""
        return {
            "pairs": str(self.pairs),
            "A": percent(self.a),
            "B": percent(self.b),
            "B - A": f"{self.b - self.a:+z.1%}",
            "95% interval": f"{self.low:+z.1%} .. {self.high:+z.1%}",
            "seeds A:B": f"{self.only_a}:{self.only_b}",
            "p": f"{self.p:.3f}" if self.p >= 0.001 else "<0.001",
        }


def line_up(a: Iterable[Row], b: Iterable[Row]) -> tuple[list[tuple[Row, Row]], int, int]:
    """Pairs of episodes that both runs have played and are judged by.

    Returns:
        The pairs; how many episodes one of the runs lacks; and how many further ones one of them is not judged by.
    """
    one, other = _by_key(a), _by_key(b)
    played = [(row, other[key]) for key, row in one.items() if key in other]
    pairs = [pair for pair in played if all(outcome(row) == JUDGED for row in pair)]
    return pairs, len({*one, *other}) - len(played), len(played) - len(pairs)


def _by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    """Rows by tag, seed and place among those of the same tag and seed."""
    places: defaultdict[tuple[str, int | None], int] = defaultdict(int)
    keyed: dict[Key, Row] = {}
    for row in sorted(rows, key=lambda row: row["env_id"]):
        same = (row["tag"], row["seed"])
        keyed[*same, places[same]] = row
        places[same] += 1
    return keyed


def compare(pairs: Sequence[tuple[Row, Row]]) -> list[Comparison]:
    """Compares the pairs of :func:`line_up`: each tag, and all if there are several."""
    tags = list(dict.fromkeys(row["tag"] for row, _ in pairs))
    return [
        _compare([pair for pair in pairs if tag in (ALL, pair[0]["tag"])], tag)
        for tag in (*tags, *([ALL] if len(tags) > 1 else []))
    ]


def _compare(pairs: Sequence[tuple[Row, Row]], tag: str) -> Comparison:
    differences = list(seed_differences(pairs).values())
    low, high = paired_interval(differences)
    return Comparison(
        tag=tag,
        pairs=len(pairs),
        a=mean([float(one["success"]) for one, _ in pairs]),
        b=mean([float(other["success"]) for _, other in pairs]),
        low=low,
        high=high,
        only_a=sum(value < 0 for value in differences),
        only_b=sum(value > 0 for value in differences),
        p=sign_test(differences),
    )


def seed_differences(pairs: Iterable[tuple[Row, Row]]) -> dict[tuple[str, int], float]:
    """Tag and seed to the mean difference of its episodes, from -1 (A alone succeeds) to 1 (B alone does)."""
    members: dict[tuple[str, int], list[float]] = {}
    for one, other in pairs:
        difference = float(other["success"]) - float(one["success"])
        members.setdefault((one["tag"], one["seed"] or 0), []).append(difference)
    return {key: mean(values) for key, values in members.items()}


def seed_lines(pairs: Iterable[tuple[Row, Row]]) -> list[str]:
    """The seeds on which the models differ, a line per tag and side."""
    sides: dict[tuple[str, str], list[int]] = {}
    for (tag, seed), value in seed_differences(pairs).items():
        if value:
            sides.setdefault((tag, "B" if value > 0 else "A"), []).append(seed)
    return [f"{tag}, {side} better: {', '.join(map(str, sorted(seeds)))}" for (tag, side), seeds in sides.items()]


_CAPTION = (
    "95% interval: of B - A over seeds; with few seeds, shifted toward 0. seeds A:B: the number of seeds on which each "
    "did better. p: the probability of a split at least as uneven if both are equally good; it is exact, and the "
    "interval an approximation."
)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Compare two models on the episodes that both played, seed by seed. The interval is of the "
        "difference in success; p is the probability of at least as uneven a split of seeds if both are equally good.",
        examples=(f"{prog} outputs/evaluate/A outputs/evaluate/B --seeds",),
    )
    top.add_argument("a", type=Path, metavar="A", help="output_dir of the first model's run, or its rollouts.jsonl")
    top.add_argument("b", type=Path, metavar="B", help="that of the second")
    top.add_argument("--seeds", action="store_true", help="list the seeds on which A and B differ")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0, or 2 where there is nothing to compare.
    """
    paths = options.a, options.b
    runs = [read_rows(rows_of(path)) for path in paths]
    pairs, unplayed, unjudged = line_up(*runs)
    if not pairs:
        raise ConfigError(
            f"{options.a} and {options.b} have no episode of the same tag and seed; play both with the same "
            "configuration and seed.val."
        )
    names = [name_of(path) for path in paths]
    if names[0] == names[1]:
        names = list(map(str, paths))
    console, results = new_console(is_plain=True), compare(pairs)
    columns = columns_of([one.cells for one in results])
    print_columns(console, f"A: {names[0]}, B: {names[1]}", [one.tag for one in results], columns)
    notes = [_CAPTION]
    for name, path, run in zip(names, paths, runs, strict=True):
        notes += [f"{name} is {why}." for why in [unfinished(rows_of(path), run)] if why]
    reasons = {"not played by both": unplayed, "a prompt has no reply, or the environment failed": unjudged}
    told = [f"{counted(count, 'episode', 'episodes')} ({why})" for why, count in reasons.items() if count]
    notes += [f"Left out: {' and '.join(told)}."] if told else []
    notes += ["All trajectories are equal."] * all(one == other for one, other in pairs)
    for note in notes + (seed_lines(pairs) if options.seeds else []):
        console.print(note, soft_wrap=True)
    return 0
