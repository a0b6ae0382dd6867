"""Episodes played in a sandbox, and compared step by step with how they went before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import chain, islice, takewhile
from math import inf
from typing import Any, NamedTuple

from ragen.errors import without_addresses
from ragen.parallel.episode.host import ResetOrder
from ragen.parallel.episode.journal import EpisodeJournal, difference
from ragen.parallel.episode.outcome import describe
from ragen.parallel.episode.pickled import Pickled
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import RagenGame, Turn, TurnResult, play_turn
from ragen.parallel.lanes.orders import Play, Rebuild, Reset, Save
from ragen.tools.json_codec import plain
from ragen.tools.sandbox import Mishap, Sandbox

MANY_ACTIONS = 99  # actions left: turns are not cut short
OPTIONS = {"mode": "train"}

Turns = list[tuple[str, ...]]
Plan = dict[int, Turns]
"""The turns to play, by seed."""

NOT_SENT = "cannot be pickled: "


def _sendable(value: Any) -> Any:
    """The value; if it cannot be sent between processes, a text that begins with :data:`NOT_SENT`."""
    try:
        Pickled.of(value).open()
    except Exception as error:  # whatever pickling raises
        return f"{NOT_SENT}{without_addresses(describe(error))}"
    return value


def play_sendable(env: Any, turn: Turn) -> TurnResult:
    """Play one turn; values of its info that cannot be sent between processes are replaced by texts."""
    result = play_turn(env, turn)
    return result._replace(info={key: _sendable(value) for key, value in result.info.items()})


class SendableGame(RagenGame):
    """RAGEN's game, for environments whose infos cannot be sent between processes; see :func:`play_sendable`."""

    play = staticmethod(play_sendable)  # type: ignore[assignment]


class Step(NamedTuple):
    """What one reset or turn gave, in plain form; the observation as its digest."""

    digest: Any
    reward: Any = None
    done: bool = False
    info: Any = None


class Difference(NamedTuple):
    """How an episode differs from what it was.

    Attributes:
        text: In words.
        cause: What the environment raised, or how its process ended, if that is the difference.
        story: The traceback, or the stacks, of that.
        phase: The operation that raised; see :class:`~ragen.tools.sandbox.Mishap`.
    """

    text: str
    cause: str = ""
    story: str = ""
    phase: str = ""

    @classmethod
    def of_mishap(cls, mishap: Mishap) -> Difference:
        """The environment failed, as it did not before."""
        return cls(mishap.describe(), mishap.text, mishap.story, mishap.phase)


Episodes = dict[int, list[Step]]
"""By seed, what the reset and the turns gave."""


class Took(NamedTuple):
    """What a turn took.

    Attributes:
        seconds: Its duration.
        where: Which turn it was, and its actions.
    """

    seconds: float
    where: str


def record(
    sandbox: Sandbox, env_id: int, plans: Mapping[int, Iterator[tuple[str, ...]]], budget: float
) -> tuple[Plan, Episodes, float, list[Took]]:
    """Play episodes; after so many seconds no further turn is begun, but one is played in any case.

    Args:
        sandbox: Where the environment is loaded.
        env_id: Which one it is there.
        plans: By seed, the turns to play, each asked for when the one before it was played.
        budget: Seconds.

    Returns:
        The turns that were played, what they gave, the mean seconds of a reset, and what each turn took.

    Raises:
        Mishap: A reset or a turn gave no result.
    """
    plan: Plan = {}
    episodes: Episodes = {}
    took: list[Took] = []
    end, resets_s = time.monotonic() + budget, 0.0
    for seed, turns in plans.items():
        if episodes and time.monotonic() > end:
            break
        played = plan[seed] = []
        start = time.monotonic()
        ((_, begun),) = _episode(sandbox, env_id, seed, [])
        resets_s += time.monotonic() - start
        steps = episodes[seed] = [begun]
        for turn, actions in enumerate(turns):
            played.append(actions)
            steps.append(_step(sandbox, env_id, turn, actions, f"seed {seed}"))
            seconds = sum(spent.seconds for spent in sandbox.spent.values())
            took.append(Took(seconds, _where(turn, actions, f"seed {seed}")))
            if steps[-1].done or time.monotonic() > end:
                break
    return plan, episodes, resets_s / max(1, len(plan)), took


def difference_from(
    expected: Episodes, sandbox: Sandbox, env_id: int, plan: Plan, seconds: float = inf, pause: float = 0.0
) -> Difference | None:
    """Where the same episodes first go otherwise; None if nowhere, as far as they are played in so many seconds.

    The last episode's reset is followed by a ``pause``, in seconds.
    """
    end = time.monotonic() + seconds
    differences = _differences(expected, sandbox, env_id, plan, pause)
    return _first(takewhile(lambda found: found or time.monotonic() < end, differences))


def difference_of_two(expected: Episodes, sandbox: Sandbox, env_ids: tuple[int, int], plan: Plan) -> Difference | None:
    """Where the same episodes first go otherwise if two environments take turns; None if nowhere.

    The second environment begins when the first one has finished an episode, so that they play different seeds; if
    there is only one episode, it begins after the first one's reset. The first one's last turn ends the comparison.
    """
    ahead, behind = (_differences(expected, sandbox, env_id, plan) for env_id in env_ids)
    alone = 1 + len(plan[next(iter(plan))]) if len(plan) > 1 else 1
    return _first(chain(islice(ahead, alone), chain.from_iterable(zip(ahead, behind, strict=False))))


def _differences(
    expected: Episodes, sandbox: Sandbox, env_id: int, plan: Plan, pause: float = 0.0
) -> Iterator[Difference | None]:
    """Play the episodes, and compare each reset and turn with what it gave before."""
    last = [*plan][-1]
    for seed, turns in plan.items():
        for turn, step in _episode(sandbox, env_id, seed, turns):
            found = difference(turn, Step._fields, expected[seed][turn + 1], step)
            yield Difference(f"with seed {seed}, {found.describe()}") if found else None
            if turn < 0 and seed == last:
                time.sleep(pause)


def _first(differences: Iterator[Difference | None]) -> Difference | None:
    try:
        return next(filter(None, differences), None)
    except Mishap as mishap:
        return Difference.of_mishap(mishap)


def difference_of_snapshots(
    expected: Episodes, sandbox: Sandbox, spec: EnvSpec, other: int, plan: Plan
) -> Difference | None:
    """Where what was loaded from a snapshot of mid-episode first plays otherwise; None if nowhere.

    The environment of ``spec`` plays the episodes; after each turn of the last one ``other`` loads what it saves, and
    plays the rest.
    """
    (*before, (seed, turns)), source = plan.items(), spec.env_id
    try:
        for earlier in before:
            list(_episode(sandbox, source, *earlier))
        sandbox.do(Reset([ResetOrder(source, seed, OPTIONS)]))
        for turn, step in _turns(sandbox, source, turns[:-1], f"seed {seed}"):
            after = f"after turn {turn + 1} of seed {seed}"
            snapshot = sandbox.ask(Save([(source, None)]), f"as it was saved {after}")
            journal = EpisodeJournal(seed, OPTIONS, has_begun=True, snapshots=[snapshot])
            shown = sandbox.ask(Rebuild([], [(other, journal)]), f"as it was loaded {after}")
            if found := difference(turn, ("digest",), (step.digest,), (plain(spec.game.digest(shown)),)):
                return Difference(f"of a snapshot {after}, {found.describe()}")
            for later, its_step in _turns(sandbox, other, turns, f"a snapshot {after}", turn + 1):
                if found := difference(later, Step._fields, expected[seed][later + 1], its_step):
                    return Difference(f"of a snapshot {after}, {found.describe()}")
    except Mishap as mishap:
        return Difference.of_mishap(mishap)
    return None


def _episode(sandbox: Sandbox, env_id: int, seed: int, turns: Turns) -> Iterator[tuple[int, Step]]:
    """Turns, the reset being -1, and what they gave."""
    reset = sandbox.ask(Reset([ResetOrder(env_id, seed, OPTIONS)]), f"in the reset with seed {seed}")
    yield -1, Step(plain(reset.digest))
    yield from _turns(sandbox, env_id, turns, f"seed {seed}")


def _turns(sandbox: Sandbox, env_id: int, turns: Turns, whose: str, first: int = 0) -> Iterator[tuple[int, Step]]:
    """The turns of an episode from this one on, until it is done, and what they gave."""
    for turn, actions in enumerate(turns[first:], first):
        step = _step(sandbox, env_id, turn, actions, whose)
        yield turn, step
        if step.done:
            return


def _step(sandbox: Sandbox, env_id: int, turn: int, actions: tuple[str, ...], whose: str) -> Step:
    result = sandbox.ask(Play([(env_id, Turn(actions, MANY_ACTIONS))]), f"in {_where(turn, actions, whose)}")
    return Step(*(plain(getattr(result, name)) for name in Step._fields))


def _where(turn: int, actions: tuple[str, ...], whose: str) -> str:
    return f"turn {turn + 1} ({', '.join(map(repr, actions))}) of {whose}"
