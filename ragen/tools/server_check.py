"""``ragen check URL [URL2]``: checks that an OpenEnv server's episodes depend only on seed and actions.

Episodes are recorded first: for each seed, a reset and some turns in a single session. Then the same calls are repeated
with one change at a time: in another session a second later, beside other sessions, after a lost connection, in a
session that has played before, and on another server. Observations, rewards and ends must be equal, byte for byte and
including the order of fields, which a model reads too. Metadata are not compared, since they may have ids and times.

The checks have the names that OpenEnv's validation policy reserves.
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
from ragen.errors import OpenEnvError, in_contrast, in_short
from ragen.parallel.stats import duration
from ragen.tools.check_report import CheckReport, EnvCosts, Finding, to_fix

T = TypeVar("T")

VERDICT_S = 50.0
"""Seconds after which no further call is made."""
TICK = 1.1  # seconds after which a clock that shows seconds has changed
NOISE = 1e-6  # relative difference of numbers due to the order of operations or other libraries
FATAL = (LOST, TIMEOUT, "", "CAPACITY_REACHED", "FACTORY_ERROR")
FULL = "CAPACITY_REACHED"
RELEASE_S = 5.0  # seconds in which a server must release a session that has ended
STARTUP, SEEDS, DETERMINISM, ISOLATION, REPLAYS, HOSTS = (
    "runtime.startup",
    "runtime.seed_control",
    "runtime.episode_determinism",
    "runtime.episode_isolation",
    "semantic.replayability",
    "hub.cross_host_determinism",
)
Seen = list[str]  # the results of an episode's reset and turns, as JSON
Plans = dict[int, list[str]]  # the actions to play, as texts, by seed


class _Unlike(Exception):
    """A result differs from the recorded one."""


class _OneSession(Exception):
    """The server refuses a second session."""


def is_server(name: str) -> bool:
    """Whether the argument of ``ragen check`` is an address."""
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
    """Check that a server's episodes depend only on seed and actions; takes less than a minute.

    Args:
        url: The server's address.
        other: The address of another server with the same environment, such as on another machine.
        seeds: Number of episodes to compare.
        turns: Maximum number of turns per episode.
        actions: The actions to play; by default, actions generated from the server's schema.
        timeout: Timeout of a call in seconds.
        budget: Seconds for recording the episodes; slower ones are shortened.
        auth_token_file: The file with the servers' authentication token.

    Returns:
        The findings, by the names of OpenEnv's policy.

    Raises:
        ConfigError: The token cannot be read.
    """
    numbers = list(range(1, 1 + max(2, seeds)))
    headers = auth_headers(auth_token_file)
    return _ServerCheck(base_url(url), other, numbers, max(1, turns), actions, timeout, budget, headers).run()


class _ServerCheck:
    """The check of one server."""

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
        """Run all checks that are meaningful after the earlier findings."""
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
            text = "even an episode in a single session differs"
            return Finding("fail" if name == REPLAYS else "skip", text)
        try:
            return look()
        except OpenEnvError as error:
            if time.monotonic() >= self._until:
                return Finding("fail", f"no verdict after {VERDICT_S:.0f} s", "Use fewer --turns or --seeds.")
            return Finding("fail", str(error), cause=str(error))

    def _report(self, findings: Mapping[str, Finding]) -> CheckReport:
        failed = to_fix(findings)
        if failed is not None:
            return CheckReport(self._url, findings, EnvCosts(), "fix", *failed)
        settings = f"env_config: {{url: {self._url}, replayable: true}}"
        line = f"Far: {{env_type: openenv, max_actions_per_traj: 10, {settings}}}"
        reason = "Its episodes can be rebuilt from seed and actions, so it can be declared replayable."
        return CheckReport(self._url, findings, EnvCosts(), "parallel", line, reason, "custom_envs")

    # The checks

    def _starts(self) -> Finding:
        """Record the episodes for comparison; turns that take too long are omitted from the plan."""
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
            fix = "Give actions that it accepts with --actions; those with several fields as JSON objects."
            return Finding("fail", f"none of {turns} actions was accepted: {in_short(self._first[1][-1])}", fix)
        text = f"{len(self._plans)} episodes, {turns} turns, {duration((self._played - begin) / calls)} per call"
        return Finding("ok", f"{text}; {self._refused} actions were refused" if self._refused else text)

    def _seeds_decide(self) -> Finding:
        """Equal seeds have equal initial observations, and different seeds have different ones."""
        beginnings = {}
        for seed in self._plans:
            beginnings[seed] = self._in_session(partial(self._reset, seed=seed))
            if found := difference(self._first[seed][0], beginnings[seed]):
                fix = "reset(seed) must seed every generator, without using time or process ids."
                return Finding("fail", f"two resets with seed {seed}: {found}", fix)
        if len(set(beginnings.values())) > 1:
            return Finding("ok", f"resets with {len(beginnings)} seeds are reproducible, and differ between seeds")
        seed, texts = next(iter(self._plans.items()))
        if any(self._play(other, texts) != self._first[seed] for other in self._plans if other != seed):
            return Finding("ok", "seeds determine what happens after the reset")
        unseeded = self._in_session(lambda session: {self._reset(session, None) for _ in range(3)})
        if len(unseeded) > 1:
            fix = "Use the seed that reset receives."
            return Finding("fail", "resets without a seed differ, but seeds have no effect", fix)
        return Finding("note", "seeds have no effect, and resets without one are equal: nothing is random")

    def _is_deterministic(self) -> Finding:
        """Repeat each episode in another session, a second later."""
        time.sleep(max(0.0, self._played + TICK - time.monotonic()))
        try:
            for seed in self._plans:
                self._compare(seed, self._play(seed), "repeated a second later")
        except _Unlike as unlike:
            fix = (
                "Keep times, ids and hash() out of observations and rewards, use a separate generator for each "
                "episode, and keep no state of earlier episodes."
            )
            return Finding("fail", str(unlike), fix)
        return Finding("ok", "the same calls in another session have the same results")

    def _is_isolated(self) -> Finding:
        """Repeat the episodes in alternating and in concurrent sessions."""
        fix = "Give each session its own environment, and each environment its own generator."
        try:
            self._compare_all(self._take_turns(), "while other sessions took turns with it")
            with ThreadPoolExecutor(len(self._plans)) as threads:
                found = dict(zip(self._plans, threads.map(self._play, self._plans), strict=True))
            self._compare_all(found, "while other sessions played at the same time")
        except _Unlike as unlike:
            return Finding("fail", str(unlike), fix)
        except _OneSession:
            return Finding("skip", "the server accepts one session at a time", "Increase its max_concurrent_envs.")
        return Finding("ok", f"{len(self._plans)} concurrent sessions have the same results as single ones")

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
        """Repeat the episodes after a lost connection, and in a session that has played before."""
        seeds = list(self._plans)
        try:
            for seed, other in zip(seeds, seeds[1:] + seeds[:1], strict=True):
                used = self._in_session(partial(self._play_again, seed=seed, other=other), says_goodbye=False)
                self._compare(seed, used, "restarted in a used session")
                self._compare(seed, self._play(seed), "repeated after a lost connection")
        except _Unlike as unlike:
            return Finding(
                "fail", str(unlike), "reset() must restore all state that an earlier episode may have changed."
            )
        return Finding("ok", "episodes can be repeated after lost connections and in used sessions")

    def _is_the_same_elsewhere(self) -> Finding:
        """Repeat the episodes on the other server."""
        if self._other is None:
            return Finding("skip", "no second address given")
        try:
            for seed in self._plans:
                self._compare(seed, self._play(seed, url=self._other), f"on {self._other}")
        except _Unlike as unlike:
            fix = (
                "Sort sets before showing them; avoid hash(), paths, and dependence on versions of numerical "
                "libraries; round numbers before showing them."
            )
            return Finding("fail", str(unlike), fix)
        return Finding("ok", f"{self._other} has the same results")

    # Playing

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise OpenEnvError(f"no verdict after {VERDICT_S:.0f} s.", TIMEOUT)
        return min(left, self._timeout)

    def _connect(self, url: str | None = None) -> Connection:
        return Connection(url or self._url, self._headers, self._left())

    def _in_session(self, play: Callable[[Connection], T], url: str | None = None, says_goodbye: bool = True) -> T:
        """Play in a session; waits until the server has released the previous one."""
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
        """The result of a turn; an error of the environment is a result too."""
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
        """An episode with example actions, and its results."""
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
        """An episode after another one and half of itself; the session ends in mid-episode."""
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
    if isinstance(observation, dict):  # OpenEnv's servers add metadata to it too
        observation = {name: value for name, value in observation.items() if name != "metadata"}
    return json.dumps({"observation": observation, "reward": answer.get("reward"), "done": answer.get("done")})


def _is_over(seen: str) -> bool:
    return bool(json.loads(seen).get("done"))


def difference(first: str, again: str) -> str:
    """A description of the difference between two results; empty if they are equal.

    Args:
        first: The recorded result, as JSON.
        again: The repeated result, as JSON.
    """
    if first == again:
        return ""
    found = list(islice(_differences("", json.loads(first), json.loads(again)), 100))
    if not found:
        return "the fields of an object are in another order"
    where, one, other = found[0]
    if all(map(_is_noise, found)):
        return f"{where} was {one!r} and is {other!r}, which is noise of floating point"
    was, is_now = in_contrast(one, other)
    return f"{where} was {was} and is {is_now}"


def _is_noise(found: tuple[str, Any, Any]) -> bool:
    _, one, other = found
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    return numbers and math.isclose(one, other, rel_tol=NOISE, abs_tol=NOISE)


def _differences(where: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """The path of every difference between two values of JSON, and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from _differences(f"{where}.{key}" if where else key, one.get(key), other.get(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(f"{where}[{index}]", left, right)
    elif one != other or type(one) is not type(other):
        yield where, one, other
