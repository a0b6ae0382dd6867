"""Evaluations compared seed by seed: ``python -m ragen.llm_agent.evaluation.compare A B ..``, of folders of runs.

Every model plays the same seeds, so what differs between two models can be read from the seeds on which they differ;
how hard the seeds are cancels out. An episode of A is paired with the episode of B of the same tag and seed (members of
a group in their order). Episodes in which one of the models cannot be judged are left out for all of them: a prompt got
no reply (``error``), or the environment failed (``env_error``).

Of more than two models there is a row for each, with what it came to on the episodes that all of them played, and a row
for each two of them, whose p is corrected for their number.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError, counted
from ragen.llm_agent.evaluation.replies import JUDGED, outcome
from ragen.llm_agent.evaluation.results import evaluate
from ragen.llm_agent.evaluation.tables import shown_p, tables_of
from ragen.llm_agent.rollout.rollout_file import name_of, read_records, rows_of, unfinished
from ragen.output import new_console, print_table
from ragen.statistics import ALL, holm, mean, paired_interval, sign_test

if TYPE_CHECKING:
    from rich.table import Table

PROG = "python -m ragen.llm_agent.evaluation.compare"

Record: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[str, int | None, int]


@dataclass(frozen=True)
class Pair:
    """What two models did with the same episode.

    Attributes:
        tag: Its tag.
        seed: Its seed.
        a: The record of the first model.
        b: The record of the second.
    """

    tag: str
    seed: int
    a: Record
    b: Record

    @property
    def difference(self) -> float:
        """1 if only B succeeded, -1 if only A did, else 0."""
        return float(self.b["success"]) - float(self.a["success"])


@dataclass(frozen=True)
class Comparison:
    """Two models on the episodes of one tag.

    Attributes:
        tag: The tag, or ``"all"``.
        pairs: How many episodes both played.
        a: The share of them in which A succeeded.
        b: That of B.
        low: Where the 95 % interval of ``b - a`` begins.
        high: Where it ends.
        only_a: On how many seeds A did better.
        only_b: On how many seeds B did better.
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


class LeftOut(NamedTuple):
    """How many episodes are not compared.

    Attributes:
        not_played: Some of the runs lack them.
        not_judged: All runs have them, and in one of them a prompt has no reply, or the environment failed.
    """

    not_played: int
    not_judged: int

    def describe(self) -> str:
        """The counts in a sentence; empty if there are none."""
        reasons = {
            "not played by every run": self.not_played,
            "a prompt has no reply, or the environment failed": self.not_judged,
        }
        told = [f"{counted(count, 'episode', 'episodes')} ({why})" for why, count in reasons.items() if count]
        return f"Left out: {' and '.join(told)}." if told else ""


def pair_up(a: Iterable[Record], b: Iterable[Record]) -> tuple[list[Pair], LeftOut]:
    """The pairs, and how many episodes are in none of them."""
    (first, second), left_out = line_up([a, b])
    return [Pair(one["tag"], one["seed"] or 0, one, other) for one, other in zip(first, second, strict=True)], left_out


def line_up(runs: Sequence[Iterable[Record]]) -> tuple[list[list[Record]], LeftOut]:
    """The episodes that all runs have played and are judged by, in the same order for each run.

    Returns:
        The records of each run, and how many episodes are not among them.
    """
    keyed = [_by_key(run) for run in runs]
    every = {key for run in keyed for key in run}
    played = [key for key in keyed[0] if all(key in run for run in keyed)]
    common = [key for key in played if all(outcome(run[key]) == JUDGED for run in keyed)]
    left_out = LeftOut(len(every) - len(played), len(played) - len(common))
    return [[run[key] for key in common] for run in keyed], left_out


def _by_key(records: Iterable[Record]) -> dict[Key, Record]:
    """Records by tag, seed and place among those of the same tag and seed."""
    places: defaultdict[tuple[str, int | None], int] = defaultdict(int)
    keyed: dict[Key, Record] = {}
    for record in sorted(records, key=lambda record: record["env_id"]):
        same = (record["tag"], record["seed"])
        keyed[*same, places[same]] = record
        places[same] += 1
    return keyed


def compare(pairs: Sequence[Pair]) -> list[Comparison]:
    """A comparison of each tag, in the order in which the tags first occur, and of all if there are several."""
    tags: dict[str, list[Pair]] = {}
    for pair in pairs:
        tags.setdefault(pair.tag, []).append(pair)
    results = [_compare(tag, members) for tag, members in tags.items()]
    return [*results, _compare(ALL, pairs)] if len(tags) > 1 else results


def _compare(tag: str, pairs: Sequence[Pair]) -> Comparison:
    differences = list(seed_differences(pairs).values())
    low, high = paired_interval(differences)
    return Comparison(
        tag=tag,
        pairs=len(pairs),
        a=mean([float(pair.a["success"]) for pair in pairs]),
        b=mean([float(pair.b["success"]) for pair in pairs]),
        low=low,
        high=high,
        only_a=sum(value < 0 for value in differences),
        only_b=sum(value > 0 for value in differences),
        p=sign_test(differences),
    )


def seed_differences(pairs: Iterable[Pair]) -> dict[tuple[str, int], float]:
    """Tag and seed to the mean difference of its episodes, from -1 (A alone succeeds) to 1 (B alone does)."""
    members: dict[tuple[str, int], list[float]] = {}
    for pair in pairs:
        members.setdefault((pair.tag, pair.seed), []).append(pair.difference)
    return {key: mean(values) for key, values in members.items()}


def comparison_tables(results: Sequence[Comparison], names: Sequence[str], width: int) -> list[Table]:
    """A row per tag.

    Args:
        results: One for each tag.
        names: Of the two runs.
        width: Of the console, in characters; a wider table is split.
    """
    columns = {
        "pairs": [str(one.pairs) for one in results],
        "A": [f"{one.a:.1%}" for one in results],
        "B": [f"{one.b:.1%}" for one in results],
        "B - A": [f"{one.b - one.a:+z.1%}" for one in results],
        "95% interval": [f"{one.low:+z.1%} .. {one.high:+z.1%}" for one in results],
        "seeds A:B": [f"{one.only_a}:{one.only_b}" for one in results],
        "p": [shown_p(one.p) for one in results],
    }
    return tables_of(f"A: {names[0]}, B: {names[1]}", [one.tag for one in results], columns, width)


_CAPTION = (
    "95% interval: of B - A over seeds; with few seeds, shifted toward 0. seeds A:B: the number of seeds on which each "
    "did better. p: the probability of a split at least as uneven if both are equally good; it is exact, and the "
    "interval an approximation."
)


def seed_lines(pairs: Sequence[Pair]) -> list[str]:
    """The seeds on which the models differ, a line per tag and side."""
    sides: dict[tuple[str, str], list[int]] = {}
    for (tag, seed), value in seed_differences(pairs).items():
        if value:
            sides.setdefault((tag, "B" if value > 0 else "A"), []).append(seed)
    return [f"{tag}, {side} better: {', '.join(map(str, sorted(seeds)))}" for (tag, side), seeds in sides.items()]


def board(runs: Sequence[Sequence[Record]], names: Sequence[str], width: int) -> list[Table]:
    """A row for each run: its success on each tag and on all, ``pass@k`` and ``pass^k``.

    Args:
        runs: Records of the same episodes in the same order, as :func:`line_up` returns them.
        names: Of the runs.
        width: Of the console, in characters; a wider table is split.
    """
    results = [evaluate([dict(record, group_id=(record["tag"], record["seed"])) for record in run]) for run in runs]
    tags, whole = [result.tag for result in results[0]], [result[-1] for result in results]
    counts = [k for k in whole[0].pass_at if k > 1]
    shares = {tag: [result[place].success or 0.0 for result in results] for place, tag in enumerate(tags)}
    shares |= {f"pass@{k}": [total.pass_at[k] for total in whole] for k in counts}
    shares |= {f"pass^{k}": [total.pass_all[k] for total in whole] for k in counts}
    columns = {head: [f"{share:.1%}" for share in cells] for head, cells in shares.items()}
    title = f"Success, over {counted(len(runs[0]), 'episode', 'episodes')} that all of them played"
    return tables_of(title, names, columns, width, "run")


def every_two(runs: Sequence[Sequence[Record]]) -> list[tuple[int, int, Comparison, float]]:
    """Each two runs compared on all tags: their places, the comparison, and its p corrected for their number."""
    places = list(combinations(range(len(runs)), 2))
    each = [_compare(ALL, pair_up(runs[a], runs[b])[0]) for a, b in places]
    corrected = holm([one.p for one in each])
    return [(a, b, one, p) for (a, b), one, p in zip(places, each, corrected, strict=True)]


def tables_of_twos(runs: Sequence[Sequence[Record]], names: Sequence[str], width: int) -> list[Table]:
    """A row for each two runs; see :func:`every_two`, and :func:`board` for the arguments."""
    twos = every_two(runs)
    columns = {
        "B - A": [f"{one.b - one.a:+z.1%}" for _, _, one, _ in twos],
        "95% interval": [f"{one.low:+z.1%} .. {one.high:+z.1%}" for _, _, one, _ in twos],
        "seeds A:B": [f"{one.only_a}:{one.only_b}" for _, _, one, _ in twos],
        "p": [shown_p(one.p) for _, _, one, _ in twos],
        "p of all": [shown_p(p) for _, _, _, p in twos],
    }
    pairs = [f"A: {names[a]}, B: {names[b]}" for a, b, _, _ in twos]
    return tables_of("Pairs of runs", pairs, columns, width, "runs")


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
    records = [read_records(rows_of(path)) for path in paths]
    runs, left_out = line_up(records)
    if not runs[0]:
        named = " and ".join(map(str, paths))
        raise ConfigError(
            f"{named} have no episode of the same tag and seed; play {'both' if len(paths) == 2 else 'all'} with the "
            "same configuration and seed.val."
        )
    pairs, _ = pair_up(runs[0], runs[1])
    names = _told_apart(paths)
    told = [unfinished(rows_of(path), run) for path, run in zip(paths, records, strict=True)]
    notes = [f"{name} is {why}." for name, why in zip(names, told, strict=True) if why]
    same = [a for a, b in combinations(paths, 2) if rows_of(a).resolve() == rows_of(b).resolve()]
    notes += [f"{path} is named twice." for path in dict.fromkeys(same)]
    notes += [left_out.describe()] if any(left_out) else []
    equal = [f"{a} and {b}" for (a, of_a), (b, of_b) in combinations(zip(names, runs, strict=True), 2) if of_a == of_b]
    notes += [f"All trajectories of {both} are equal." for both in equal if not same]
    _print(names, runs, pairs, notes, options.seeds)
    return 0


def _print(
    names: Sequence[str],
    runs: Sequence[Sequence[Record]],
    pairs: Sequence[Pair],
    notes: Sequence[str],
    with_seeds: bool,
) -> None:
    console = new_console(is_plain=True)
    if len(runs) > 2:
        tables = [*board(runs, names, console.width), *tables_of_twos(runs, names, console.width)]
    else:
        tables = comparison_tables(compare(pairs), names, console.width)
    for table in tables:
        print_table(console, table)
    console.print(_CAPTION + " p of all: corrected for the number of comparisons (Holm)." * (len(runs) > 2))
    for note in notes:
        console.print(note, soft_wrap=True)
    for line in seed_lines(pairs) if with_seeds else ():
        console.print(line, soft_wrap=True)


def _told_apart(paths: Sequence[Path]) -> list[str]:
    """The runs' names, or their whole paths where two have the same name."""
    names = [name_of(path) for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))


if __name__ == "__main__":
    sys.exit(main())
