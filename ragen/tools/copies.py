"""Whether copies of mid-episode play as what they were copied from: what ``copies_midway`` promises."""

from __future__ import annotations

from collections.abc import Mapping

from ragen.parallel.episode.host import ResetOrder
from ragen.parallel.episode.journal import difference
from ragen.parallel.episode.replicas import Lineage
from ragen.parallel.episode.turn import Turn
from ragen.parallel.lanes.orders import Fork, Play, Reset
from ragen.tools.recording import MANY_ACTIONS, OPTIONS, Recording, Step, Turns
from ragen.tools.sandbox import Mishap, Sandbox


def difference_of_copies(sandbox: Sandbox, source: int, copy: int, first: Recording, plan: Mapping[int, Turns]) -> str:
    """Where a copy of mid-episode first plays otherwise than what it was copied from; "" if nowhere.

    ``source`` plays the turns of the plan's first seed, which went as in ``first``; after each of them it is copied to
    ``copy``, which plays the rest.
    """
    seed, turns = next(iter(plan.items()))
    expected = first.episodes[seed]
    sandbox.do(Reset([ResetOrder(source, seed, OPTIONS)]))
    for count in range(1, len(expected) - 1):
        played = sandbox.do(Play([(source, Turn(turns[count - 1], MANY_ACTIONS))]))[0].value
        if isinstance(played, Mishap):
            return f"turn {count - 1} of seed {seed} gives a {played.kind} beside a copy: {played.text}"
        forked = sandbox.do(Fork([(copy, Lineage(source, played.digest, None))]))[0].value
        if isinstance(forked, Mishap) or forked.note:
            return f"after turn {count - 1} of seed {seed}, {getattr(forked, 'note', '') or forked.text}"
        for turn in range(count, len(expected) - 1):
            result = sandbox.do(Play([(copy, Turn(turns[turn], MANY_ACTIONS))]))[0].value
            if isinstance(result, Mishap):
                return f"a copy after turn {count - 1} of seed {seed} gives a {result.kind}: {result.text}"
            if found := difference(turn, Step._fields, expected[turn + 1], Step.of(result)):
                return f"of a copy after turn {count - 1} of seed {seed}, {found.describe()}"
    return ""
