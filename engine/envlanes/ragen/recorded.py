"""A manager's requests and answers in a journal, from which a later process answers the same requests.

While the resets and turns are those of the journal, its answers are given and nothing is played. The first turn that is
not in it is played, in an environment that the engine has replayed up to there, as it would after a worker was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envlanes.engine import Engine
from envlanes.environments import EnvFailed
from envlanes.ragen.journal import Event, JournalFile, NotPlain, packed
from envlanes.ragen.turn import Turn, TurnResult, digest_observation

log = logging.getLogger(__name__)


class RecordedEpisodes:
    """The current episode of each environment, in a :class:`~envlanes.ragen.journal.JournalFile`."""

    def __init__(self, engine: Engine, path: Path, about: Mapping[str, Any]) -> None:
        """Read the journal of an earlier process, or begin one.

        Raises:
            ConfigError: It is of another configuration, or another process writes to it.
        """
        self._engine = engine
        self._file = JournalFile(path, about)
        self._past: dict[int, list[Event]] = {}  # its reset, then its turns; dropped where inputs are new
        self._turns: dict[int, int] = {}
        for event in self._file.events:
            past = self._past.setdefault(event["env"], [])
            past[event["turn"] :] = [event]
        self._file.events.clear()  # held by environment from here on

    def reset(self, seeds: Mapping[int, int], options: dict[str, Any]) -> dict[int, Any]:
        """:meth:`Engine.reset`; the journal's episodes are gone unless all of them began like this."""
        if self._turns:  # only the first episode of a process may be an earlier one's
            self._past.clear()
        self._turns = dict.fromkeys(seeds, 0)
        asked = {i: (seed, options) for i, seed in seeds.items()}
        if asked and all(_is_next(self._past.get(i, ()), 0, asked[i]) for i in asked):
            log.info("%d episodes go on from %s", len(asked), self._file.path)
            return self._engine.reset(seeds, options, recalled={i: self._past[i][0]["gave"] for i in asked})
        self._past.clear()
        # Before the resets: a process that is killed within them leaves no turns of older episodes behind a new
        # beginning.
        self._file.replace([])
        values = self._engine.reset(seeds, options)
        self._file.write(_event(i, 0, asked[i], value) for i, value in values.items() if type(value) is not EnvFailed)
        return values

    def play(self, turns: Mapping[int, Turn]) -> dict[int, Any]:
        """:meth:`Engine.play`."""
        known: dict[int, tuple[Turn, TurnResult]] = {}
        for env_id, turn in turns.items() if self._past else ():
            past, number = self._past.get(env_id, ()), self._turns[env_id] + 1
            if _is_next(past, number, tuple(turn)):
                fields = past[number]["gave"]
                known[env_id] = turn, TurnResult._make([*fields, digest_observation(fields[-1])])
            elif past:
                del self._past[env_id]
        if known:
            self._engine.recall(known)
        played = self._engine.play({i: turn for i, turn in turns.items() if i not in known})
        self._turns |= {i: self._turns[i] + 1 for i in turns}
        self._file.write(
            _event(i, self._turns[i], tuple(turns[i]), result[:-1])
            for i, result in played.items()
            if type(result) is not EnvFailed
        )
        return {i: known[i][1] if i in known else played[i] for i in turns}

    def close(self) -> None:
        """Unlock the journal."""
        self._file.close()


def _is_next(past: Any, number: int, asked: tuple[Any, ...]) -> bool:
    return number < len(past) and "gave" in past[number] and past[number]["asked"] == asked


def _event(env_id: int, turn: int, asked: tuple[Any, ...], gave: Any) -> Event:
    try:
        return {"env": env_id, "turn": turn, "asked": packed(asked), "gave": packed(gave)}
    except NotPlain:  # the journal ends here for this environment: a later process plays the turn
        return {"env": env_id, "turn": turn}
