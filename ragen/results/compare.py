"""Runs compared seed by seed: the command ``ragen compare A B ..``.

Every model plays the same seeds, so what differs between two models can be read from the seeds on which they differ;
how hard the seeds are cancels out. An episode of A is paired with the episode of B of the same tag and seed (members of
a group in their order). Episodes in which one of the models cannot be judged are left out for all of them: a prompt got
no reply (``error``), or the environment failed (``env_error``).

Of more than two models there is a row for each, with its figures on the episodes that all of them played, and a row for
each two of them, whose p is corrected for their number.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError, counted
from ragen.output import new_console
from ragen.results.figures import evaluate
from ragen.results.rows import JUDGED, Row, name_of, outcome, read_rows, rows_of, unfinished
from ragen.results.tables import cells, columns_of, percent, print_columns
from ragen.statistics import ALL, holm, mean, paired_interval, sign_test

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
            "p": shown_p(self.p),
        }


def shown_p(p: float) -> str:
    """A p-value with three decimals; never ``0.000``."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def line_up(runs: Sequence[Iterable[Row]]) -> tuple[list[list[Row]], int, int]:
    """The episodes that all runs have played and are judged by, in the same order for each run.

    Returns:
        The rows of each run; how many episodes some run lacks; and how many further ones some run is not judged by.
    """
    keyed = [_by_key(run) for run in runs]
    every = {key for run in keyed for key in run}
    played = [key for key in keyed[0] if all(key in run for run in keyed)]
    common = [key for key in played if all(outcome(run[key]) == JUDGED for run in keyed)]
    return [[run[key] for key in common] for run in keyed], len(every) - len(played), len(played) - len(common)


def _by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    """Rows by tag, seed and place among those of the same tag and seed."""
    places: defaultdict[tuple[str, int | None], int] = defaultdict(int)
    keyed: dict[Key, Row] = {}
    for row in sorted(rows, key=lambda row: row["env_id"]):
        same = (row["tag"], row["seed"])
        keyed[*same, places[same]] = row
        places[same] += 1
    return keyed


def compare(a: Sequence[Row], b: Sequence[Row]) -> list[Comparison]:
    """Compares two runs that :func:`line_up` has lined up: each tag, and all if there are several."""
    tags = list(dict.fromkeys(row["tag"] for row in a))
    return [_compare(a, b, tag) for tag in (*tags, *([ALL] if len(tags) > 1 else []))]


def _compare(a: Sequence[Row], b: Sequence[Row], tag: str) -> Comparison:
    pairs = [(one, other) for one, other in zip(a, b, strict=True) if tag in (ALL, one["tag"])]
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


def seed_lines(a: Sequence[Row], b: Sequence[Row]) -> list[str]:
    """The seeds on which the models differ, a line per tag and side."""
    sides: dict[tuple[str, str], list[int]] = {}
    for (tag, seed), value in seed_differences(zip(a, b, strict=True)).items():
        if value:
            sides.setdefault((tag, "B" if value > 0 else "A"), []).append(seed)
    return [f"{tag}, {side} better: {', '.join(map(str, sorted(seeds)))}" for (tag, side), seeds in sides.items()]


def every_two(runs: Sequence[Sequence[Row]]) -> dict[tuple[int, int], tuple[Comparison, float]]:
    """Each two runs compared over all tags, and the p-value corrected for the number of pairs, by their places."""
    found = {(a, b): _compare(runs[a], runs[b], ALL) for a, b in combinations(range(len(runs)), 2)}
    corrected = holm([one.p for one in found.values()])
    return {places: (one, p) for (places, one), p in zip(found.items(), corrected, strict=True)}


def board(runs: Sequence[Sequence[Row]]) -> list[dict[str, str]]:
    """A row of cells for each run: its success on each tag and on all, ``pass@k`` and ``pass^k``."""
    lines = []
    for run in runs:
        results = evaluate([dict(row, group_id=(row["tag"], row["seed"])) for row in run])
        shares = {result.tag: percent(result.success) for result in results}
        lines.append(shares | {k: text for k, text in cells(results[-1]).items() if k.startswith("pass")})
    return lines


_CAPTION = (
    "95% interval: of B - A over seeds; with few seeds, shifted toward 0. seeds A:B: the number of seeds on which each "
    "did better. p: the probability of a split at least as uneven if both are equally good; it is exact, and the "
    "interval an approximation."
)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Compare models on the episodes that all of them played, seed by seed. The interval is of the "
        "difference in success; p is the probability of at least as uneven a split of seeds if both are equally good.",
        examples=(f"{prog} outputs/evaluate/A outputs/evaluate/B --seeds", f"{prog} A B C"),
    )
    top.add_argument("a", type=Path, metavar="A", help="output_dir of the first model's run, or its rollouts.jsonl")
    top.add_argument("b", type=Path, metavar="B", help="that of the second")
    top.add_argument("more", nargs="*", type=Path, default=[], metavar="C", help="further runs")
    top.add_argument("--seeds", action="store_true", help="list the seeds on which A and B differ")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0, or 2 where there is nothing to compare.
    """
    paths = [options.a, options.b, *options.more]
    rows = [read_rows(rows_of(path)) for path in paths]
    runs, unplayed, unjudged = line_up(rows)
    if not runs[0]:
        raise ConfigError(
            f"{' and '.join(map(str, paths))} have no episode of the same tag and seed; play "
            f"{'both' if len(paths) == 2 else 'all'} with the same configuration and seed.val."
        )
    names = [name_of(path) for path in paths]
    if len(set(names)) < len(names):
        names = list(map(str, paths))
    console = new_console(is_plain=True)
    if len(runs) == 2:
        results = compare(*runs)
        columns = columns_of([one.cells for one in results])
        print_columns(console, f"A: {names[0]}, B: {names[1]}", [one.tag for one in results], columns)
    else:
        title = f"Success, over {counted(len(runs[0]), 'episode', 'episodes')} that all of them played"
        print_columns(console, title, names, columns_of(board(runs)), "run")
        twos = every_two(runs)
        lines = [one.cells | {"p of all": shown_p(p)} for one, p in twos.values()]
        columns = {head: column for head, column in columns_of(lines).items() if head not in ("pairs", "A", "B")}
        print_columns(console, "Pairs of runs", [f"A: {names[a]}, B: {names[b]}" for a, b in twos], columns, "runs")
    notes = [_CAPTION + " p of all: corrected for the number of comparisons (Holm)." * (len(runs) > 2)]
    for name, path, run in zip(names, paths, rows, strict=True):
        notes += [f"{name} is {why}." for why in [unfinished(rows_of(path), run)] if why]
    reasons = {"not played by every run": unplayed, "a prompt has no reply, or the environment failed": unjudged}
    told = [f"{counted(count, 'episode', 'episodes')} ({why})" for why, count in reasons.items() if count]
    notes += [f"Left out: {' and '.join(told)}."] if told else []
    for (a, of_a), (b, of_b) in combinations(enumerate(runs), 2):
        notes += [f"All trajectories of {names[a]} and {names[b]} are equal."] * (of_a == of_b)
    for note in notes + (seed_lines(*runs[:2]) if options.seeds else []):
        console.print(note, soft_wrap=True)
    return 0
