"""``ragen check TYPE|module:Class|URL [key=value ...]``: does an environment replay, and what does a turn of it cost?

Three episodes are played in a worker, one after the other on one object. A fresh worker then plays the same actions
again, with another hash seed, in another time zone and at least a second later:

    worker 1, object 0      seed 1      seed 2      seed 3
    worker 2, object 0      seed 3      seed 2      seed 1      after other episodes
              object 1      seed 2      seed 1      seed 3      takes turns with object 0
              object 2      seed 3      seed 2      seed 1      if the class declares snapshots: after each reset and
                                                                turn, a new object that loads what the old one saves

All fields of every reset and turn are compared. The first difference ends the check. It is reported with its seed,
turn, field and both values, and with the usual causes; the cause itself is not looked for. The environment is never
played in this process, so one that hangs or crashes fails the check like any other. An OpenEnv server is checked in the
same way.

Exit codes: 0 nothing to fix, 1 something must be fixed, 2 the arguments are wrong.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from statistics import mean
from typing import Any

from envlanes import Engine, EnvSpec, Settings, outer_state_kept
from envlanes.auto import EACH_S
from envlanes.episode import program
from envlanes.episode.game import Options, declares_snapshots
from envlanes.episode.journal import difference
from envlanes.episode.pickled import Pickled
from envlanes.ragen.journal import NotPlain, packed
from envlanes.ragen.step import SUCCESS_KEYS
from envlanes.ragen.turn import TEXT, RagenGame, Turn, TurnResult, action_lookup, play_turn
from envlanes.stats import duration
from ragen.commands import CommandParser, positive, refusing
from ragen.env.fields import check_kinds, read_settings
from ragen.env.registry import resolve_env
from ragen.errors import ConfigError, DivergenceError, InputError, in_contrast, steady_repr
from ragen.extras import check_installed, extra_of
from ragen.output import printable
from ragen.tools.examples import TEXTS, checked_example, gives_examples

NOTHING_TO_FIX, FIX_FIRST = 0, 1
SEEDS = (1, 2, 3)
OPTIONS = {"mode": "train"}
PAUSE = 1.1  # seconds from the first episode to the same one again, so that a clock of whole seconds moves on

# Under these two hash seeds, sets of two common words (red and blue, left and right, yes and no ...) are iterated in
# opposite orders, while any two seeds order half of them alike. The time zones are 26 hours apart: it is never the same
# day.
FIRST = {"PYTHONHASHSEED": "777", "TZ": "HERE+12"}
AGAIN = {"PYTHONHASHSEED": "1594", "TZ": "THERE-14"}

OBJECTS = (
    "in another process, after other episodes",
    "in another process, on a second object",
    "in another process, after load() of what save() returned",
)
RELOADED = 2  # the last of these objects

Moment = tuple[int, int, tuple[str, ...], str]
"""Seed, turn, actions, and the object that is played, in words."""

NO_SUCCESS = "No info said success, so no episode counts as one: return info['success']."
CAUSES = (
    "After reset(seed), configuration, seed and actions must decide everything. Usual causes of a difference: a "
    "generator that reset(seed) does not seed, or a global one in a class that declares uses_global_rng = False; the "
    "order of a set, or hash(), which each process salts; the time, a process id, id(), os.urandom; state in the class "
    "or its module, which all objects share; something that reset() does not clear; a part of the state that save() "
    "and load() leave out."
)


class Difference(DivergenceError):
    """An environment did not return what it should have.

    Attributes:
        seed, turn, actions: The place: turn 0 is the reset.
        field: ``"observation"``, ``"reward"``, ``"done"``, ``"info['KEY']"`` ...; ``"result"`` if it failed.
        expected, got: Both values.
        failure: The error if it failed, with the stacks of a hung worker as notes.
    """

    def __init__(self, moment: Moment, field: str, expected: Any, got: Any, failure: Exception | None = None) -> None:
        """See the attributes; a moment ends with the object that was played."""
        self.seed, self.turn, self.actions, where = moment
        self.field, self.expected, self.got, self.failure = field, expected, got, failure
        one, other = (expected, got) if failure else in_contrast(expected, got, 200)
        turn = f"turn {self.turn} {self.actions}" if self.turn else "turn 0 (the reset)"
        super().__init__(f"seed {self.seed}, {turn}, {field}: expected {one}, got {other} ({where})")


@dataclass(frozen=True)
class CheckReport:
    """The result of a check.

    Attributes:
        spec: The environment.
        difference: The first difference, if there was any.
        turns, valid: Number of turns, and of those with an action that was valid as far as is known.
        success: The key of infos from which success is read; "" if no info has one.
        reset_s, turn_s: Mean seconds without the longest of each, which may have imported modules.
    """

    spec: EnvSpec
    difference: Difference | None = None
    turns: int = 0
    valid: int = 0
    success: str = ""
    reset_s: float = 0.0
    turn_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing must be fixed; an environment that declares ``replayable = False`` may differ."""
        return self.difference is None or (self.difference.failure is None and not self.spec.is_replayable)

    def __str__(self) -> str:
        """The report for a terminal."""
        return printable(f"{self.spec.env_type}: {self._text()}")

    def _text(self) -> str:
        if self.difference is not None:
            error: BaseException | None = self.difference.failure
            story = CAUSES
            while error is not None:  # the innermost is the traceback in the worker
                story, error = "".join(traceback.format_exception(error, chain=False)), error.__cause__
            declared = "\n\nIt declares replayable = False: a lost episode is not rebuilt." if self.ok else ""
            return f"{self.difference}\n\n{story}{declared}"
        success = f"Success is info[{self.success!r}]." if self.success else NO_SUCCESS
        if not self.valid:
            return (
                f"nothing is known, since none of {self.turns} turns had a valid action. Give the class an "
                f"example_action(self, rng), or name actions with --actions.\n{success}"
            )
        home = "moves it to workers" if max(self.turn_s, self.reset_s) >= EACH_S else "keeps it in main"
        if hint := getattr(self.spec.env_class, "cost_hint", None):
            home = f"goes by its cost_hint, {hint!r}"
        return (
            f"{len(SEEDS)} episodes were equal each time. {self.valid} of {self.turns} turns had a valid action.\n"
            f"{success}\n"
            f"A turn takes {duration(self.turn_s)}, a reset {duration(self.reset_s)}; use_multiprocessing: auto {home}."
        )


def check_parallel(
    env: str | type, config: Any = None, *, turns: int = 8, actions: Sequence[str] = (), timeout: float = 30.0
) -> CheckReport:
    """Check whether an environment replays in worker processes, and measure it.

    No other engine or manager may have workers meanwhile: they are shared, and have the hash seed of the first.

    Args:
        env: A class, a registered name, a ``"package.module:Class"`` path, or the address of an OpenEnv server.
        config: The environment's configuration object, or a mapping of its fields.
        turns: Turns per episode.
        actions: Actions to play; by default those of ``example_action``, or the names of its actions, or some texts.
        timeout: Time-out of a reset or turn in seconds.

    Returns:
        The first difference, if there is any, and the measurements.

    Raises:
        ConfigError: The configuration does not match the environment.
        InputError: ``turns`` is below 1, or ``actions`` is a single text.
        UnknownEnvError: There is no such environment.
    """
    if turns < 1:
        raise InputError(f"turns = {turns}: expected a number of at least 1.")
    if isinstance(actions, str):
        raise InputError(f"actions = {actions!r}: expected a list of texts.")
    spec, start = _spec_of(env, config), time.monotonic()
    try:
        report, episodes = _play(spec, turns, tuple(actions), timeout)
        time.sleep(max(0.0, start + PAUSE - time.monotonic()))
        _play_again(spec, episodes, timeout)
    except Difference as found:
        return CheckReport(spec, found)
    return report


def _spec_of(env: str | type, config: Any) -> EnvSpec:
    env_class, config_class, fields = _resolved(env)
    if config is None or isinstance(config, Mapping):
        fields |= config or {}
        try:
            config = config_class(**fields) if config_class is not None else fields or None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{env}: the configuration {fields!r} does not fit: {error}") from error
    spec = EnvSpec.of(env_class, config, tag="check", game=CheckGame())
    check_kinds("", spec.env_type, spec.config, fields)
    if extra := extra_of(env_class):
        check_installed(extra, f"the environment {env!r}")
    return replace(spec, env_type=env) if isinstance(env, str) else spec


def _resolved(env: str | type) -> tuple[Any, Any, dict[str, Any]]:
    """The classes of an environment and of its configuration, and the fields that a server's address implies."""
    if not isinstance(env, str):
        return env, getattr(env, "config_class", None), {}
    if "://" in env:
        return *resolve_env("openenv"), {"url": env, "replayable": True}  # so that a difference is one to fix
    return *resolve_env(env), {}


# In this process

Episode = list[tuple[tuple[str, ...], dict[str, Any]]]
"""Actions and values by name of the reset, which has no actions, and of each turn."""


def _play(spec: EnvSpec, turns: int, given: tuple[str, ...], timeout: float) -> tuple[CheckReport, dict[int, Episode]]:
    """Choose the actions, and play the episodes; raises a :class:`Difference` if the environment fails."""
    episodes: dict[int, Episode] = {}
    valid, success = 0, ""
    with _worker([spec], timeout, FIRST) as engine:
        for seed in SEEDS:
            moment: Moment = (seed, 0, (), "played for the first time")
            values = _values(_returned(engine, 0, engine.reset({0: seed}, OPTIONS)[0], moment), moment)
            episode = episodes[seed] = [((), values)]
            while len(episode) <= turns and not values.get("done"):
                moment = (seed, len(episode), (), moment[-1])
                chosen = engine.read([0], "choose", f"{seed}, {len(episode)}", given)[0]
                actions, is_known = _returned(engine, 0, chosen, moment)
                moment = (seed, len(episode), actions, moment[-1])
                result = engine.play({0: Turn(actions, len(actions))})[0]
                values = _values(_returned(engine, 0, result, moment), moment)
                valid += bool(values["executed"] and values.get("info['action_is_valid']", is_known))
                episode.append((actions, values))
            success = success or next((key for key in SUCCESS_KEYS if f"info[{key!r}]" in values), "")
        reset_s, turn_s = (sorted(engine.read([0], name)[0]) for name in ("reset_s", "turn_s"))
    seconds = mean(reset_s[:-1]), mean(turn_s[:-1] or turn_s)
    return CheckReport(spec, None, len(turn_s), valid, success, *seconds), episodes


def _play_again(spec: EnvSpec, episodes: Mapping[int, Episode], timeout: float) -> None:
    """Play the episodes again as the module says; raises the first :class:`Difference`."""
    count = 3 if declares_snapshots(spec.env_class) else 2
    order = SEEDS[::-1]
    with _worker([replace(spec, env_id=i, group_id=i) for i in range(count)], timeout, AGAIN) as engine:
        for seed, other in zip(order, order[1:] + order[:1], strict=True):
            seeds = dict(enumerate((seed, other, seed)[:count]))
            turn, results = 0, engine.reset(seeds, OPTIONS)
            while results:
                for i, result in results.items():
                    actions, expected = episodes[seeds[i]][turn]
                    moment = seeds[i], turn, actions, OBJECTS[i]
                    got = _values(_returned(engine, i, result, moment), moment)
                    for name in expected | got:
                        one, other_one = expected.get(name, "no such key"), got.get(name, "no such key")
                        if difference(turn, (name,), (one,), (other_one,)):
                            raise Difference(moment, name, one, other_one)
                turn += 1
                left = {i: episodes[each][turn][0] for i, each in seeds.items() if turn < len(episodes[each])}
                results = engine.play({i: Turn(actions, len(actions)) for i, actions in left.items()})


@contextmanager
def _worker(specs: Sequence[EnvSpec], timeout: float, environ: Mapping[str, str]) -> Iterator[Engine]:
    """An engine with a fresh worker that has these environment variables; whatever fails there is not tried again."""
    limits = {"step_timeout": timeout, "reset_timeout": timeout, "max_restarts": 0}
    log = logging.getLogger("envlanes.engine")
    before = dict(os.environ)
    os.environ.update(environ)
    log.disabled = True  # its warnings would repeat what is reported here
    try:
        with Engine(specs, Settings.of(use_lanes=True, max_workers=1, on_env_failure="truncate", **limits)) as engine:
            for i, built in engine.read(range(len(specs)), "reset_s").items():
                _returned(engine, i, built, (SEEDS[0], 0, (), "as it was built"))
            yield engine
    finally:
        log.disabled = False
        for name in environ:
            del os.environ[name]
        os.environ.update(before)


def _returned(engine: Engine, env_id: int, result: Any, moment: Moment) -> Any:
    """The result of a call; raises a :class:`Difference` if the environment failed."""
    why = engine.bound_to_main(env_id)  # if it, or what it returns, cannot be sent to a worker or back
    error = DivergenceError(why) if why else getattr(result, "error", result)
    if isinstance(error, Exception):
        raise Difference(moment, "result", "one", why or getattr(result, "text", error), error)
    return result


def _values(result: Any, moment: Moment) -> dict[str, Any]:
    """The values to compare by name; raises a :class:`Difference` for one that cannot be sent."""
    if not isinstance(result, TurnResult):
        return {"observation": _comparable(TEXT.digest(result))}
    values = {"observation": result.digest, "reward": result.reward, "done": result.done}
    values |= {f"info[{key!r}]": value for key, value in result.info.items()}
    values |= {"executed": result.executed, "malformed": result.malformed}
    for name, value in values.items():
        if isinstance(value, Unsendable):
            raise Difference(moment, name, "a value that can be pickled", value, value)
    return {name: _comparable(value) for name, value in values.items()}


def _comparable(value: Any) -> Any:
    """A value that is equal to another process's if the values are."""
    try:
        return packed(value)
    except NotPlain:
        return steady_repr(value)


# In the worker


class Unsendable(Exception):
    """A value that cannot be pickled was returned; the message is that of the attempt."""


class Box:
    """An environment that may be exchanged for one that loads its snapshot.

    Attributes:
        reset_s, turn_s: Seconds of its resets and turns.
    """

    def __init__(self, spec: EnvSpec) -> None:
        """Build it; in the main process, which gets what does not work in a worker, nothing is built."""
        self.spec = spec
        self.env: Any = TEXT.build(spec) if program.in_worker else None
        self.reset_s: list[float] = []
        self.turn_s: list[float] = []

    def choose(self, seed: str, given: Sequence[str]) -> tuple[tuple[str, ...], bool]:
        """The actions of a turn, and whether they are known to be valid unless an info says otherwise."""
        rng = Random(seed)
        if gives_examples(type(self.env)) and not given:
            with outer_state_kept():  # the episode is played again without asking for examples
                return (checked_example(type(self.env), self.env.example_action(rng)),), True
        known = tuple(given) or tuple((action_lookup(self.env) or {}).values())
        return tuple(rng.choices(known or TEXTS, k=rng.randint(1, 2))), bool(known)

    def reload(self) -> Any:
        """Replace it by a new one that loads what it saves; returns the new one's observation."""
        saved = Pickled.of(self.env.save())
        with outer_state_kept():  # building may draw from the global generators, and is no part of the episode
            loaded = TEXT.build(self.spec)
        loaded.load(saved.open())
        self.close()
        self.env = loaded
        return TEXT.observe(loaded)

    def close(self) -> None:
        """Close it."""
        getattr(self.env, "close", lambda: None)()


class CheckGame(RagenGame):
    """RAGEN's game on a :class:`Box`, with the same function for a turn; times resets and turns."""

    def build(self, spec: EnvSpec) -> Box:
        """Build an environment in its box."""
        return Box(spec)

    def reset(self, env: Box, seed: int | None, options: Options) -> Any:
        """Reset it; the third object is reloaded."""
        start = time.perf_counter()
        observation = TEXT.reset(env.env, seed, options)
        env.reset_s.append(time.perf_counter() - start)
        return env.reload() if env.spec.env_id == RELOADED else observation

    def play(self, env: Box, action: Turn) -> TurnResult:  # type: ignore[override]
        """Play a turn; the third object is reloaded."""
        start = time.perf_counter()
        result = play_turn(env.env, action)
        env.turn_s.append(time.perf_counter() - start)
        result = result._replace(info={key: _sendable(value) for key, value in result.info.items()})
        if env.spec.env_id != RELOADED:
            return result
        observation = env.reload()
        return result._replace(observation=observation, digest=TEXT.digest(observation))


def _sendable(value: Any) -> Any:
    try:
        Pickled.of(value).open()
    except Exception as error:
        return Unsendable(f"{type(error).__name__}: {error}")
    return value


# The command


def parser(prog: str = "python -m ragen.tools.check") -> argparse.ArgumentParser:
    """The argument parser."""
    top = CommandParser(
        prog=prog,
        description="Does an environment replay in worker processes, and what does a turn cost? Exit codes: 0 nothing "
        "to fix, 1 something must be fixed, 2 the arguments are wrong.",
        examples=(f"{prog} sokoban dim_x=8", f"{prog} http://127.0.0.1:8000"),
    )
    add = top.add_argument
    add("type", help="a registered type, package.module:Class, or the address of an OpenEnv server")
    add("settings", nargs="*", metavar="key=value", help="a key of env_config, such as dim_x=8")
    add("--turns", type=positive, default=8, metavar="N", help="turns per episode (default 8)")
    add("--actions", nargs="+", default=(), metavar="TEXT", help="actions to play")
    add("--timeout", type=float, default=30.0, metavar="SECONDS", help="time limit of a reset or turn (default 30)")
    return top


@refusing
def main(arguments: list[str] | None = None, prog: str = "python -m ragen.tools.check") -> int:
    """Run the command; returns one of the exit codes above."""
    top = parser(prog)
    options = vars(top.parse_intermixed_args(arguments))
    env, settings = options.pop("type"), options.pop("settings")
    config_class = _resolved(env)[1]
    report = check_parallel(env, read_settings(env, config_class, settings), **options)
    print(report)
    return NOTHING_TO_FIX if report.ok else FIX_FIRST


if __name__ == "__main__":
    sys.exit(main())
