"""One environment, examined in workers of its own: what ``check`` looks at, a method each."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

from ragen.parallel.episode.host import ResetOrder
from ragen.parallel.episode.journal import Change
from ragen.parallel.episode.outcome import Outcome
from ragen.parallel.episode.sealed import SealedSpecs
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import Turn
from ragen.parallel.lanes.codec import pack_reply, pack_request
from ragen.parallel.lanes.future_lane import size
from ragen.parallel.lanes.orders import Call, Order, Play, Rebuild, Reset, Unload
from ragen.tools.check_report import CheckReport, EnvCosts, Finding, advise, in_units
from ragen.tools.copies import difference_of_copies
from ragen.tools.looks import Found, metrics_found, shown_found
from ragen.tools.probe import Probe
from ragen.tools.recording import MANY_ACTIONS, OPTIONS, Recording, Turns, record, within
from ragen.tools.sandbox import Mishap, Sandbox

TEXT_ACTIONS = ("1", "a", "(1 + 2) * 3", "search[red shoes]", "I do not know.", "")
DEAR_RESET = 1e-3  # seconds of a reset from which it is worth while to copy the members of a group
WARM_UP, LIVES = 2, 5  # of an environment, before and while leaks are counted: the first ones fill caches
MOST_RESETS, FEW_RESETS = 300, 30  # while memory is looked at; with so few, what grows may be caches that fill
LEAK_PER_RESET, LEAK_IN_HALF = 8_000, 500_000  # bytes
HERE = {"PYTHONHASHSEED": "0", "TZ": "HERE+12"}
ANOTHER_HASH, ANOTHER_DAY = {"PYTHONHASHSEED": "1"}, {"TZ": "THERE-14"}  # 26 hours away: it is never the same day

ESSENTIAL = ("loads in a worker", "is built", "is closed", "plays")

_FIRST, _SECOND, _LEADER, _COPY, _PROBE, _OTHER = range(6)  # env_ids in a sandbox
_GROUPS = {_FIRST: 0, _SECOND: 1, _LEADER: 2, _COPY: 2}
_MISHAPS = {
    "timeout": ("hangs", "It hangs, or --timeout is too short for it."),
    "crash": ("ends its process", "Its process must survive it: no os._exit, no crash in native code."),
    "exception": ("raises", ""),
}


class _Failed(Exception):
    """The environment did not come through what was done to it."""

    def __init__(self, mishap: Mishap, where: str) -> None:
        super().__init__(mishap)
        self.mishap, self.where = mishap, where


class Examination:
    """One environment being looked at."""

    def __init__(
        self, spec: EnvSpec, seeds: Sequence[int], turns: int, actions: Sequence[str], timeout: float, budget: float
    ) -> None:
        """Look at this environment; see :func:`ragen.tools.check.check_parallel` for the arguments."""
        self._spec, self._seeds, self._turns, self._actions = spec, seeds, turns, list(actions)
        self._timeout, self._budget = timeout, budget
        self._sealed = SealedSpecs.of([spec])
        self._costs = EnvCosts()
        self._bound_to_main, self._replays = "", False
        self._findings: dict[str, Finding] = {}
        self._plan: dict[int, Turns] = {}
        self._eldest: dict[str, Sandbox] = {}

    def run(self) -> CheckReport:
        """Look at everything; if one of the first looks fails, there is no point in the others."""
        looks = {
            "loads in a worker": self._loads,
            "is built": self._is_built,
            "is closed": self._is_closed,
            "plays": self._plays,
            "global random numbers": self._draws,
            "replays in its process": self._replays_on_a_second_object,
            "replays after other episodes": self._replays_on_the_first_object,
            "replays elsewhere": self._replays_elsewhere,
            "shows what it returns": lambda: shown_found(self._ask("unshown", *self._episode)),
            "metrics": lambda: metrics_found(self._first),
            "leaves its process alone": self._leaves_alone,
            "leaves nothing behind": self._leaves_nothing,
            "group resets": self._is_copied,
            "memory stays": self._stays_small,
        }
        with ExitStack() as self._sandboxes:
            self._worker = self._sandbox(HERE)
            for check, look in looks.items():
                self._findings[check] = finding = self._found(check, look)
                if check in ESSENTIAL and finding.status != "ok":
                    break
        findings = tuple(self._findings.values())
        return advise(self._spec.env_type, findings, self._costs, self._turns, self._bound_to_main)

    def _found(self, check: str, look: Callable[[], Found]) -> Finding:
        try:
            status, text, fix = look()
        except _Failed as failed:
            what, fix = _MISHAPS.get(failed.mishap.kind, (failed.mishap.kind, ""))
            text = f"{what} {failed.where}".strip()
            return Finding(check, "fail", f"{text}: {failed.mishap.text}", fix, failed.mishap.story)
        if status == "fail" and check.startswith("replays") and not self._spec.is_replayable:
            return Finding(check, "note", f"{text} (replayable = False is declared: a lost episode is not rebuilt)")
        return Finding(check, status, text, fix)

    # What is essential

    def _loads(self) -> Found:
        mishap = self._load(self._worker)
        if mishap is None:
            return "ok", "its module is imported there and its configuration unpickled", ""
        if mishap.kind != "exception":
            raise _Failed(mishap, "while it was loaded")
        return self._bind_to_main(f"it cannot be loaded in a worker: {mishap.text}")

    def _is_built(self) -> Found:
        """Built; then it is chosen what to play, the same for every comparison."""
        self._ask("build", where="while it was built")
        known: dict[str, None] = {}
        for seed in self._seeds:
            names = self._here.call(_PROBE, "action_names", seed)
            is_reset = not isinstance(names, Mishap)
            known.update(dict.fromkeys(names if is_reset else ()))
            rng, choices = random.Random(seed), (names if is_reset else ()) or self._actions or TEXT_ACTIONS
            self._plan[seed] = [tuple(rng.choices(choices, k=rng.choice((1, 1, 2)))) for _ in range(self._turns)]
            if not is_reset:  # playing it will tell
                break
        if known:
            return "ok", f"its actions are {', '.join(list(known)[:8])}{' ...' if len(known) > 8 else ''}", ""
        played = "those given" if self._actions else "generic ones are played, --actions gives better"
        return "ok", f"its actions are texts: {played}", ""

    def _is_closed(self) -> Found:
        self._ask("build", where="while it was built")
        self._ask("close_it", where="while it was closed")
        return "ok", "without an error", ""

    def _plays(self) -> Found:
        """Play the episodes once; what takes too long is cut from the plan."""
        self._first = first = self._record(self._here, _FIRST, self._budget)
        if first.mishap is not None and first.mishap.phase in ("send", "receive"):
            return self._bind_to_main(f"what it gives in {first.where} cannot be pickled: {first.mishap.text}")
        if first.mishap is not None:
            raise _Failed(first.mishap, f"in {first.where}")
        self._plan = {seed: self._plan[seed][: len(steps) - 1] for seed, steps in first.episodes.items()}
        self._episode = next(iter(self._plan.items()))
        return "ok", f"{len(self._plan)} episodes, {sum(map(len, self._plan.values()))} turns", ""

    def _bind_to_main(self, reason: str) -> Found:
        self._bound_to_main = reason
        return "fail", reason, "Keep it in the main process, or make it picklable."

    # Whether it gives the same again

    def _draws(self) -> Found:
        declared = self._spec.uses_global_rng
        draws = self._ask("draws", *self._episode)
        told = "; ".join(f"{' and '.join(kinds)} in {call}" for call, kinds in draws.items())
        if draws and not declared:
            fix = "Use a generator of your own (random.Random(seed), numpy.random.default_rng(seed)), or declare True."
            return "fail", f"used ({told}), and the class declares uses_global_rng = False", fix
        if draws:
            return "ok", f"used ({told}); their state is kept apart for each environment", ""
        if declared:
            fix = "Declare uses_global_rng = False in the class: that saves some microseconds a call."
            return "note", "not used, and not declared", fix
        return "ok", "not used, as declared", ""

    def _replays_on_a_second_object(self) -> Found:
        if difference := self._first.difference(self._record(self._here, _SECOND)):
            fix = (
                "All has to follow from the seed that reset() is given. What does not: the time, os.urandom, unseeded "
                "generators, id(), threads, what objects of the class share."
            )
            return "fail", difference, fix
        self._replays = True
        return "ok", "a second object gives the same", ""

    def _replays_on_the_first_object(self) -> Found:
        if not self._replays:
            return "skip", "it does not even replay on a fresh object", ""
        if difference := self._first.difference(self._record(self._here, _FIRST)):
            return "fail", difference, "reset() has to set everything that an earlier episode may have changed."
        return "ok", "an object that has played before gives the same", ""

    def _replays_elsewhere(self) -> Found:
        if not self._replays:
            return "skip", "it does not even replay in one process", ""
        if difference := self._difference_under({}):
            fix = "It depends on its process: an id(), a process id, a path, a thread, or the system's random bytes."
            return "fail", f"another process gives something else: {difference}", fix
        if difference := self._difference_under(ANOTHER_HASH):
            fix = "Sort sets before they are gone through or drawn from; take hashlib where a hash decides something."
            return "fail", f"it depends on hash(), which each process salts: {difference}", fix
        if difference := self._difference_under(ANOTHER_DAY):
            return "fail", f"it depends on the time of day: {difference}", "Leave time out of it."
        return "ok", "the same in another process, with another PYTHONHASHSEED, and on another day by local time", ""

    def _difference_under(self, environ: Mapping[str, str]) -> str:
        """What another process with these variables gives that differs."""
        sandbox = self._sandbox({**HERE, **environ})
        if mishap := self._load(sandbox):
            return f"{mishap.kind} while it was loaded: {mishap.text}"
        return self._first.difference(self._record(sandbox, _FIRST))

    def _is_copied(self) -> Found:
        """Members of a group are copied where the class declares how, and nowhere else: that has to be like a reset."""
        declared = getattr(self._spec.env_class, "copy_from", None)
        if declared is None or getattr(declared, "__module__", "") == "ragen.env.base":
            reset = self._costs.reset or 0.0
            fix = "Declare copy_from: one reset then serves a whole group." if reset >= DEAR_RESET else ""
            text = f"no copy_from: every member of a group is reset, in {in_units(reset, 's')}"
            return "note" if fix else "ok", text, fix
        if not self._replays:
            return "skip", "it does not replay", ""
        for members in ([_LEADER, _COPY], [_COPY, _LEADER]):
            for recording in record(self._here, members, self._plan):
                if difference := self._first.difference(recording):
                    fix = "copy_from must copy all that reset sets, and share nothing that changes (generators, lists)."
                    return "fail", f"a copy is not like a reset: {difference}", fix
        if not self._ask("copies", self._episode[0]):
            return "note", "copy_from gives False: every member of a group is reset", "True says that it has copied."
        pair, copies_midway = (_LEADER, _COPY), self._spec.copies_midway
        if copies_midway and (told := difference_of_copies(self._here, *pair, self._first, self._plan)):
            return "fail", f"copies_midway = True, but {told}", "copy_from must copy all that turns change, too."
        return "ok", "copy_from gives what a reset gives, and nothing is shared", ""

    # What it gives, leaves and costs

    def _leaves_alone(self) -> Found:
        """What all environments of a worker share, and the main process too."""
        if changes := self._ask("changes"):
            fix = "Other environments live in the same process: put back what is changed, or do without."
            return "warn", f"it changes {'; '.join(changes)}", fix
        return "ok", "working directory, sys.path, os.environ, signal handlers are as before", ""

    def _leaves_nothing(self) -> Found:
        self._live(WARM_UP)
        before = self._ask("belongings")
        lives = self._live(LIVES)
        after = self._ask("belongings")
        left = [f"{n - before[what]} {what}" for what, n in after.items() if n - before[what] >= max(1, lives - 1)]
        if not left:
            return "ok", f"no thread, child process or open file after {lives} lives", ""
        text = f"after {lives} lives (build, resets, turns, close) there are {' and '.join(left)} more"
        return "fail", text, "close() has to end and close what the others have started and opened."

    def _live(self, count: int) -> int:
        """Let environments live as long as there is time, and count what that costs; how many there were."""
        seed, turns = self._episode
        load = Rebuild.of([replace(self._spec, env_id=_OTHER)], [])
        build = Call([(_OTHER, Change("__doc__"))])  # reading anything builds it
        reset = Reset([ResetOrder(_OTHER, each, OPTIONS) for each in (seed + 3, seed + 2, seed + 1, seed)])
        play = Play([(_OTHER, Turn(actions, MANY_ACTIONS)) for actions in turns])
        given: dict[Order, list[list[Outcome]]] = defaultdict(list)
        for _ in within(self._budget, count):
            for order in (load, build, reset, play, Unload([_OTHER])):
                given[order].append(self._do(order))

        def seconds(order: Order, name: str = "seconds") -> list[float]:
            """Of all but the first of a batch, which finds caches colder than among many environments."""
            return [getattr(each, name) for outcomes in given[order] for each in outcomes[1:] or outcomes]

        self._costs = EnvCosts(
            build=median(seconds(build)),
            reset=median(seconds(reset)),
            turn=median(seconds(play)),
            busy=1.0 - sum(seconds(play, "waited")) / sum(seconds(play)),
            config=size(pack_request(0, 0, load)),
            request=size(pack_request(0, 0, play)) // len(play),
            reply=size(pack_reply(0, given[play][0])) // len(play),
        )
        return len(given[build])

    def _stays_small(self) -> Found:
        """Memory over many resets of one environment."""
        seed, sizes = self._episode[0], [self._ask("resident_bytes")]
        at_once = 10 if (self._costs.reset or 1.0) < 0.01 else 1
        for number in within(self._budget, MOST_RESETS // at_once):
            seeds = [seed + (number * at_once + index) % 50 for index in range(at_once)]
            self._do(Reset([ResetOrder(_FIRST, each, OPTIONS) for each in seeds]))
            sizes += [self._ask("resident_bytes")] * at_once
        start = 50 if len(sizes) > 100 else len(sizes) // 3
        middle, resets = (start + len(sizes) - 1) // 2, len(sizes) - 1 - start
        in_half = min(sizes[middle] - sizes[start], sizes[-1] - sizes[middle])
        per_reset = (sizes[-1] - sizes[start]) // max(1, resets)
        if in_half < LEAK_IN_HALF or per_reset < LEAK_PER_RESET:
            return "ok", f"no growth over {resets} resets", ""
        fix = "reset() has to let go of the last episode; caches need a bound."
        text = f"each of {resets} resets adds about {in_units(per_reset, 'B')}"
        return "fail" if resets >= FEW_RESETS else "warn", text, fix

    # Tools

    def _sandbox(self, environ: Mapping[str, str]) -> Sandbox:
        """A fresh worker with these environment variables."""
        eldest = self._eldest.get(str(environ))
        sandbox = Sandbox(self._timeout, environ, eldest)
        self._eldest.setdefault(str(environ), sandbox)
        return self._sandboxes.enter_context(sandbox)

    def _load(self, sandbox: Sandbox) -> Mishap | None:
        """Bring the probe and the environment (several, for comparing) into a worker."""
        mishap = sandbox.load([EnvSpec.of(Probe, self._sealed, _PROBE)])
        if mishap is None and isinstance(mishap := sandbox.call(_PROBE, "prepare"), Mishap):
            return mishap
        return sandbox.load([replace(self._spec, env_id=i, group_id=g) for i, g in _GROUPS.items()])

    @property
    def _here(self) -> Sandbox:
        """The worker, with the environment in it again if it was lost."""
        if self._worker.lost:
            self._load(self._worker)
        return self._worker

    def _record(self, sandbox: Sandbox, env_id: int, budget: float = float("inf")) -> Recording:
        """Play the planned episodes with one environment."""
        return record(sandbox, [env_id], self._plan, budget)[0]

    def _ask(self, name: str, *arguments: Any, where: str = "") -> Any:
        """Ask the probe."""
        return self._do(Call([(_PROBE, Change(name, arguments))]), where)[0].value

    def _do(self, order: Order, where: str = "") -> list[Outcome]:
        outcomes = self._here.do(order)
        for outcome in outcomes:
            if isinstance(outcome.value, Mishap):
                raise _Failed(outcome.value, where or f"while: {order.phase}")
        return outcomes
