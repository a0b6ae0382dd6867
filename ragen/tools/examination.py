"""The examination of an environment in workers of its own, with a method for each check."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median
from typing import Any

from ragen.commands import counted
from ragen.errors import ReturnError
from ragen.parallel.episode.clock import Spent
from ragen.parallel.episode.game import declares_snapshots
from ragen.parallel.episode.host import ResetOrder
from ragen.parallel.episode.journal import Change
from ragen.parallel.episode.pickled import PickledSpecs
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import Turn
from ragen.parallel.lanes.orders import Call, Order, Play, Rebuild, Reset, Unload
from ragen.parallel.stats import duration
from ragen.returned import SUCCESS_KEYS
from ragen.tools.check_report import CheckReport, EnvCosts, Finding, advise
from ragen.tools.examples import TEXTS, checked_example, gives_examples
from ragen.tools.probe import Probe
from ragen.tools.recording import (
    MANY_ACTIONS,
    NOT_SENT,
    OPTIONS,
    Difference,
    Episodes,
    Plan,
    SendableGame,
    Step,
    Took,
    Turns,
    difference_from,
    difference_of_snapshots,
    difference_of_two,
    record,
)
from ragen.tools.sandbox import Mishap, Sandbox

DEAR_RESET = 1e-3  # seconds of a reset from which members of a group load what the first one saves
SLOW_TURN, SLOW_TIMES = 0.5, 10.0  # seconds of a turn, and how many times it takes what a usual one does, to be named
DEAR_TURN = 5e-3  # seconds of a turn from which snapshots are worth having
MORE_SEEDS = 50  # that are played once, as far as the budget goes: an action that fails may be a rare one
WARM_UP, LIVES = 2, 5  # of an environment, before and while leaks are counted: the first ones fill caches
MOST_RESETS, FEW_RESETS = 100, 15  # in a batch while memory is looked at; with so few, caches may still fill
FEW_ENTRIES = 3  # of the working directory that may be new: caches, and files of other programs
SEEDS_RESET = 50  # seeds that are gone through there, so that levels that are kept by seed do not look like a leak
LEAK_PER_RESET, LEAK_PER_BATCH = 8_000, 500_000  # bytes
HERE = {"PYTHONHASHSEED": "0", "TZ": "HERE+12"}
HASH_SEEDS = range(2, 9)  # besides 0 and 1: all nine give two words of a set the same order once in about 250 times
PAUSE_S = 1.1  # after a reset, so that a clock of whole seconds moves on: episodes are played faster than it shows
DESCRIPTORS = 7  # that are taken in another process, so that the environment's own have other numbers
ELSEWHERE: tuple[tuple[dict[str, str], int, str, str], ...] = (
    (
        {},
        0,
        "another process gives a different result",
        "It depends on its process: an id(), a process id, a path, a thread, or the system's random bytes.",
    ),
    (
        {},
        DESCRIPTORS,
        "it depends on the number of a file descriptor, which depends on what else the process has open",
        "Do not use fileno() or paths such as /proc/self/fd/7 in observations and decisions.",
    ),
    (
        {"PYTHONHASHSEED": "1"},
        0,
        "it depends on hash(), which is salted in each process",
        "Sort sets before iterating over them or drawing from them; use hashlib if a hash decides something.",
    ),
    # 26 hours away: it is never the same day
    ({"TZ": "THERE-14"}, 0, "it depends on the time of day", "Do not use the time."),
)
"""What another process may have otherwise: variables, descriptors in use; what a difference says, and what to do."""
BY_HASH = ELSEWHERE[2]

ESSENTIAL = ("loads in a worker", "is built and closed", "plays")
NEEDS_REPLAYS = ("replays after other episodes", "replays elsewhere", "snapshots")

_SNAPSHOT = frozenset({"save", "load"})
_FIRST, _SECOND, _THIRD, _LEADER, _COPY, _PROBE, _OTHER = range(7)  # env_ids in a sandbox
_ALONE = (_SECOND, _THIRD, _LEADER)  # replay before a cause is named: what is drawn at random may be equal by chance
_GROUPS = {_FIRST: 0, _SECOND: 1, _THIRD: 2, _LEADER: 3, _COPY: 3}
_BUILD = Change("__doc__")  # whatever is read of an environment, it is built for it
_FROM_THE_SEED = (
    "Everything must follow from the seed that reset() receives. Usual causes of a difference: unseeded generators, "
    "the time, os.urandom, id(), process ids, threads, state that objects of the class share."
)
_TO_MAIN = "It stays in the main process. Workers need a class that they can import, and values that can be pickled."
LONG_TEXT = 100_000  # characters of an observation that hardly any context takes, as there is one in each turn
_FIXES = {
    "timeout": "It hangs, or --timeout is too short.",
    "start": "Its own error is above. A file of this folder named like a module of Python's hides that module.",
    "crash": "It must not end its process: no os._exit, no crash in native code.",
}


class Examination:
    """The examination of one environment."""

    def __init__(
        self, spec: EnvSpec, seeds: Sequence[int], turns: int, actions: Sequence[str], timeout: float, budget: float
    ) -> None:
        """Take the environment; see :func:`ragen.tools.check.check_parallel` for the arguments."""
        self._spec, self._seeds, self._turns, self._actions = spec, seeds, turns, list(actions)
        self._timeout, self._budget = timeout, budget
        self._pickled = PickledSpecs.of([spec])
        self._costs = EnvCosts()
        self._spent = Spent(), Spent()  # on the turns, and on the resets, that the costs are the means of
        self._replays = False
        self._has_examples = False
        self._is_exercised = True  # by what was played
        self._slow = ""  # a turn that took far longer than others
        self._folder: dict[str, int] = {}  # sizes by name in the working directory, before anything was played
        self._plan: dict[int, Turns] = {}
        self._first: Episodes = {}
        self._is_odd = False
        self._other_plan: dict[int, Turns] = {}  # of further seeds, played once
        self._others: Episodes = {}
        self._episode: tuple[int, Turns] = (0, [])  # seed and turns of the longest, the first of equally long ones

    def run(self, on_check: Callable[[str], object] | None = None) -> CheckReport:
        """Run all checks, each announced; if an essential one fails and nothing can be played, skip the others."""
        looks = {
            "loads in a worker": self._loads,
            "is built and closed": self._is_built_and_closed,
            "plays": self._plays,
            "global random numbers": self._draws,
            "replays in its process": self._replays_beside_another_object,
            "replays after other episodes": self._replays_on_a_used_object,
            "replays elsewhere": self._replays_elsewhere,
            "plays other seeds": self._plays_other_seeds,
            "observations": self._fits_contexts,
            "rewards": self._rewards,
            "shows what it returns": self._shows,
            "metrics": self._tells_metrics,
            "leaves its process alone": self._leaves_alone,
            "leaves nothing behind": self._leaves_nothing,
            "snapshots": self._is_saved,
            "memory stays": self._stays_small,
        }
        findings: dict[str, Finding] = {}
        with Sandbox(self._timeout, HERE) as self._worker:
            for check, look in looks.items():
                if on_check is not None:
                    on_check(check)
                findings[check] = finding = self._found(check, look)
                if check in ESSENTIAL and finding.status != "ok" and not self._plan:
                    break
        return advise(
            self._spec.env_type,
            findings,
            self._costs,
            self._is_exercised,
            getattr(self._spec.env_class, "cost_hint", None),
            self._slow,
        )

    def _found(self, check: str, look: Callable[[], Finding]) -> Finding:
        if check in NEEDS_REPLAYS and not self._replays:
            return Finding("skip", "it does not replay")
        try:
            finding = look()
        except Mishap as mishap:
            return _unlike(Difference.of_mishap(mishap), _FIXES.get(mishap.kind, ""))
        if finding.status == "fail" and check.startswith("replays") and not self._spec.is_replayable:
            return Finding("note", f"{finding.text} (replayable = False is declared: a lost episode is not rebuilt)")
        return finding

    # What is essential

    def _loads(self) -> Finding:
        try:
            self._load(self._worker)
        except Mishap as mishap:
            if mishap.kind != "exception":
                raise
            return Finding("main", f"it cannot be loaded in a worker: {mishap.text}", _TO_MAIN)
        self._folder = self._ask("working_directory")
        return Finding("ok", "its module is imported there and its configuration unpickled")

    def _is_built_and_closed(self) -> Finding:
        self._ask("build", where="while it was built")
        self._ask("close_it", where="while it was closed")
        return Finding("ok", "without an error")

    def _plays(self) -> Finding:
        """Choose and play the turns for all comparisons; turns beyond the budget are dropped."""
        given = {seed: self._action_names(seed) for seed in self._seeds}
        names = dict.fromkeys(name for of_seed in given.values() for name in of_seed)

        def played() -> tuple[Plan, Episodes, float, list[Took]]:
            plans = {seed: self._chosen(seed, of_seed) for seed, of_seed in given.items()}
            return record(self._here, _FIRST, plans, self._budget)

        unsent: Mishap | None = None
        start = time.monotonic()
        try:
            self._plan, self._first, reset_s, took = played()
        except Mishap as mishap:
            if mishap.phase not in ("send", "receive"):
                raise
            unsent = mishap
        if unsent:  # the rest is checked without the values that cannot be sent
            self._spec = replace(self._spec, game=SendableGame())
            self._worker.load(self._specs())
            start = time.monotonic()
            try:
                self._plan, self._first, reset_s, took = played()
            except Mishap as mishap:
                return Finding("main", f"what it returns {mishap.where} cannot be pickled: {mishap.text}", _TO_MAIN)
        played_s = time.monotonic() - start
        self._episode = max(self._plan.items(), key=lambda each: len(each[1]))
        actions = f"{', '.join(list(names)[:8])}{' ...' if len(names) > 8 else ''}"
        if self._has_examples:
            actions = "chosen by its example_action"
        elif not names:
            actions = f"texts: {'those given' if self._actions else 'generic ones'}"
            valid = [(step.info or {}).get("action_is_valid") for _, _, step in self._steps()]
            self._is_exercised = bool(self._actions) or any(valid)
        turns = sum(map(len, self._plan.values()))
        if unsent:
            return Finding("main", self._not_sent(), _TO_MAIN)
        text = f"{counted(len(self._plan), 'episode')}, {counted(turns, 'turn')}; its actions are {actions}"
        self._slow = _slow_turn(took)
        text += self._slow and f"; {self._slow}"
        if all(seed in self._plan and self._is_whole(seed) for seed in self._seeds):
            if names and not self._has_examples and self._spec.config is None:
                fix = "Declare config_class in the class: prompts list the actions that a configuration has."
                return Finding("note", f"{text}; prompts do not list them", fix)
            if not self._is_exercised:
                fix = "Define example_action, or use --actions: what valid actions do was not checked."
                return Finding("note", f"{text}, none of which was said to be valid", fix)
            return Finding("note" if self._slow else "ok", text)
        turn_s = (played_s - reset_s * len(self._plan)) / turns
        most = math.ceil(len(self._seeds) * (reset_s + self._turns * turn_s))
        pace = "unless further turns are as slow as that one" if self._slow else "at this pace"
        fix = (
            f"The budget of {self._budget:g} s ended this early: {pace}, --budget {most} plays all of it. Other checks "
            "take as long each."
        )
        return Finding("note", text, fix)

    def _plays_other_seeds(self) -> Finding:
        """Play further seeds once, as far as the budget goes: what fails may be rare."""
        last = max(self._seeds)
        seeds = range(last + 1, last + 1 + MORE_SEEDS)
        plans = {seed: self._chosen_there(seed) for seed in seeds}
        self._other_plan, self._others, _, took = record(self._here, _FIRST, plans, self._budget)
        text = (
            f"{counted(len(self._others), 'more episode')}, {counted(len(took), 'turn')}, played once without an error"
        )
        slow = _slow_turn(took)  # not among those whose costs are measured
        return Finding("note" if slow else "ok", text + (slow and f"; {slow}"))

    def _chosen_there(self, seed: int) -> Iterator[tuple[str, ...]]:
        """The turns of an episode whose actions are not asked for before it begins."""
        yield from self._chosen(seed, self._action_names(seed))

    def _is_whole(self, seed: int) -> bool:
        """Whether an episode was played to its end, or for as many turns as are compared."""
        return self._first[seed][-1].done or len(self._plan[seed]) == self._turns

    def _not_sent(self) -> str:
        """The keys of infos whose values cannot be sent between processes, with the first turn that returned each."""
        found: dict[str, str] = {}
        for turn, seed, step in self._steps():
            for key, value in (step.info or {}).items():
                if isinstance(value, str) and value.startswith(NOT_SENT):
                    found.setdefault(key, f"info[{key!r}], which step returns in turn {turn} of seed {seed}, {value}")
        return "; ".join(found.values())

    def _steps(self) -> Iterator[tuple[int, int, Step]]:
        """What was recorded, with turn (0: the reset) and seed."""
        for seed, steps in (self._first | self._others).items():
            for turn, step in enumerate(steps):
                yield turn, seed, step

    def _action_names(self, seed: int) -> Sequence[str]:
        """The names of the actions after a reset; empty if actions are texts."""
        return self._ask("action_names", seed, where=f"in the reset with seed {seed}")

    def _chosen(self, seed: int, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The turns of an episode, each chosen after the previous one, by the environment or from the actions."""
        rng, choices = random.Random(seed), names or self._actions or TEXTS
        has_examples = not self._actions and gives_examples(self._spec.env_class)
        for turn in range(self._turns):
            actions = tuple(rng.choices(choices, k=rng.choice((1, 1, 2))))
            if has_examples:
                change = Change("example_action", (random.Random(f"{seed}, {turn}"),))
                where = f"while it chose an action for turn {turn + 1}"
                example = self._here.ask(Call([(_FIRST, change)]), where)
                try:
                    checked_example(self._spec.env_class, example)
                except ReturnError as error:
                    raise Mishap("exception", f"ReturnError: {error}", where=where) from error
                if example:
                    self._has_examples, actions = True, (example,)
            yield actions

    # Whether it gives the same again

    def _draws(self) -> Finding:
        declared = self._spec.uses_global_rng
        draws = self._ask("draws", *self._episode)
        found_at = "; ".join(f"{' and '.join(kinds)} in {call}" for call, kinds in draws.items())
        if draws and not declared:
            fix = (
                "Use a generator of your own (random.Random(seed), numpy.random.default_rng(seed)), or declare "
                "uses_global_rng = True."
            )
            return Finding("fail", f"used ({found_at}), and the class declares uses_global_rng = False", fix)
        if draws:
            return Finding("ok", f"used ({found_at}); their state is kept separate for each environment")
        if declared:
            fix = "Declare uses_global_rng = False in the class: this saves some microseconds per call."
            return Finding("note", "left as they are, which is not declared", fix)
        return Finding("ok", "left as they are, as declared")

    def _replays_beside_another_object(self) -> Finding:
        """Replay on two objects that take turns, and with a pause."""
        if shared := self._difference_of_two():
            fix = (
                "Keep in the object (self) what reset() and step() change: a class attribute or a global of the module "
                "is shared by all environments of a process, and so is a generator in one."
            )
            finding = _unlike(shared, fix, "two objects that take turns share state: ")
            return self._if_sure(finding, shared, self._difference_of_two)
        if paused := self._difference_after_a_pause():
            fix = "It depends on the time that passes, such as that since its reset. Count turns instead."
            finding = _unlike(paused, fix, "it depends on how fast it is played: after a pause, ")
            return self._if_sure(finding, paused, self._difference_after_a_pause, replays=False)
        self._replays = True
        return Finding("ok", "two objects that take turns behave as one alone, also after a pause")

    def _if_sure(
        self,
        finding: Finding,
        difference: Difference,
        again: Callable[[], Difference | None],
        is_exact: bool = False,
        replays: bool = True,
    ) -> Finding:
        """The finding, if its cause is sure; else that the environment differs from time to time.

        Args:
            finding: A difference, with its cause.
            difference: The difference.
            again: Looks for it once more under the same condition.
            is_exact: Whether it must then be the very same.
            replays: Whether an environment with this fault replays in its process.
        """
        self._replays = replays
        alone = self._difference_alone()
        if not alone and (found := again()) and (not is_exact or found == difference):
            return finding
        self._replays = False
        return _unlike(alone or difference, _FROM_THE_SEED, "it does not always give the same: ")

    def _difference_alone(self) -> Difference | None:
        """The first difference of a few replays on new objects, each in another place of the memory."""
        for env_id in _ALONE:
            self._renew(env_id)
            if difference := self._difference(self._here, env_id, self._budget / len(_ALONE)):
                return difference
        return None

    def _difference_of_two(self) -> Difference | None:
        """The first difference on two new objects that take turns."""
        self._renew(_SECOND, _THIRD)
        return difference_of_two(self._first, self._here, (_SECOND, _THIRD), self._plan)

    def _difference_after_a_pause(self) -> Difference | None:
        """Replay to the end of the longest episode, with a pause after its reset."""
        self._renew(_SECOND)
        pause = min(PAUSE_S, self._budget)
        return difference_from(self._first, self._here, _SECOND, self._to_longest, self._budget + pause, pause)

    def _replays_on_a_used_object(self) -> Finding:
        """Replay all episodes on an object that has played, and each of the later ones on a new object."""

        def again() -> Difference | None:
            difference = self._difference(self._here, _FIRST)
            for seed, turns in [*self._plan.items()][1:]:
                if not difference:
                    self._renew(_SECOND)
                    difference = difference_from(self._first, self._here, _SECOND, {seed: turns})
            return difference

        if difference := again():
            fix = "reset() must set everything that an earlier episode may have changed."
            return self._if_sure(_unlike(difference, fix), difference, again)
        return Finding("ok", "used and new objects behave the same")

    def _replays_elsewhere(self) -> Finding:
        """Replay with all conditions changed; if results differ, with none and then with one changed, for the cause."""
        everything = {name: value for environ, *_ in ELSEWHERE for name, value in environ.items()}
        difference, conditions = self._difference_elsewhere(everything, DESCRIPTORS), [*ELSEWHERE]
        if not difference:
            same, difference, environ = self._difference_by_hash()
            if not difference:
                text = f"the same in other processes, under {same} hash seeds, with other descriptors, on another day"
                return Finding("ok", text)
            conditions[1:] = [(environ, *BY_HASH[1:])]
        environ, descriptors, what, fix = conditions[0]
        for one in [conditions[0]] * (len(_ALONE) - 1) + conditions:
            if found := self._difference_elsewhere(*one[:2]):
                difference, (environ, descriptors, what, fix) = found, one
                break
        is_exact = bool(environ or descriptors)
        return self._if_sure(
            _unlike(difference, fix, f"{what}: "),
            difference,
            lambda: self._difference_elsewhere(environ, descriptors),
            is_exact,
            replays=is_exact,
        )

    def _difference_by_hash(self) -> tuple[int, Difference | None, dict[str, str]]:
        """Under how many hash seeds the episodes go the same, and the first difference with the seed's variable.

        The budget bounds both.
        """
        same, end = 2, time.monotonic() + self._budget
        for hash_seed in HASH_SEEDS:
            environ, share = {"PYTHONHASHSEED": str(hash_seed)}, self._budget / len(HASH_SEEDS)
            if difference := self._difference_elsewhere(environ, 0, share):
                return same, difference, environ
            same += 1
            if time.monotonic() > end:
                break
        return same, None, {}

    def _difference_elsewhere(
        self, environ: Mapping[str, str], descriptors: int, seconds: float = math.inf
    ) -> Difference | None:
        """The first difference of the episodes in another process, as far as they are played in so many seconds."""
        self._is_odd = not self._is_odd
        if self._is_odd:  # a thread takes a number of process ids; otherwise those of all these might be even
            (thread := threading.Thread()).start()
            thread.join()
        with Sandbox(self._timeout, {**HERE, **environ}) as elsewhere:
            self._load(elsewhere, descriptors)
            return self._difference(elsewhere, _FIRST, seconds)

    def _is_saved(self) -> Finding:
        """Check that episodes continue equally from snapshots, if the class declares them."""
        env_class = self._spec.env_class
        if not declares_snapshots(env_class):
            if isinstance(env_class, type) and (half := _half_declared(env_class)):
                return half
            if not self._costs.turn:
                return Finding("skip", "no snapshots are declared, and costs could not be measured")
            is_dear = self._costs.reset >= DEAR_RESET or self._costs.turn >= DEAR_TURN
            fix = (
                "Declare save and load: lost environments are then loaded, and one reset serves a group."
                if is_dear
                else ""
            )
            lost = f"lost environments are replayed, at {duration(self._costs.turn)} a turn"
            text = f"no snapshots: {lost}; every member of a group is reset, in {duration(self._costs.reset)}"
            return Finding("note" if is_dear else "ok", text, fix)
        (spec,) = self._specs(_LEADER)
        count = len(self._episode[1]) - 1
        if not count:
            text = "declared, but no snapshot was compared: an episode has one turn, and none follows it"
            return Finding("note", text)

        def again() -> Difference | None:
            self._renew(_LEADER)
            return difference_of_snapshots(self._first, self._here, spec, _COPY, self._to_longest)

        if difference := again():
            fix = "save has to give all that reset and turns set, generators too; load has to put all of it back."
            finding = _unlike(difference, fix, "a snapshot is not faithful: ")
            if difference.phase == "save":
                fix = (
                    "save must not raise, and must return a value that can be pickled: no lock, open file, socket, "
                    "thread or generator object."
                )
                finding = _unlike(difference, fix, "no snapshot can be taken: it ")
            return self._if_sure(finding, difference, again)
        _, member = self._here.do(Reset([ResetOrder(i, self._episode[0], OPTIONS) for i in (_LEADER, _COPY)]))
        if member.value.is_loaded:
            self._costs = replace(self._costs, load=member.seconds)
        turns = "the first turn" if count == 1 else f"each of the first {count} turns"
        return Finding("ok", f"a snapshot after {turns} of seed {self._episode[0]} continues as the episode did")

    # What it gives, leaves and costs

    def _fits_contexts(self) -> Finding:
        """The length of the longest observation."""
        texts = [(len(step.digest), turn, seed) for turn, seed, step in self._steps() if isinstance(step.digest, str)]
        if not texts:
            return Finding("ok", "images")
        longest, turn, seed = max(texts, key=lambda each: each[0])
        where = f"in turn {turn}" if turn else "at the reset"
        text = f"the longest has {counted(longest, 'character')} {where} of seed {seed}"
        if longest < LONG_TEXT:
            return Finding("ok", text)
        fix = "It is part of the prompt: cut it to what a model's context takes, with every other turn's."
        return Finding("warn", text, fix)

    def _rewards(self) -> Finding:
        """The range of the rewards of a turn; one that is not finite has raised."""
        values = [step.reward for turn, _, step in self._steps() if turn and isinstance(step.reward, int | float)]
        most = max(len(actions) for turns in (self._plan | self._other_plan).values() for actions in turns)
        of_several = f" of up to {most} actions" if most > 1 else ""
        span = f": {min(values):.3g} to {max(values):.3g} a turn{of_several}" if values else ""
        return Finding("ok", f"finite{span}")

    def _shows(self) -> Finding:
        """Whether ``render`` shows what ``reset`` and ``step`` return."""
        if unshown := self._ask("unshown", *self._episode):
            returned = " and ".join(f"{call}() returned {what}" for call, what in unshown.items())
            fix = "The model sees only what render() returns: return the observation from it."
            return Finding("warn", f"{returned}, which render() does not show", fix)
        return Finding("ok", "render() shows what reset() and step() return")

    def _tells_metrics(self) -> Finding:
        """The metrics of the environment's infos."""
        infos = [step.info or {} for *_, step in self._steps()]
        values = {str(key): value for info in infos for key, value in info.items()}
        metrics = sorted(key for key, value in values.items() if isinstance(value, int | float))
        others = sorted(values.keys() - metrics)
        text = f"from info: {', '.join(metrics) or 'none'}"
        text += f"; not numbers, so no metrics: {', '.join(others)}" if others else ""
        if found := [key for key in SUCCESS_KEYS if key in values]:
            return Finding("ok", f"{text}; {found[0]!r} of the last turn decides success")
        fix = f"The last turn's info['success'] decides success, or {', '.join(SUCCESS_KEYS[1:])}."
        return Finding("note", f"{text}; no 'success' seen", fix)

    def _leaves_alone(self) -> Finding:
        """Check that process-wide state is unchanged."""
        if changes := self._ask("changes"):
            fix = "Other environments live in the same process: restore what is changed, or avoid changing it."
            return Finding("warn", f"it changes {'; '.join(changes)}", fix)
        return Finding(
            "ok", "working directory, sys.path, sys.argv, os.environ, where output goes, signal handlers are as before"
        )

    def _leaves_nothing(self) -> Finding:
        folders = self._live(WARM_UP)[-1:]
        before = self._ask("belongings")
        folders += self._live(LIVES)
        after, lives = self._ask("belongings"), len(folders) - 1
        self._count_rare_turns()
        left = [f"{n - before[what]} more {what}" for what, n in after.items() if n - before[what] >= max(1, lives - 1)]
        new = folders[-1].keys() - self._folder.keys()
        if len(new) > FEW_ENTRIES:
            left.append(f"{len(new)} new entries in the working directory ({_listed(new)})")
        sizes = {name: [folder.get(name, 0) for folder in folders] for name in folders[0]}
        growing = [name for name, each in sizes.items() if all(was < size for was, size in pairwise(each))]
        if growing and lives > 1:
            left.append(f"growing files in the working directory ({_listed(growing)})")
        if not left:
            return Finding("ok", f"no thread, child process, file or folder after {counted(lives, 'lifetime')}")
        text = f"after {counted(lives, 'lifetime')} (build, resets, turns, close) there are {' and '.join(left)}"
        return Finding(
            "fail", text, "close() must end, close and remove everything that was started, opened and created."
        )

    def _live(self, most: int) -> list[dict[str, int]]:
        """Build environments within the budget, and measure their costs; returns the working directory after each."""
        load = Rebuild.of([replace(self._spec, env_id=_OTHER)], [])
        build = Call([(_OTHER, _BUILD)])
        episodes = [(self._resets(seed), self._turns_of(turns)) for seed, turns in self._plan.items() if turns]
        built: list[float] = []
        resets = plays = Spent()
        folders: list[dict[str, int]] = []
        end = time.monotonic() + self._budget
        while len(folders) < most and (not folders or time.monotonic() < end):
            reset, play = episodes[len(folders) % len(episodes)]  # what turns cost may differ between seeds
            self._here.do(load)
            built.append(self._here.do(build)[0].seconds)
            resets = resets.also(self._spent_on(reset))
            plays = plays.also(self._spent_on(play))
            self._here.do(Unload([_OTHER]))
            folders.append(self._ask("working_directory"))
        turns = mean(len(steps) - 1 for steps in (self._first | self._others).values())
        busy = min(1.0, resets.also(plays).busy)
        self._costs = EnvCosts(median(built), resets.mean_s, plays.mean_s, busy, turns=turns)
        self._spent = plays, resets
        return folders

    def _count_rare_turns(self) -> None:
        """Add the turns of further seeds to the costs, as far as the budget goes: a slow one may be rare."""
        plays, resets = self._spent
        end = time.monotonic() + self._budget
        self._here.do(Rebuild.of([replace(self._spec, env_id=_OTHER)], []))
        for seed, turns in self._other_plan.items():
            if turns and time.monotonic() < end:
                self._here.do(Reset([ResetOrder(_OTHER, seed, OPTIONS)]))
                plays = plays.also(self._spent_on(self._turns_of(turns)))
        self._here.do(Unload([_OTHER]))
        self._costs = replace(self._costs, turn=plays.mean_s, busy=min(1.0, resets.also(plays).busy))

    def _spent_on(self, order: Order) -> Spent:
        self._here.do(order)
        return self._here.spent[self._spec.tag]

    def _resets(self, seed: int) -> Reset:
        return Reset([ResetOrder(_OTHER, each, OPTIONS) for each in (seed + 3, seed + 2, seed + 1, seed)])

    def _turns_of(self, turns: Turns) -> Play:
        """One action a turn, as ``ragen list`` plays."""
        return Play([(_OTHER, Turn(actions[:1], MANY_ACTIONS)) for actions in turns])

    def _stays_small(self) -> Finding:
        """Check memory over three batches of resets, of which the first may fill caches."""
        seed, affordable = self._episode[0], self._budget / (self._costs.reset or DEAR_RESET)
        count = max(1, int(min(MOST_RESETS, affordable / 3)))
        resets = Reset([ResetOrder(_FIRST, seed + index % SEEDS_RESET, OPTIONS) for index in range(count)])
        sizes = []
        for _ in range(3):
            self._here.do(resets)
            sizes.append(self._ask("resident_bytes"))
        per_reset = (sizes[2] - sizes[0]) // (2 * count)
        if min(sizes[1] - sizes[0], sizes[2] - sizes[1]) < LEAK_PER_BATCH or per_reset < LEAK_PER_RESET:
            return Finding("ok", f"no memory growth over {2 * count} resets")
        fix = "reset() must release the last episode; caches need a bound."
        text = f"each of {2 * count} resets adds about {per_reset / 1000:.3g} kB"
        return Finding("fail" if count > FEW_RESETS else "warn", text, fix)

    # Tools

    def _load(self, sandbox: Sandbox, descriptors: int = 0) -> None:
        """Load the probe and the environment, or several, into a worker."""
        sandbox.load([EnvSpec.of(Probe, self._pickled, _PROBE)])
        sandbox.ask(Call([(_PROBE, Change("take_descriptors", (descriptors,)))]))
        sandbox.load(self._specs())

    def _specs(self, *env_ids: int) -> list[EnvSpec]:
        """Those of these environments, or of all."""
        return [replace(self._spec, env_id=i, group_id=_GROUPS[i]) for i in env_ids or _GROUPS]

    @property
    def _here(self) -> Sandbox:
        """The worker, with the environment reloaded if it was lost."""
        if self._worker.lost:
            self._load(self._worker)
        return self._worker

    def _renew(self, *env_ids: int) -> None:
        """Put new objects in the place of these."""
        self._here.load(self._specs(*env_ids))

    @property
    def _to_longest(self) -> Plan:
        """The episodes up to the longest one: without those before it, a reset that forgets something differs."""
        seeds = [*self._plan]
        return {seed: self._plan[seed] for seed in seeds[: 1 + seeds.index(self._episode[0])]}

    def _difference(self, sandbox: Sandbox, env_id: int, seconds: float = math.inf) -> Difference | None:
        return difference_from(self._first, sandbox, env_id, self._plan, seconds)

    def _ask(self, name: str, *arguments: Any, where: str = "") -> Any:
        """Call the probe."""
        return self._here.ask(Call([(_PROBE, Change(name, arguments))]), where)


def _slow_turn(took: Sequence[Took]) -> str:
    """A turn that took far longer than a usual one, in words; "" if there is none."""
    slowest, usual = max(took), median(each.seconds for each in took)
    if slowest.seconds < max(SLOW_TURN, SLOW_TIMES * usual):
        return ""
    return f"{slowest.where} took {duration(slowest.seconds)}, a usual one {duration(usual)}"


def _half_declared(env_class: type) -> Finding | None:
    """What a class lacks that declares or inherits a part of ``save`` and ``load``; None if it has neither."""
    name, own = env_class.__name__, vars(env_class).keys() & _SNAPSHOT
    base = next((each for each in env_class.__mro__[1:] if vars(each).keys() & _SNAPSHOT - own), None)
    fix = f"Declare save and load in {name}"
    if own:
        (has,), (lacks,) = own, _SNAPSHOT - own
        but = f"inherits {lacks} from {base.__name__}" if base else f"no {lacks}"
        return Finding("warn", f"no snapshots: the class declares {has}, but {but}", f"{fix} itself: both or neither.")
    if base is None or not vars(base).keys() >= _SNAPSHOT:
        return None
    text = f"no snapshots: {base.__name__} declares save and load, which holds for that class alone"
    return Finding("note", text, f"{fix} too, with the state that it adds; if it adds none, they can call super().")


def _listed(names: Iterable[str]) -> str:
    """The first few names."""
    first = sorted(names)
    return f"{', '.join(first[:3])}{' ...' if len(first) > 3 else ''}"


def _unlike(difference: Difference, fix: str, lead: str = "") -> Finding:
    """The failure of a check, described after some words."""
    return Finding("fail", f"{lead}{difference.text}", fix, difference.story, cause=difference.cause)
