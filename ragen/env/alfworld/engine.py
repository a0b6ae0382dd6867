"""ALFWorld's games in TextWorld's PDDL engine, with fast resets.

TextWorld translates a problem for the planner four times per reset, which takes seconds. Here a problem is translated
once per machine, by :func:`read_problem`, and the grammar is parsed once per process. No planning takes place.
TextWorld also writes every admissible command anew in every turn. Here each is written once per game.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from ragen.cache import machine_cache
from ragen.env.alfworld.tasks import GOAL, HouseholdGame, surroundings_kept
from ragen.env.textworld.library import private_library
from ragen.extras import needs

FORMAT = 2
"""Version of the translations; part of the cache key."""


@dataclass
class Problem:
    """A translated problem, with what follows from it, shared by the environments of this process that play it.

    Attributes:
        task: The translator's task.
        sas: Its output in SAS.
        facts: The initial facts; None until the planner has been asked for them.
        infos: TextWorld's descriptions of the objects, with ALFWorld's names; None until the facts are known.
        written: The commands written so far, by template and objects.
    """

    task: Any
    sas: bytes
    facts: list[Any] | None = None
    infos: dict[str, Any] | None = None
    written: dict[Any, str] = field(default_factory=dict)


@lru_cache(maxsize=8)
def read_problem(domain: str, problem: str) -> Problem:
    """A translated problem, from the machine's cache.

    Raises:
        MissingExtraError: The planner is not installed.
    """
    text = hashlib.blake2b("\0".join((domain, problem)).encode(), digest_size=16).hexdigest()
    key = {"format": FORMAT, "fast-downward": version(), "problem": text}
    folder = machine_cache("alfworld", key, lambda folder: _translate(domain, problem, folder))
    return Problem(*pickle.loads((folder / "problem.pickle").read_bytes()))


@cache
def version() -> str:
    """The installed version of the planner; cached, since reading it takes as long as a turn."""
    return metadata.version("fast-downward-textworld")


def _translate(domain: str, problem: str, folder: Path) -> None:
    with needs("alfworld", "a game of ALFWorld"), surroundings_kept():
        import fast_downward

        task, sas = fast_downward.pddl2sas(domain, problem, verbose=False)
    (folder / "problem.pickle").write_bytes(pickle.dumps((task, sas.encode())))


@lru_cache(maxsize=2)
def read_logic(domain: str, grammar: str) -> Any:
    """TextWorld's parsed PDDL domain and grammar, shared by the games of this process.

    Raises:
        MissingExtraError: ALFWorld, TextWorld or the planner is not installed.
    """
    _story_class()
    from textworld.envs.pddl import textgen
    from textworld.envs.pddl.logic import GameLogic

    class Grammar(textgen.ContextSensitiveGrammar):  # type: ignore[misc]
        """TextWorld's grammar, which parses a text once."""

        def derive(self, start: str, context: Any) -> str:
            left, words = [symbol.copy(context) for symbol in reversed(self._parsed(start))], []
            while left:
                symbol = left.pop()
                if isinstance(symbol, textgen.TerminalSymbol):
                    words.append(str(symbol))
                else:
                    is_name = isinstance(symbol, textgen.NonterminalSymbol)
                    left += reversed(self.replace(symbol) if is_name else symbol.derive())
            return "".join(words)

        _parsed = staticmethod(lru_cache(maxsize=512)(partial(textgen._parse_and_convert, rule_name="symbols")))

    logic, own = GameLogic(domain=domain, grammar=grammar), Grammar()
    own.update(logic.grammar)
    logic.grammar = own
    return logic


_idle: list[Any] = []  # loaded planner libraries for reuse; unloading one makes the process crash at exit


@lru_cache(maxsize=1)
def _story_class() -> Any:
    """A subclass of TextWorld's PDDL environment; created on first use, since importing TextWorld takes a second."""
    with needs("alfworld", "the environment 'alfworld'"), surroundings_kept():
        import fast_downward
        from alfworld.agents.utils.misc import Demangler
        from textworld import EnvInfos
        from textworld.core import GameState
        from textworld.envs.pddl import PddlEnv
        from textworld.envs.pddl.logic import Atom, PddlState
        from textworld.logic import Proposition, Type, Variable

    class State(PddlState):  # type: ignore[misc]
        """TextWorld's state, created from a cached translation, without a second problem for the planner."""

        def __init__(self, library: Any, game: HouseholdGame, logic: Any) -> None:
            self._facts: dict[Any, set[Any]] = defaultdict(set)
            self._vars_by_name: dict[str, Any] = {}
            self._vars_by_type: dict[str, set[Any]] = defaultdict(set)
            self._var_counts: Counter[str] = Counter()
            self._logic, self.downward_lib = logic, library
            self.problem = problem = read_problem(game.domain, game.problem)
            self.task = problem.task
            self._actions = {action.name: action for action in self.task.actions}
            for kind in self.task.types:
                with suppress(ValueError):  # it exists already
                    logic.types.add(Type(kind.name, kind.supertype_names))
            self.name2type = {thing.name: thing.type_name for thing in self.task.objects}
            library.load_sas(problem.sas)
            if problem.facts is None:
                problem.facts = list(self._initial())
            self.add_facts(problem.facts)
            self.applied = 0
            changed = {effect.literal.predicate for each in self.task.actions for effect in each.effects}
            changed |= {axiom.name for axiom in self.task.axioms}
            self._fixed = {predicate.name for predicate in self.task.predicates} - changed

        def command(self, action: Any, derive: Callable[[Any], str]) -> str:
            """An action's command; derived once for the same objects, unless the state may change it."""
            key = self._key(action)
            if key is None:
                return derive(action)
            if key not in self.problem.written:
                self.problem.written[key] = derive(action)
            return self.problem.written[key]

        def _key(self, action: Any) -> tuple[str, ...] | None:
            """The template and objects that decide an action's command; None where other rules or facts do."""
            template = action.command_template
            if "#" in template or not self._fixed.issuperset(re.findall(r"(\w+)\s*\(", template)):
                return None
            words = re.findall(r"\w+", template)
            return template, *(to.name for each, to in action.mapping.items() if each.name in words)

        def _initial(self) -> Iterator[Any]:
            for fact in self.task.init:
                if hasattr(fact, "predicate") and fact.predicate != "=":
                    yield Proposition(fact.predicate, [Variable(name, self.name2type[name]) for name in fact.args])
            atoms = (Atom * self.downward_lib.get_state_size())()
            self.downward_lib.get_state(atoms)
            holding = (atom for atom in atoms if not atom.name.startswith("NegatedAtom"))  # few do
            facts = (atom.get_fact(self.name2type) for atom in holding)
            yield from (fact for fact in facts if not fact.is_negation)

        def apply(self, action: Any) -> None:
            operator = self._operators[action.id]
            effects = (Atom * operator.nb_effect_atoms)()
            self.downward_lib.apply_operator(operator.id, effects)
            for effect in effects:
                fact = effect.get_fact(self.name2type)
                self.remove_fact(fact.negate())
                self.add_fact(fact)
            self.applied += 1

    class Story(PddlEnv):  # type: ignore[misc]
        """TextWorld's environment with ALFWorld's names for objects; it can play several games in turn."""

        def __init__(self) -> None:
            super(PddlEnv, self).__init__(EnvInfos(feedback=True, admissible_commands=True, won=True))
            try:
                self.downward_lib = _idle.pop()
            except IndexError:
                self.downward_lib = private_library(fast_downward.interface.DOWNWARD_LIB_PATH)
                self.downward_lib.check_goal.restype = ctypes.c_bool

        def begin(self, game: HouseholdGame) -> str:
            """Load a game and start it; returns its introduction."""
            self._logic = read_logic(game.domain, game.grammar)
            self._pddl_state = State(self.downward_lib, game, self._logic)
            problem = self._pddl_state.problem
            if problem.infos is None:
                infos = self._get_entity_infos()
                names = Demangler(game_infos=infos, shuffle=False)
                for info in infos.values():
                    info.name = names.demangle_alfred_name(info.id)
                problem.infos = infos
            self._entity_infos = problem.infos
            self.prev_state, self._last_action, self._moves = None, None, 0
            self.state = GameState()
            self.state.feedback = ""
            words = self._derive("#intro#", {})
            self._gather_infos()
            return words.replace(GOAL, game.task)

        def _derive(self, template: str, mapping: Any) -> str:
            context = {
                "state": self._pddl_state,
                "facts": list(self._pddl_state.facts),
                "variables": {each.name: self._entity_infos[to.name] for each, to in mapping.items()},
                "mapping": mapping,
                "entity_infos": self._entity_infos,
            }
            return str(self._logic.grammar.derive(template, context))

        def _gather_infos(self) -> None:
            """Look at the state: whether the game is won, and what can be done."""
            self.state["won"], self.state["lost"] = self._pddl_state.check_goal(), False
            actions = list(self._pddl_state.all_applicable_actions())
            commands = [self._pddl_state.command(action, self._derived) for action in actions]
            self.state["_valid_actions"], self.state["_valid_commands"] = actions, commands
            self.state["admissible_commands"] = sorted(set(commands))

        def _derived(self, action: Any) -> str:
            action.command_template = self._derive(action.command_template, action.mapping)
            return str(action.format_command({key: info.name for key, info in self._entity_infos.items()}))

        @property
        def applied(self) -> int:
            """Number of operators applied in this episode."""
            return int(self._pddl_state.applied)

        def close(self) -> None:
            """Release the planner's library for reuse."""
            library, self.downward_lib = self.downward_lib, None
            if library is not None:
                library.cleanup()
                _idle.append(library)

    return Story


def story() -> Any:
    """An engine without a game.

    Raises:
        MissingExtraError: ALFWorld, TextWorld or the planner is not installed.
    """
    return _story_class()()
