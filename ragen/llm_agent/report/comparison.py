"""The page of two runs side by side: facts about each, success per tag and per seed, and the trajectories of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ragen.llm_agent.evaluation.tables import shown_p
from ragen.llm_agent.report.contents import Episode, Report
from ragen.llm_agent.report.page import about_of, cards_of, framed, table_of
from ragen.llm_agent.report.plots import difference_bar, two_bars
from ragen.llm_agent.report.text import shown
from ragen.llm_agent.report.trajectories import Part, Row, TrajectoryWriter, list_of

FILTERS: dict[str, tuple[str, dict[str, str]]] = {
    "tag": ("Tag", {}),
    "better": ("Better", {}),
    "a": ("A", {}),
    "b": ("B", {}),
}
_SIGNS = {1.0: "only B succeeds", -1.0: "only A succeeds", 0.0: "the same"}


@dataclass(frozen=True)
class PairShown:
    """An episode that both runs have played.

    Attributes:
        a: The episode in the first run.
        b: The episode in the second.
        difference: 1 if only B succeeded, -1 if only A did, else 0; None if one of them cannot be judged.
    """

    a: Episode
    b: Episode
    difference: float | None


@dataclass(frozen=True)
class ComparedRuns:
    """The content of the page.

    Attributes:
        a: The first run, named by its title.
        b: The second.
        results: :class:`~ragen.llm_agent.evaluation.compare.Comparison` of each tag.
        seeds: Tag and seed to the mean difference of its episodes, from -1 (A alone succeeds) to 1.
        pairs: All episodes that both runs have played.
        notes: Sentences, such as the number of unpaired episodes.
    """

    a: Report
    b: Report
    results: Sequence[Any]
    seeds: Mapping[tuple[str, int], float]
    pairs: Sequence[PairShown]
    notes: Sequence[str] = ()


def render_compared(runs: ComparedRuns) -> str:
    """Two runs as HTML, one self-contained page."""
    title = f"{runs.b.title} (B) against {runs.a.title} (A)"
    ordered = sorted(runs.pairs, key=lambda pair: (-abs(pair.difference or 0.0), pair.a.state["env_id"]))
    notes = "".join(f"<p>{shown(note, 2000)}</p>" for note in runs.notes)
    sides = "".join(_side(name, run) for name, run in (("A", runs.a), ("B", runs.b)))
    pairs = list_of("pairs", FILTERS, [_row(pair) for pair in ordered], _bodies(ordered))
    return framed(
        title,
        f'<h1>{shown(title, 400)}</h1>{notes}<div class="sides heads">{sides}</div>{_results(runs.results)}'
        f"{_seeds(runs.seeds)}<h2>Pairs</h2>{pairs}",
    )


def _side(name: str, run: Report) -> str:
    parts = about_of(run), cards_of(replace(run, timeline=None))  # the rows of a grid that both sides share
    inner = "".join(f"<div>{part}</div>" for part in parts)
    return f"<section><h2>{name}: {shown(run.title, 200)}</h2>{inner}</section>"


def _results(results: Sequence[Any]) -> str:
    heads = (
        '<th>tag</th><th class="number">pairs</th><th class="number">A</th><th class="number">B</th><th>A and B</th>'
    )
    heads += '<th class="number">B - A</th><th>with 95 % interval, from -100 % to 100 %</th>'
    heads += '<th class="number">seeds A:B</th><th class="number">p</th>'
    rows = "".join(map(_tag_row, results))
    return table_of("Success of both", f"<tr>{heads}</tr>{rows}", "compared")


def _tag_row(one: Any) -> str:
    difference, interval = one.b - one.a, f"{one.low:+z.1%} to {one.high:+z.1%}"
    cells = (
        ("pairs", f"{one.pairs}"),
        ("A", f"{one.a:.1%}"),
        ("B", f"{one.b:.1%}"),
        ("", two_bars(one.a, one.b)),
        ("B - A", f'{difference:+z.1%}<br><span class="soft">{interval}</span>'),
        ("", difference_bar(one.low, difference, one.high, interval, one.is_clear)),
        ("seeds A:B", f"{one.only_a}:{one.only_b}"),
        ("p", shown(shown_p(one.p))),
    )
    told = "".join(
        f'<td class="number" data-label="{label}">{value}</td>' if label else f'<td class="bar half">{value}</td>'
        for label, value in cells
    )
    return f'<tr><td class="name">{shown(one.tag, 100)}</td>{told}</tr>'


def _seeds(seeds: Mapping[tuple[str, int], float]) -> str:
    """A square for each seed, in the color of the better run."""
    tags: dict[str, list[tuple[int, float]]] = {}
    for (tag, seed), value in seeds.items():  # tags in the order of the configuration, as in the table above
        tags.setdefault(tag, []).append((seed, value))
    if not tags:
        return ""
    key = "".join(
        f'<span><i class="{kind}"></i>{words}</span>'
        for kind, words in (("better-a", "A better"), ("better-b", "B better"), ("better-none", "the same"))
    )
    squares = {tag: "".join(map(_square, sorted(each))) for tag, each in tags.items()}
    rows = "".join(
        f'<div class="track"><span>{shown(tag, 100)}</span><div class="seeds">{each}</div></div>'
        for tag, each in squares.items()
    )
    return f'<h2>Difference on each seed</h2><div class="key">{key}</div>{rows}'


def _square(each: tuple[int, float]) -> str:
    seed, value = each
    kind = "better-b" if value > 0 else "better-a" if value < 0 else "better-none"
    return f'<i class="{kind}" title="seed {seed}: {value:+.2g}"></i>'


def _row(pair: PairShown) -> Row:
    difference = "not judged" if pair.difference is None else _SIGNS[pair.difference]
    kind = {1.0: "yes", -1.0: "no"}.get(pair.difference or 0.0, "soft")
    seed = "" if pair.a.seed is None else f"seed {pair.a.seed}"
    parts: list[Part] = [
        (pair.a.tag, "name"),
        seed,
        (difference, kind),
        f"A: {_outcome_line(pair.a)}",
        f"B: {_outcome_line(pair.b)}",
    ]
    values = {"tag": pair.a.tag, "better": difference, "a": pair.a.outcome_label, "b": pair.b.outcome_label}
    return Row(values, parts)


def _outcome_line(episode: Episode) -> str:
    turns = len(episode.turns)
    return f"{episode.outcome_label}, reward {episode.reward:.4g}, {turns} {'turn' if turns == 1 else 'turns'}"


def _bodies(pairs: Sequence[PairShown]) -> Iterator[str]:
    writer = TrajectoryWriter()
    for pair in pairs:
        sides = (
            f"<section><h3>{name}</h3>{writer.body(each)}</section>" for name, each in (("A", pair.a), ("B", pair.b))
        )
        yield f'<div class="sides">{"".join(sides)}</div>'
