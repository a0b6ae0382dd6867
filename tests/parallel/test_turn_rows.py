"""Turns of RAGEN's environments in one piece: the journals, values and pages of single turns."""

from __future__ import annotations

import pytest

from ragen.parallel import EnvEngine, EnvSpec, Settings
from ragen.parallel.episode.outcome import Outcome, RowOf
from ragen.parallel.episode.rows import Pages, Reader
from ragen.parallel.episode.turn import Turn, TurnResult
from ragen.parallel.episode.turn_row import TurnRow, TurnRowResult
from ragen.parallel.lanes import codec
from ragen.parallel.lanes.row_order import PlayRow
from support.toy_envs import Counter, CounterConfig

TURNS = [Turn(("One",), 9), Turn(("Two", "One"), 9), Turn(("nothing",), 9), Turn((), 9)]


def result(shown: str) -> TurnResult:
    """A turn that showed this."""
    return TurnResult([1], False, 0.5, False, {"count": 1}, shown, shown)


@pytest.mark.parametrize("images", [0, 2], ids=["text", "images"])
def test_journals_and_results_are_those_of_single_turns(images: int) -> None:
    """Also where some are played alone in between, and where some are played no more."""
    runs = []
    for in_rows in (True, False):
        specs = [EnvSpec.of(Counter, CounterConfig(goal=100, images=images), env_id=i, tag="one") for i in range(4)]
        engine, told = EnvEngine(specs, Settings.of(use_lanes=False)), []
        engine.reset(dict.fromkeys(range(4), 3))
        for step in range(6):
            turns = dict(zip(range(4 if step < 4 else 2), TURNS[step % 4 :] + TURNS, strict=False))
            if in_rows and step != 2:
                told.append(engine.rows.play_singly(TurnRow(list(turns), list(turns.values()))))
                assert engine.records[0].reader.is_behind, "it was kept as a page"
            else:
                told.append(engine.play(turns))
        records = engine.records.values()
        runs.append(repr(([(each.observation, each.journal) for each in records], told)))
        engine.close()
    assert runs[0] == runs[1]


def test_rows_travel_as_plain_data() -> None:
    """Sealed one by one they would cost several times as much."""
    row = TurnRow([7, 8], TURNS[:2], ("raw_reward",))
    order = codec.unpack_request(codec.pack_request(1, 1, PlayRow(row)))[2]
    assert isinstance(order, PlayRow) and isinstance(order.row, TurnRow)
    assert (order.row.env_ids, order.row.turns, order.row.sums) == ([7, 8], TURNS[:2], ("raw_reward",))
    played = TurnRowResult([result("seven"), result("eight")])
    outcomes = codec.unpack_reply(codec.pack_reply(1, [Outcome(7, RowOf([7, 8], played), 0.5)]))
    assert type(outcomes[0].value) is RowOf
    assert [single.value for single in outcomes[0].singly()] == [result("seven"), result("eight")]


def test_what_was_shown_is_forgotten_when_the_same_environments_show_more() -> None:
    """Whatever others are played in between, as those of other homes are."""
    pages = Pages()
    reader = Reader(pages)  # for whom they are kept
    kept = []
    for env_ids in ([0, 1], [2, 3], [0, 1], [2, 3]):
        kept.append(TurnRowResult([result(f"{env_id} shows") for env_id in env_ids]))
        pages.add(TurnRow(env_ids, TURNS[:2]), kept[-1])
    assert reader.distance == 4 and pages.last.shown(3) == "3 shows"
    for old in kept[:2]:
        with pytest.raises(IndexError):
            old.one(0)
        assert old.recorded(0)[:2] == (0.5, False) and len(old) == 2
    assert [each.one(1).observation for each in kept[2:]] == ["1 shows", "3 shows"]
