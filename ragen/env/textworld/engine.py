"""TextWorld's games in Frotz, the interpreter that Jericho contains, with fast starts.

Jericho plays a game's introduction to load it, and TextWorld reads the game's description again for every environment.
Here an introduction is only played at a reset, and a description is read once per process.

Workers are forked from a process that has imported this module, and so has done what every process must do once, such
as parsing the rules of all families of games, which takes as long as twenty turns.
"""

from __future__ import annotations

import codecs
import ctypes
import glob
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import jericho
from jericho.jericho import FROTZ_LIB_PATH
from textworld import EnvInfos, Environment
from textworld.challenges.tw_coin_collector import coin_collector
from textworld.challenges.tw_cooking import cooking
from textworld.core import GameState
from textworld.envs.wrappers.tw_inform7 import GameData, Inform7Data, StateTracking
from textworld.generator.data import KB
from textworld.generator.game import Game, GameProgression
from textworld.logic import GameLogic, State

from ragen.env.textworld.games import version
from ragen.env.textworld.library import private_library, unload

SEED = 1  # 0 and -1 would use the time of day
MOST_KNOWN = 256
"""Number of sets of facts per game whose possible actions are remembered."""

_NO_KNOWN_GAME = os.fsencode(jericho.__file__)  # a small file; Frotz compares its digest with those of known games


class Tale:
    """A compiled game, shared by the environments of this process that play it.

    Attributes:
        code: The Z-machine's program.
        game: TextWorld's description.
    """

    def __init__(self, path: str) -> None:
        """Read a compiled game."""
        self.code = Path(path).read_bytes()
        self.game = Game.load(str(Path(path).with_suffix(".json")))
        # Finding what is possible takes most of a turn, and the members of a group meet the same facts.
        self.possible = lru_cache(MOST_KNOWN)(self._possible)

    def _possible(self, facts: frozenset[Any]) -> list[Any]:
        kb = self.game.kb
        return list(State(kb.logic, facts).all_applicable_actions(kb.rules.values(), kb.types.constants_mapping))


@lru_cache(maxsize=8)
def read_tale(path: str) -> Tale:
    """A compiled game; the latest ones are kept."""
    return Tale(path)


class _Interpreter(Environment):  # type: ignore[misc]
    """The innermost of TextWorld's environments: a Z-machine with a program."""

    def __init__(self, tale: Tale) -> None:
        """Load the program; nothing runs before :meth:`reset`."""
        self._code, self._game = tale.code, tale.game  # TextWorld looks here before it reads the game's description
        self._frotz: Any = private_library(FROTZ_LIB_PATH)
        self._frotz.setup.restype = self._frotz.step.restype = ctypes.c_char_p
        asked = ("feedback", "admissible_commands", "score", "max_score", "won", "lost")
        super().__init__(EnvInfos(**dict.fromkeys(asked, True)))

    def load(self, path: str) -> None:
        """Do nothing: the machine has its program."""

    def reset(self) -> GameState:
        self._frotz.shutdown()
        return self._told(self._frotz.setup(_NO_KNOWN_GAME, SEED, self._code, len(self._code)))

    def step(self, command: str) -> tuple[GameState, None, bool]:
        return self._told(self._frotz.step(command.encode() + b"\n")), None, False

    def _send(self, command: str) -> str:
        return str(self._frotz.step(command.encode() + b"\n").decode("cp1252"))

    def _told(self, words: bytes) -> GameState:
        self.state = GameState()
        self.state.feedback = self.state.raw = words.decode("cp1252")
        return self.state

    def close(self) -> None:
        """End the program and unload the interpreter; may be called twice."""
        frotz, self._frotz = self._frotz, None
        if frotz is not None:
            frotz.shutdown()
            unload(frotz)


class _Progress(GameProgression):  # type: ignore[misc]
    """TextWorld's facts, and the possible actions."""

    def __init__(self, tale: Tale, facts: Iterable[Any]) -> None:
        self._tale, self.game = tale, tale.game
        self.quest_progressions: list[Any] = []
        self.state = State(self.game.kb.logic, facts)
        self._valid_actions = tale.possible(frozenset(self.state.facts))

    def update(self, action: Any) -> None:
        self.state.apply(action)
        self._valid_actions = self._tale.possible(frozenset(self.state.facts))


class Story(StateTracking):  # type: ignore[misc]
    """TextWorld's environment of a game."""

    def __init__(self, path: str) -> None:
        """Load a compiled game."""
        self._tale = read_tale(path)
        super().__init__(Inform7Data(GameData(_Interpreter(self._tale))))
        self.load(path)

    @property
    def facts(self) -> frozenset[Any]:
        """The facts of the game's world."""
        return frozenset(self._game_progression.state.facts)

    def reset(self) -> GameState:
        """Start the game from the beginning."""
        state = super().reset()
        self._game_progression = _Progress(self._tale, self._game.world.state.facts)
        return state


# TextWorld caches parsed rules by their text; a game contains its family's files in the order in which glob lists them.
for _folder in (KB.logic_path, cooking.KB_LOGIC_PATH, os.path.join(coin_collector.KB_PATH, "logic")):
    GameLogic.parse("".join(f"{Path(path).read_text()}\n" for path in glob.glob(os.path.join(_folder, "*.twl"))))
unload(private_library(FROTZ_LIB_PATH))
codecs.lookup("cp1252")
version()
