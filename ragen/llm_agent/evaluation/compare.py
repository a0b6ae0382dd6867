"""Two evaluations, seed by seed: ``python -m ragen.llm_agent.evaluation.compare A/rollouts.jsonl B/rollouts.jsonl``.

Every model plays the same seeds, so what differs between two models can be read from the seeds on which they differ;
how hard the seeds are cancels out. An episode of A is paired with the episode of B of the same tag and seed (members of
a group in their order). Pairs in which either model cannot be judged are left out: a prompt got no reply (``error``),
or the environment failed (``env_error``).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ragen.commands import CommandParser, refusing
from ragen.errors import ConfigError
from ragen.llm_agent.evaluation.replies import JUDGED, outcome
from ragen.llm_agent.evaluation.results import ALL, independent, print_whole
from ragen.llm_agent.evaluation.statistics import mean, paired_interval, sign_test
from ragen.llm_agent.evaluation.tables import plain_table
from ragen.llm_agent.rollout.rollout_file import read_records, rows_of

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
        p: How likely so uneven a split of seeds is if neither is better.
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


def pair_up(a: Iterable[Record], b: Iterable[Record]) -> tuple[list[Pair], int]:
    """The pairs, and how many episodes are in none of them: played by one model alone, or not to be judged."""
    first, second = _by_key(a), _by_key(b)
    pairs = [
        Pair(key[0], key[1] or 0, first[key], second[key])
        for key in first
        if key in second and outcome(first[key]) == outcome(second[key]) == JUDGED
    ]
    return pairs, len(first.keys() | second.keys()) - len(pairs)


def matched(a: Iterable[Record], b: Iterable[Record]) -> list[tuple[Record, Record]]:
    """The records of all episodes that both played, also where one of them cannot be judged."""
    first, second = _by_key(a), _by_key(b)
    return [(first[key], second[key]) for key in first if key in second]


def _by_key(records: Iterable[Record]) -> dict[Key, Record]:
    """Records by tag, seed and place among those of the same tag and seed."""
    places: defaultdict[tuple[str, int | None], int] = defaultdict(int)
    keyed: dict[Key, Record] = {}
    for record in sorted(independent(records), key=lambda record: record["env_id"]):
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


def comparison_table(results: Sequence[Comparison]) -> Table:
    """A row per tag, and what its columns mean."""
    names = ("pairs", "A", "B", "B - A", "95% interval", "seeds A:B", "p")
    table = plain_table("B against A", "tag", *names)
    table.caption, table.caption_justify = _CAPTION, "left"
    for one in results:
        shares = (f"{one.a:.1%}", f"{one.b:.1%}", f"{one.b - one.a:+.1%}", f"{one.low:+.1%} .. {one.high:+.1%}")
        counts = (f"{one.only_a}:{one.only_b}", f"{one.p:.3f}")
        table.add_row(one.tag, str(one.pairs), *shares, *counts)
    return table


_CAPTION = (
    "95% interval: of B - A over seeds; drawn towards 0 where they are few, so B - A need not be its middle. "
    "seeds A:B: on how many either did better. p: how likely so uneven a split is if neither is better."
)


def seed_lines(pairs: Sequence[Pair]) -> list[str]:
    """The seeds on which the models differ, a line per tag and side."""
    sides: dict[tuple[str, str], list[int]] = {}
    for (tag, seed), value in seed_differences(pairs).items():
        if value:
            sides.setdefault((tag, "B" if value > 0 else "A"), []).append(seed)
    return [f"{tag}, {side} better: {', '.join(map(str, sorted(seeds)))}" for (tag, side), seeds in sides.items()]


@refusing
def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command.

    Args:
        argv: Its arguments; None takes the process's own.
        prog: The program's name.

    Returns:
        The exit code: 0, or 2 where there is nothing to compare, or nowhere to write.
    """
    arguments = parser(prog).parse_intermixed_args(argv)
    wants_page = _wants_page(arguments.overrides) or arguments.output is not None
    a, b = (read_records(rows_of(path)) for path in (arguments.a, arguments.b))
    pairs, left_out = pair_up(a, b)
    if not pairs:
        raise ConfigError(
            f"{arguments.a} and {arguments.b} have no episode of the same tag and seed; play both with the same "
            "configuration and seed.val."
        )
    page = _write_page(arguments, pairs, matched(a, b), left_out) if wants_page else None
    _print(pairs, left_out, arguments.seeds)
    if page is not None:
        print(f"report in {page}")
    return 0


def _wants_page(overrides: Sequence[str]) -> bool:
    values = {"report=true": True, "report=false": False}
    for word in overrides:
        if word not in values:
            raise ConfigError(f"{word!r} is not understood; a page about both runs is written with report=true.")
    return any(values[word] for word in overrides)


def _write_page(
    arguments: argparse.Namespace, pairs: Sequence[Pair], both: Iterable[tuple[Record, Record]], left_out: int
) -> Path:
    """Write the page of both runs; where it is.

    Raises:
        ConfigError: It cannot be written, or a row is not of a rollout of this package.
    """
    from ragen.llm_agent.report.command import report_of_rows
    from ragen.llm_agent.report.comparison import ComparedRuns, PairShown, render_compared
    from ragen.llm_agent.report.page import write_page

    one, other = (report_of_rows(rows_of(path), _run_name(path)) for path in (arguments.a, arguments.b))
    episodes = [{episode.state["env_id"]: episode for episode in run.episodes} for run in (one, other)]
    judged = {(pair.a["env_id"], pair.b["env_id"]): pair.difference for pair in pairs}
    shown = [
        PairShown(episodes[0][a["env_id"]], episodes[1][b["env_id"]], judged.get((a["env_id"], b["env_id"])))
        for a, b in both
    ]
    notes = [_left_out(left_out)] if left_out else []
    runs = ComparedRuns(one, other, compare(pairs), seed_differences(pairs), shown, notes)
    page = arguments.output or rows_of(arguments.b).with_name(f"compared_with_{_run_name(arguments.a)}.html")
    return write_page(render_compared(runs), page)


def _run_name(run: Path) -> str:
    """How a run is called: by its folder."""
    folder = run if run.is_dir() else run.parent
    return folder.resolve().name or "run"


def _left_out(count: int) -> str:
    return (
        f"{count} {'episode' if count == 1 else 'episodes'} left out: only one model played "
        f"{'it' if count == 1 else 'them'}, a prompt got no reply, or the environment failed."
    )


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Compare two models on the episodes that both played, seed by seed. The interval is of the "
        "difference in success; p says how likely so uneven a split of seeds is if neither model is better.",
        epilog=f"Examples: {prog} outputs/evaluate/A outputs/evaluate/B --seeds; {prog} A B report=true",
    )
    top.add_argument("a", type=Path, metavar="A", help="output_dir of the first model's run, or its rollouts.jsonl")
    top.add_argument("b", type=Path, metavar="B", help="that of the second")
    top.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="report=true",
        help="write a page with both side by side, into the folder of B",
    )
    top.add_argument("-o", "--output", type=Path, metavar="FILE", help="write that page, and write it here")
    top.add_argument("--seeds", action="store_true", help="list the seeds on which they differ")
    return top


def _print(pairs: Sequence[Pair], left_out: int, with_seeds: bool) -> None:
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    print_whole(console, comparison_table(compare(pairs)))
    if left_out:
        console.print(_left_out(left_out))
    for line in seed_lines(pairs) if with_seeds else ():
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
