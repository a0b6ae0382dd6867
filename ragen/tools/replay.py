"""``ragen play [TYPE] --replay FILE``: play a crash report to its failure, in a worker, or with ``--pdb`` here.

A report may be anybody's, and is data: reading it runs nothing. Played is an environment that is installed here, or
that the user names; its configuration is of the class that the environment declares, and names files only in folders
that the user names.

Exit codes: 0, it did not happen again; 1, it did; 2, the report cannot be replayed here; 3, something else happened:
another failure, other results than recorded, or the debugger was left.
"""

from __future__ import annotations

import dataclasses
import os
import pdb
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from envlanes import Engine, EnvFailed, EnvSpec, Settings
from envlanes.episode.game import Game
from envlanes.episode.global_rng import EnvRng
from envlanes.episode.journal import Change, difference
from envlanes.interrupts import let_signals_pass
from envlanes.ragen.journal import Event, read_journal
from envlanes.ragen.turn import TEXT, Turn
from ragen.env.registry import known_names, resolve_env
from ragen.errors import CrashReportError, in_short
from ragen.output import printable
from ragen.tools.crash_report import kind_of, versions

AS_RECORDED, AGAIN, DIFFERENT = 0, 1, 3
START_S = 60.0  # for a worker and the environment's first reset, which may import much


def replay(path: Path, env_type: str | None = None, folders: Sequence[str] = (), debug: bool = False) -> int:
    """Play a report's episode, and print each turn and what became of it.

    Args:
        path: The report.
        env_type: The type of its environment; needed unless that is installed.
        folders: Folders in which the configuration may name files.
        debug: Play in this process, and open the debugger at the failure.

    Returns:
        The exit code.

    Raises:
        CrashReportError: It cannot be replayed here.
    """
    try:
        about, events = read_journal(path)
        failed = events[-1]["failed"]
        recorded = {name: str(failed[name]) for name in ("kind", "what", "phase", "story")}
        requests = [_request(event) for event in events]
        timeout, settings, before = max(0.1, float(failed["timeout"])), dict(about["settings"]), dict(about["versions"])
        spec = _spec(about, env_type, [os.path.realpath(each) for each in folders])
    except Exception as error:  # of a damaged report, or of the module that was imported
        raise CrashReportError(f"{str(path)!r} cannot be replayed: {error}") from error
    print(printable(f"{spec.env_type} (tag {spec.tag}), {about.get('written')}: {recorded['what']}"))
    for name, now in versions().items():
        if (then := before.get(name)) != now:
            print(printable(f"recorded with {name} {then}, now {now}"))
    stage: _Worker | _Here = _Here(spec, recorded["kind"]) if debug else _Worker(spec, timeout)
    with stage:
        code, text = _played(stage, spec.game, settings, list(zip(events, requests, strict=True)), recorded)
    print(printable(f"\n{text}"))
    return code


def _request(event: Event) -> Any:
    """The request of an event: ``(seed, options)``, a turn, or a change."""
    asked, turn = event["call"] if "call" in event else event["asked"], int(event["turn"])
    if isinstance(asked, dict):
        raise CrashReportError(f"what was asked at turn {turn} could not be stored: {asked['lost']}.")
    if "call" in event:
        name, arguments, keywords, is_set = asked
        if not isinstance(name, str) or "__" in name:
            raise CrashReportError(f"it has a call of {in_short(name)}, which no engine records.")
        return Change(name, tuple(arguments), dict(keywords), bool(is_set))
    if turn == 0:
        seed, options = asked
        if seed is None:
            raise CrashReportError("its episode went on from the one before, without a seed.")
        return int(seed), dict(options or {})
    actions, actions_left = asked
    return Turn(tuple(map(str, actions)), int(actions_left))


class _Mishap(Exception):
    """The environment failed; ``kind`` and text as in a report."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Worker:
    """The environment in a worker of its own, whose hang or crash is reported like any failure."""

    def __init__(self, spec: EnvSpec, timeout: float) -> None:
        settings = Settings(use_lanes=True, max_workers=1, max_restarts=0, on_env_failure="truncate")
        settings = dataclasses.replace(settings, step_timeout=timeout, reset_timeout=max(timeout, START_S))
        self._engine = Engine([spec], settings)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def ask(self, request: Any, is_last: bool = False) -> Any:
        """The result of a request.

        Raises:
            _Mishap: The environment failed.
        """
        if isinstance(request, Change):
            value = self._engine.change({0: request})[0]
        elif isinstance(request, Turn):
            value = self._engine.play({0: request})[0]
        else:
            value = self._engine.reset({0: request[0]}, request[1])[0]
        if isinstance(value, EnvFailed):
            raise _Mishap(kind_of(value.error), value.text)
        if isinstance(value, Exception):
            raise _Mishap("exception", str(value))
        return value


class _Here:
    """The environment in this process, with a debugger for its failure."""

    def __init__(self, spec: EnvSpec, kind: str) -> None:
        self._spec, self._stops = spec, kind in ("timeout", "crash")
        self._rng = EnvRng(0)
        self._env: Any = None

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()

    def ask(self, request: Any, is_last: bool = False) -> Any:
        """See :class:`_Worker`; the request that hung or crashed begins in the debugger."""
        game = self._spec.game
        run: Callable[..., Any] = pdb.Pdb().runcall if is_last and self._stops else lambda call, *given: call(*given)
        try:
            with self._rng.in_place():
                self._env = game.build(self._spec) if self._env is None else self._env
            if not isinstance(request, Change | Turn):
                self._rng.seed(request[0])
            with self._rng.in_place():
                if isinstance(request, Change):
                    return request.apply(self._env)
                if isinstance(request, Turn):
                    return run(game.play, self._env, request)
                return run(game.reset, self._env, *request)
        except BaseException as error:
            let_signals_pass(error)
            traceback.print_exc()
            pdb.post_mortem(error.__traceback__)
            raise _Mishap("exception", f"{type(error).__name__}: {error}") from None


def _played(
    stage: _Worker | _Here,
    game: Game,
    settings: Mapping[str, Any],
    requests: Sequence[tuple[Event, Any]],
    was: Mapping[str, str],
) -> tuple[int, str]:
    """Play the episode; the exit code, and what it came to in words."""
    differences, event, where = list[str](), Event(), "as it was built"
    try:
        for name, value in settings.items():
            stage.ask(Change(str(name), (value,), is_set=True))
        for event, request in requests:
            where = f"at turn {event['turn']}" if event["turn"] else "at the reset"
            print(printable(f"\n{where}: {in_short(request, 400)}"))
            result = stage.ask(request, "failed" in event)
            if isinstance(request, Change):
                continue
            is_turn = isinstance(request, Turn)
            digest = game.digest(result.observation if is_turn else result)
            print(printable(f"    {digest}".replace("\n", "\n    ")))
            names, got = (game.recorded, game.record(result)) if is_turn else (("digest",), (digest,))
            gave = tuple(event["gave"]) if is_turn else (event["gave"],)
            if "failed" not in event and (found := difference(event["turn"] - 1, names, gave, got)):
                differences.append(found.describe())
                print(printable(f"  DIFFERS: {found.describe()}"))
    except _Mishap as mishap:
        told = f"{where}: {mishap}"
        is_there = "failed" in event or was["phase"] in ("replay", "build")
        is_alike = mishap.kind != "exception" or was["what"].partition(":")[0] == str(mishap).partition(":")[0]
        if is_there and is_alike and was["kind"] == mishap.kind:
            return AGAIN, f"It happened again, {told}."
        return DIFFERENT, f"Another failure happened {told} ({mishap.kind}). Recorded was {was['kind']}: {was['what']}."
    if differences:
        code = AGAIN if was["kind"] == "divergence" else DIFFERENT
        return code, f"It did not fail, and went otherwise: {'; '.join(differences)}."
    return AS_RECORDED, "The failure did not recur: everything went as recorded."


# Checks of a report


def _spec(about: Mapping[str, Any], env_type: str | None, folders: Sequence[str]) -> EnvSpec:
    """The environment: of a type that is installed here, or that the user has named.

    Raises:
        CrashReportError: It is of another type, or cannot be configured here.
    """
    name, config = env_type or str(about["env_type"]), about["config"]
    if env_type is None and name not in known_names():
        raise CrashReportError(f"its environment {name!r} is not installed; name it: ragen play TYPE --replay FILE.")
    if isinstance(config, dict) and "lost" in config:
        raise CrashReportError(f"its configuration could not be stored: {config['lost']}.")
    _check_files([config, about["settings"]], folders)
    env_class, config_class = resolve_env(name)
    if config_class is not None and config is not None:
        config = config_class(**config)
    return EnvSpec(0, 0, str(about["tag"]), name, TEXT, env_class, config)


def _check_files(values: Any, folders: Sequence[str]) -> None:
    """Refuse files that the configuration names, which the environment may run, outside of the folders.

    Raises:
        CrashReportError: There is such a file.
    """
    for text in _texts(values):
        path = os.path.realpath(os.path.expanduser(text.replace("\0", "").removeprefix("file://")))
        if text and os.path.exists(path) and not any(Path(path).is_relative_to(each) for each in folders):
            folder = path if os.path.isdir(path) else os.path.dirname(path)
            raise CrashReportError(
                f"its configuration names {text!r}, which its environment may run. If you trust what is there: "
                f"--path {shlex.quote(folder)}."
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        yield from chain.from_iterable(map(_texts, value))
