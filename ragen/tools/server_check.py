"""``ragen check URL [URL2]``: does an OpenEnv server play the episode that seed and actions decide?

Episodes are recorded first: for each seed a reset and some turns, in a session alone. Then the same calls are made
again, each time with one thing changed: in another session a moment later, among other sessions, after a cut in
mid-episode, in a session that has played before, on another server. Every observation, reward and end has to be
the same, byte for byte, the order of fields included, since a model reads that too. Metadata are not compared: ids and
times belong there.

The names of the checks are those that OpenEnv's validation policy reserves.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any, TypeVar

from ragen.env.openenv.wire import LOST, REFUSED, TIMEOUT, Actions, Connection, Facts, auth_headers, base_url
from ragen.errors import OpenEnvError, in_short
from ragen.tools.check_report import CheckReport, EnvCosts, Finding, in_words, to_fix

T = TypeVar("T")

VERDICT_S = 50.0
"""Seconds after which no further call is made."""
TICK = 1.1  # seconds until a clock that counts them shows something else
NOISE = 1e-6  # relative: numbers that differ by less were computed in another order, or with other libraries
FATAL = (LOST, TIMEOUT, "", "CAPACITY_REACHED", "FACTORY_ERROR")
FULL = "CAPACITY_REACHED"
RELEASE_S = 5.0  # seconds that a server has to let go of a session that has ended
STARTUP, SEEDS, DETERMINISM, ISOLATION, REPLAYS, HOSTS = (
    "runtime.startup",
    "runtime.seed_control",
    "runtime.episode_determinism",
    "runtime.episode_isolation",
    "semantic.replayability",
    "hub.cross_host_determinism",
)
Seen = list[str]  # of an episode: what was seen at the reset and in each turn, as JSON
Plans = dict[int, list[str]]  # by seed: the texts that are played


class _Unlike(Exception):
    """Something else was seen than the first time."""


class _OneSession(Exception):
    """The server refuses a second session."""


def is_server(name: str) -> bool:
    """Whether what is to be checked is an address."""
    return name.partition("://")[0] in ("http", "https", "ws", "wss")


def check_server(
    url: str,
    other: str | None = None,
    *,
    seeds: int = 3,
    turns: int = 8,
    actions: Sequence[str] = (),
    timeout: float = 30.0,
    budget: float = 3.0,
    auth_token_file: str | None = None,
) -> CheckReport:
    """Find out whether a server's episodes follow from seed and actions alone; takes less than a minute.

    Args:
        url: The server's address.
        other: Another one's with the same environment, such as on another machine.
        seeds: How many episodes to compare.
        turns: Turns of each.
        actions: What to play; actions that fit the server's schema if not given.
        timeout: Seconds that a call may take.
        budget: Seconds for the first playing of the episodes; what is slower is cut short.
        auth_token_file: Holds the token that the servers ask for.

    Returns:
        What was found, by the names of OpenEnv's policy.

    Raises:
        ConfigError: The token cannot be read.
    """
    numbers = list(range(1, 1 + max(2, seeds)))
    headers = auth_headers(auth_token_file)
    return _ServerCheck(base_url(url), other, numbers, max(1, turns), actions, timeout, budget, headers).run()


class _ServerCheck:
    """One server being looked at."""

    def __init__(
        self,
        url: str,
        other: str | None,
        seeds: Sequence[int],
        turns: int,
        texts: Sequence[str],
        timeout: float,
        budget: float,
        headers: Mapping[str, str],
    ) -> None:
        self._url, self._other, self._headers = url, None if other is None else base_url(other), headers
        self._seeds, self._turns, self._texts = seeds, turns, texts
        self._timeout, self._budget = timeout, budget
        self._until = math.inf
        self._plans: Plans = {}
        self._first: dict[int, Seen] = {}
        self._refused = 0
        self._played = 0.0  # when the recording ended

    def run(self) -> CheckReport:
        """Look at everything, as far as it makes sense after what was found before."""
        self._until = time.monotonic() + VERDICT_S
        looks: dict[str, Callable[[], Finding]] = {
            STARTUP: self._starts,
            SEEDS: self._seeds_decide,
            DETERMINISM: self._is_deterministic,
            ISOLATION: self._is_isolated,
            REPLAYS: self._replays,
            HOSTS: self._is_the_same_elsewhere,
        }
        findings: dict[str, Finding] = {}
        for name, look in looks.items():
            begin = time.monotonic()
            findings[name] = replace(self._found(name, look, findings), seconds=time.monotonic() - begin)
        return self._report(findings)

    def _found(self, name: str, look: Callable[[], Finding], before: Mapping[str, Finding]) -> Finding:
        if before and before[STARTUP].status != "ok":
            return Finding("skip", "no episode could be played")
        if name in (ISOLATION, REPLAYS, HOSTS) and before[DETERMINISM].status != "ok":
            text = "an episode that is played alone differs already"
            return Finding("fail" if name == REPLAYS else "skip", text)
        try:
            return look()
        except OpenEnvError as error:
            if time.monotonic() >= self._until:
                return Finding("fail", f"no verdict after {VERDICT_S:.0f} s", "Give it fewer --turns or --seeds.")
            return Finding("fail", str(error), cause=str(error))

    def _report(self, findings: Mapping[str, Finding]) -> CheckReport:
        failed = to_fix(findings)
        if failed is not None:
            return CheckReport(self._url, findings, EnvCosts(), "fix", *failed)
        settings = f"env_config: {{url: {self._url}, replayable: true}}"
        line = f"Far: {{env_type: openenv, max_actions_per_traj: 10, {settings}}}"
        reason = "Its episodes can be rebuilt from seed and actions, so env_type: openenv may declare it replayable."
        return CheckReport(self._url, findings, EnvCosts(), "parallel", line, reason, "custom_envs")

    # The looks

    def _starts(self) -> Finding:
        """Record the episodes that all others are compared with; what takes too long is cut from the plan."""
        facts = Facts.of(self._url, self._headers, self._left())
        self._actions, until, calls = Actions(facts.action), time.monotonic() + self._budget, 0
        begin = time.monotonic()
        for seed in self._seeds:
            if len(self._plans) >= 2 and time.monotonic() > until:
                break
            texts, seen = self._in_session(partial(self._explore, seed=seed, until=until))
            self._plans[seed], self._first[seed] = texts, seen
            calls += len(seen)
        self._played = time.monotonic()
        turns = sum(map(len, self._plans.values()))
        if self._refused >= turns:
            fix = "Name actions that it takes with --actions; where they have several fields, as JSON objects."
            return Finding("fail", f"none of {turns} actions was taken: {in_short(self._first[1][-1])}", fix)
        text = f"{len(self._plans)} episodes, {turns} turns, {in_words((self._played - begin) / calls)} a call"
        return Finding("ok", f"{text}; {self._refused} actions were refused" if self._refused else text)

    def _seeds_decide(self) -> Finding:
        """Equal seeds give equal beginnings, and others others."""
        beginnings = {}
        for seed in self._plans:
            beginnings[seed] = self._in_session(partial(self._reset, seed=seed))
            if found := difference(self._first[seed][0], beginnings[seed]):
                fix = "reset(seed) has to seed every generator, with nothing of time or of a process id."
                return Finding("fail", f"two resets with seed {seed}: {found}", fix)
        if len(set(beginnings.values())) > 1:
            return Finding("ok", f"{len(beginnings)} seeds begin alike each time, and not all alike")
        seed, texts = next(iter(self._plans.items()))
        if any(self._play(other, texts) != self._first[seed] for other in self._plans if other != seed):
            return Finding("ok", "seeds decide what happens after the reset")
        unseeded = self._in_session(lambda session: {self._reset(session, None) for _ in range(3)})
        if len(unseeded) > 1:
            fix = "Use the seed that reset is given."
            return Finding("fail", "resets without a seed differ, and seeds change nothing", fix)
        return Finding("note", "seeds change nothing, and resets without one are alike: nothing is random here")

    def _is_deterministic(self) -> Finding:
        """The same episode, alone, in another session, when seconds have passed."""
        time.sleep(max(0.0, self._played + TICK - time.monotonic()))
        try:
            for seed in self._plans:
                self._compare(seed, self._play(seed), "played again a moment later")
        except _Unlike as unlike:
            fix = (
                "Leave times, ids and hash() out of observations and rewards; draw from a generator of the episode's "
                "own; let nothing of an earlier episode stay."
            )
            return Finding("fail", str(unlike), fix)
        return Finding("ok", "the same calls in another session show the same")

    def _is_isolated(self) -> Finding:
        """The same episodes while others are played beside them, in turns and at the same time."""
        fix = "Give each session an environment, and each environment a generator, of its own."
        try:
            self._compare_all(self._take_turns(), "while other sessions took turns with it")
            with ThreadPoolExecutor(len(self._plans)) as threads:
                found = dict(zip(self._plans, threads.map(self._play, self._plans), strict=True))
            self._compare_all(found, "while other sessions played at the same time")
        except _Unlike as unlike:
            return Finding("fail", str(unlike), fix)
        except _OneSession:
            return Finding("skip", "the server takes one session at a time", "Raise its max_concurrent_envs.")
        return Finding("ok", f"{len(self._plans)} sessions beside each other show what each shows alone")

    def _take_turns(self) -> dict[int, Seen]:
        sessions = {}
        try:
            for seed in self._plans:
                sessions[seed] = self._connect()
            seen = {seed: [self._reset(session, seed)] for seed, session in sessions.items()}
            for turn in range(self._turns):
                for seed, texts in self._plans.items():
                    if turn < len(texts):
                        seen[seed].append(self._step(sessions[seed], texts[turn]))
            return seen
        except OpenEnvError as error:
            if error.code == FULL or (len(sessions) > 1 and error.code == LOST):
                raise _OneSession from error
            raise
        finally:
            for session in sessions.values():
                session.close()

    def _replays(self) -> Finding:
        """An episode is rebuilt from its actions: after a cut, and where another one was played before."""
        seeds = list(self._plans)
        try:
            for seed, other in zip(seeds, seeds[1:] + seeds[:1], strict=True):
                used = self._in_session(partial(self._play_again, seed=seed, other=other), says_goodbye=False)
                self._compare(seed, used, "begun again in mid-episode in a used session")
                self._compare(seed, self._play(seed), "rebuilt after its connection was cut in mid-episode")
        except _Unlike as unlike:
            return Finding("fail", str(unlike), "reset() must set everything that an earlier episode may have changed.")
        return Finding("ok", "episodes are rebuilt from their actions, after cuts and in used sessions")

    def _is_the_same_elsewhere(self) -> Finding:
        """The same episodes on the other server."""
        if self._other is None:
            return Finding("skip", "no second address was given")
        try:
            for seed in self._plans:
                self._compare(seed, self._play(seed, url=self._other), f"on {self._other}")
        except _Unlike as unlike:
            fix = (
                "Sort sets before they are shown; let nothing depend on hash(), paths, or the versions of libraries "
                "that compute; round what is shown."
            )
            return Finding("fail", str(unlike), fix)
        return Finding("ok", f"{self._other} shows the same")

    # Playing

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise OpenEnvError(f"there was no verdict after {VERDICT_S:.0f} s.", TIMEOUT)
        return min(left, self._timeout)

    def _connect(self, url: str | None = None) -> Connection:
        return Connection(url or self._url, self._headers, self._left())

    def _in_session(self, play: Callable[[Connection], T], url: str | None = None, says_goodbye: bool = True) -> T:
        """Play in a session, once the server has let go of the last one, which it may do a moment after its end."""
        until = time.monotonic() + RELEASE_S
        while True:
            try:
                with self._session(url, says_goodbye) as session:
                    return play(session)
            except OpenEnvError as error:
                if error.code != FULL or time.monotonic() > until:
                    raise
            time.sleep(0.05)

    @contextmanager
    def _session(self, url: str | None = None, says_goodbye: bool = True) -> Iterator[Connection]:
        session = self._connect(url)
        try:
            yield session
        finally:
            (session.close if says_goodbye else session.drop)()

    def _reset(self, session: Connection, seed: int | None) -> str:
        data: dict[str, Any] = {} if seed is None else {"seed": seed}
        return _seen(session.ask("reset", {**data, "episode_id": f"check-{seed}"}, self._left()))

    def _step(self, session: Connection, text: str) -> str:
        """What a turn shows; an error of the environment's is something seen too."""
        action = self._actions.of_text(text)
        if action is None:
            self._refused += 1
            return json.dumps({"error": f"{text!r} does not fit the schema of actions"})
        try:
            return _seen(session.ask("step", action, self._left()))
        except OpenEnvError as error:
            if error.code in FATAL:
                raise
            self._refused += error.code == REFUSED or error.code == "EXECUTION_ERROR"
            return json.dumps({"error": error.code})

    def _play(self, seed: int, texts: Sequence[str] | None = None, url: str | None = None) -> Seen:
        return self._in_session(partial(self._play_in, seed=seed, texts=texts), url)

    def _explore(self, session: Connection, seed: int, until: float) -> tuple[list[str], Seen]:
        """An episode of example actions, and what it showed."""
        texts: list[str] = []
        seen = [self._reset(session, seed)]
        for text in islice(self._actions.examples(Random(seed), self._texts), self._turns):
            if texts and time.monotonic() > until:
                break
            texts.append(text)
            seen.append(self._step(session, text))
            if _is_over(seen[-1]):
                break
        return texts, seen

    def _play_again(self, session: Connection, seed: int, other: int) -> Seen:
        """An episode after another one and the half of itself; the session is left in the middle of it."""
        half = self._plans[seed][: (len(self._plans[seed]) + 1) // 2]
        self._play_in(session, other)
        self._play_in(session, seed, half)
        seen = self._play_in(session, seed)
        self._play_in(session, seed, half)
        return seen

    def _play_in(self, session: Connection, seed: int, texts: Sequence[str] | None = None) -> Seen:
        seen = [self._reset(session, seed)]
        for text in self._plans[seed] if texts is None else texts:
            if _is_over(seen[-1]):
                break
            seen.append(self._step(session, text))
        return seen

    def _compare(self, seed: int, seen: Seen, moment: str) -> None:
        for turn, (first, again) in enumerate(zip(self._first[seed], seen, strict=True)):
            if found := difference(first, again):
                where = f"at turn {turn}" if turn else "at the reset"
                raise _Unlike(f"the episode of seed {seed}, {moment}, differs {where}: {found}")

    def _compare_all(self, episodes: Mapping[int, Seen], moment: str) -> None:
        for seed, seen in episodes.items():
            self._compare(seed, seen, moment)


def _seen(answer: Mapping[str, Any]) -> str:
    observation = answer.get("observation")
    if isinstance(observation, dict):  # which OpenEnv's servers put metadata into as well
        observation = {name: value for name, value in observation.items() if name != "metadata"}
    return json.dumps({"observation": observation, "reward": answer.get("reward"), "done": answer.get("done")})


def _is_over(seen: str) -> bool:
    return bool(json.loads(seen).get("done"))


def difference(first: str, again: str) -> str:
    """How two answers differ, in words; empty if they do not.

    Args:
        first: JSON.
        again: JSON.
    """
    if first == again:
        return ""
    found = list(islice(_differences("", json.loads(first), json.loads(again)), 100))
    if not found:
        return "the fields of an object come in another order"
    where, one, other = found[0]
    if all(map(_is_noise, found)):
        return f"{where} was {one!r} and is {other!r}, which is noise of floating point"
    return f"{where} was {in_short(one)} and is {in_short(other)}"


def _is_noise(found: tuple[str, Any, Any]) -> bool:
    _, one, other = found
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    return numbers and math.isclose(one, other, rel_tol=NOISE, abs_tol=NOISE)


def _differences(where: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every place where two values of JSON differ, and both values there."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from _differences(f"{where}.{key}" if where else key, one.get(key), other.get(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(f"{where}[{index}]", left, right)
    elif one != other or type(one) is not type(other):
        yield where, one, other
