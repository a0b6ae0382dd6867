"""Where every environment lives, and what is done when something fails.

        requests, by env_id                                  results, by env_id
               |                                                     ^
               v                                                     |
        +------------------------- rounds -------------------------------+
        |  1. environments that are not live are rebuilt (replay)        |
        |  2. one batch for main, one for each lane (exchange)           |
        |  3. results are kept; each failure is judged                   |
        +----------------------------------------------------------------+
               |                     |                         |
          EnvHost in main      shared lanes             quarantine lanes

An environment is *live* where its replica stands exactly at the end of its journal. It stops being live the moment a
turn is sent, and is live again once that turn is committed: whatever happens in between (a dead worker, a time-out, an
interrupt), the next use finds it not live and rebuilds it. Nothing else is remembered of a failure's circumstances.

Every call ends: each round either finishes an environment, or counts a failure against an environment or a restart
against a lane, and both counts are bounded.

What a failure leads to, with ``on_env_failure: fallback``:

    the environment raised            rebuilt in a lane of its own (in main, if it lives there or could not be built),
                                      the turn played once; raised again: truncated
    a result cannot be pickled        rebuilt in main, where it stays
    a deadline was missed             rebuilt in a quarantine lane of its own, the turn played once; again: truncated
    its worker exited, or crashed     likewise
    its worker died right after it    likewise, where the worker had no other environment to play
    its worker was killed (SIGKILL,   likewise, but up to ``max_restarts`` times: the killer may be outside
    SIGTERM)
    a deadline was missed in main     interrupted, rebuilt there, and the turn played once more; again: truncated
    a replay differs from the journal rebuilt once more in main; differs again: truncated
    its class hangs, or ends a        all its tag's environments in that lane share it; they are tried there once more,
    worker, as it loads               together; again: truncated
    worker killed at nobody's turn    restarted; after ``max_restarts`` in an episode its environments move to main
    worker ended so by itself         likewise, but what does that must not come to main: instead its environments take
                                      turns in quarantine; those that are there while it ends again are cleared and come
                                      back; if all are cleared, or there is no room, they move to main after all
    workers do not start              restarted, then moved to main, and the lane is left alone for some episodes, more
                                      each time
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any, Literal

from ragen.env.base import BaseEnv
from ragen.errors import DivergenceError, EnvError, LaneDiedError, LaneTimeoutError, RagenError, StateError
from ragen.parallel.accounts import Accounts, CallTime, LaneStats, home_name
from ragen.parallel.alarm import Deadline
from ragen.parallel.capsule import CapsuleWriter, Failure
from ragen.parallel.costs import CostMeter
from ragen.parallel.host import EnvHost, Outcome, Raised, ReplayOrder, ResetOrder, TimedOut
from ragen.parallel.journal import Divergence, EpisodeJournal
from ragen.parallel.luggage import pack_requests, pack_specs
from ragen.parallel.pool import Asker, Lane, LaneFailure, Message, WorkerPool, exchange, shared_pool
from ragen.parallel.repeats import Repeats
from ragen.parallel.residents import NOT_ADOPTED, GivenUp, Resident
from ragen.parallel.system import interrupts_held, usable_cpus
from ragen.parallel.turn import EnvSpec, Observation, TurnRequest, TurnResult

log = logging.getLogger(__name__)

OnEnvFailure = Literal["fallback", "truncate", "raise"]
Take = Callable[[Sequence[Outcome]], None]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class EngineSettings:
    """How the engine behaves; times in seconds.

    Attributes:
        step_timeout: For one turn of one environment.
        reset_timeout: For one reset, and for one replay.
        startup_timeout: For one worker to start.
        on_env_failure: What follows when an environment fails.
        max_restarts: Restarts of one lane within an episode before its environments move to main.
        start_method: ``"forkserver"``, ``"spawn"`` or ``"fork"``.
        max_workers: Most lanes, and most quarantine lanes beside them.
        capsule_dir: Folder for failure capsules, see :mod:`ragen.parallel.capsule`; None writes none.
    """

    step_timeout: float = 60.0
    reset_timeout: float = 120.0
    startup_timeout: float = 60.0
    on_env_failure: OnEnvFailure = "fallback"
    max_restarts: int = 3
    start_method: str = "forkserver"
    max_workers: int = 1
    capsule_dir: str | None = None


@dataclass
class _Rest:
    """How long a lane whose workers do not start is left alone: a number of episodes that doubles each time."""

    episodes: int = 0
    failures: int = 0

    def begin(self) -> None:
        self.failures += 1
        self.episodes = 2 ** min(self.failures + 1, 8)


class Engine:
    """Environments of one manager, at home in main or in lanes.

    Attributes:
        accounts: What was played where, and what it cost.
        bounds_main: Whether environments in main have deadlines, too, as far as that is possible; see
            :mod:`ragen.parallel.alarm`.
    """

    def __init__(self, specs: Iterable[EnvSpec], settings: EngineSettings) -> None:
        """Know the environments; nothing is built and no process is started before it is needed."""
        self.settings = settings
        self.number = next(_numbers)
        self.bounds_main = False
        self._main = EnvHost()
        self._residents = {spec.env_id: Resident(spec, spec.env_id) for spec in specs}
        self._pool: WorkerPool | None = None
        self._closed = False
        self._quarantine: set[Lane] = set()
        self._restarts: dict[Lane, int] = defaultdict(int)
        self._rests: dict[Lane, _Rest] = defaultdict(_Rest)
        self._one_by_one: set[Lane] = set()
        self._cleared: set[int] = set()
        self.accounts = Accounts()
        self._told: set[tuple[str, str]] = set()
        self._repeats = Repeats(log)
        self._capsules = CapsuleWriter(settings.capsule_dir)
        self._asked: tuple[str, Mapping[int, Any], float] = ("", {}, 0.0)

    # Homes

    def lanes(self, count: int) -> list[Lane]:
        """The first ``count`` lanes of the process's pool, their workers starting; without those at rest."""
        self._check_open()
        if self._pool is None:
            modules = {spec.env_class.__module__ for spec in self.specs()}
            preload = ["numpy", *sorted(module for module in modules if module.startswith("ragen.env."))]
            settings = self.settings
            self._pool = shared_pool(self.number, settings.start_method, preload)
        return self._pool.lanes(count, {lane for lane in self._rests if self._is_at_rest(lane)})

    @property
    def has_pool(self) -> bool:
        """Whether lanes were asked for before."""
        return self._pool is not None

    def specs(self) -> list[EnvSpec]:
        """All environments' specs, by env_id."""
        return [resident.spec for resident in self._residents.values()]

    def spec(self, env_id: int) -> EnvSpec:
        """One environment's spec."""
        return self._residents[env_id].spec

    def observation(self, env_id: int) -> Observation:
        """What the environment last showed."""
        return self._residents[env_id].observation

    def has_lane(self, env_ids: Iterable[int]) -> bool:
        """Whether one of these environments is at home in a lane."""
        return any(self._residents[env_id].home is not None for env_id in env_ids)

    def home(self, env_id: int) -> str:
        """The name of the environment's home: ``"main"``, or that of a lane."""
        return home_name(self._residents[env_id].home)

    def lives_in_lane(self, tag: str) -> bool:
        """Whether an environment of this tag is at home in a lane."""
        return any(resident.home is not None for resident in self._residents.values() if resident.spec.tag == tag)

    def rest(self) -> int:
        """Episodes until the first of the lanes whose workers do not start is tried again; 0 if there is none."""
        return min((rest.episodes for rest in self._rests.values() if rest.episodes), default=0)

    def bring_home(self, env_ids: Collection[int]) -> None:
        """Make main the home of these environments."""
        if self.has_lane(env_ids):
            self.place(dict.fromkeys(env_ids))

    def is_bound_to_main(self, env_id: int) -> bool:
        """Whether the environment turned out not to work in a worker."""
        return self._residents[env_id].main_only

    @interrupts_held()
    def place(self, homes: Mapping[int, Lane | None]) -> None:
        """Give environments their homes, None for main; one whose home changes is moved, or rebuilt when next used."""
        self._check_open()
        moved = [self._residents[env_id] for env_id, home in homes.items() if self._residents[env_id].home is not home]
        self._hand_over([r for r in moved if not r.is_replayable and r.is_live()], homes)
        moved = [resident for resident in moved if resident.home is not homes[resident.env_id]]
        self._evict(moved)
        for resident in moved:
            resident.home = resident.seat = homes[resident.env_id]
        self._close_empty_quarantine()

    def add(self, spec: EnvSpec, home: Lane | None = None) -> None:
        """Take in one more environment while others play; its first use builds it, at the home given.

        For engines whose environments come and go one by one, each for one episode (an environment service):
        :meth:`begin_episode` is for all at a time, and is not called there.

        Raises:
            StateError: There is an environment of this id, or the engine is closed.
        """
        self._check_open()
        if spec.env_id in self._residents:
            raise StateError(f"{spec.describe()} was added twice; remove it first.")
        self._shorten_rests()
        home = None if self._is_at_rest(home) else home
        self._residents[spec.env_id] = Resident(spec, spec.env_id, home, home)

    @interrupts_held()
    def remove(self, env_ids: Iterable[int]) -> None:
        """Close environments and forget them; ids that are not known are passed over.

        An episode that came through pays back one restart of its lane, so that a lane which fails now and then is not
        counted out in the long run.
        """
        leaving = [self._residents.pop(env_id) for env_id in env_ids if env_id in self._residents]
        for resident in leaving:
            if resident.seat is not None and resident.given_up is None and self._restarts[resident.seat]:
                self._restarts[resident.seat] -= 1
            if resident.in_quarantine:
                self._leave_quarantine(resident, resident.seat)
            self._cleared.discard(resident.env_id)
        self._evict(leaving)
        if not self._residents:
            self._repeats.forget()

    def begin_episode(self) -> None:
        """Forget the failures of the last episode; called before the homes of the next one are given."""
        self._restarts.clear()
        self._shorten_rests()
        self._one_by_one.clear()
        self._cleared.clear()
        self._repeats.forget()
        self.accounts.end_episode()
        for resident in self._residents.values():
            resident.failures = resident.kills = 0
            resident.given_up = resident.journal = None
            resident.live = resident.waiting = False

    def _is_at_rest(self, lane: Lane | None) -> bool:
        return lane in self._rests and self._rests[lane].episodes > 0

    def _shorten_rests(self) -> None:
        """An episode begins; lanes whose workers were started since are as good as any."""
        for lane, rest in list(self._rests.items()):
            rest.episodes = max(0, rest.episodes - 1)
            if lane.pid is not None:
                del self._rests[lane]

    # What is asked of environments

    def reset(self, orders: Sequence[ResetOrder]) -> list[Observation]:
        """Begin new episodes, and their journals.

        Returns:
            Observations in the order of ``orders``; "" for an environment that could not be reset, whose first turn
            will say why.

        Raises:
            EnvError: An environment could not be built, or failed with ``on_env_failure: raise``.
        """
        values = self._run("reset", {order.env_id: order for order in orders}, self.settings.reset_timeout)
        self._raise_if_asked(values, at_build=True)
        for order in orders:
            self._begin_journal(order, values[order.env_id])
        return [self._residents[order.env_id].observation for order in orders]

    def play(self, requests: Sequence[TurnRequest], take: Take | None = None) -> list[TurnResult | GivenUp]:
        """Play turns, which become part of the episodes by :meth:`commit`.

        Args:
            requests: The turns, at most one of an environment.
            take: Handed the outcomes of each home as they come in, while other homes are still at theirs: the place to
                commit them. All of them are in the list that is returned as well.

        Returns:
            What the turns gave, in the order of ``requests``.
        """
        start = perf_counter()
        self.accounts.begin_call()
        todo = {request[0]: request for request in requests}
        values = self._run("play", todo, self.settings.step_timeout, take)
        self.accounts.end_call(perf_counter() - start, len(requests))
        return [values[env_id] for env_id in todo]

    def commit(self, request: TurnRequest, result: TurnResult) -> None:
        """Make a played turn part of the episode."""
        resident = self._residents[request.env_id]
        if resident.journal is not None:
            resident.journal.append(request, result)
        resident.before, resident.observation = resident.observation, result.observation
        resident.live = True
        resident.failures = resident.kills = 0

    def revoke(self, request: TurnRequest) -> None:
        """Undo :meth:`commit`, if it was done: the environment stands again where it stood before the turn."""
        resident = self._residents[request.env_id]
        resident.live = False
        if resident.journal is not None and len(resident.journal.turns) > request.turn:
            del resident.journal.turns[request.turn :]
            resident.observation = resident.before

    def give_up_result(self, request: TurnRequest, given_up: GivenUp) -> TurnResult:
        """The turn of an environment that failed: nothing executed, the game over, the failure in the info."""
        resident = self._residents[request.env_id]
        info = {"env_error": given_up.text}
        return TurnResult(request.env_id, request.turn, [], False, 0, True, info, resident.observation, None)

    def call(self, env_ids: Sequence[int], name: str, *arguments: Any) -> list[Any]:
        """Call a method of environments between two turns, or read an attribute.

        Raises:
            EnvError: An environment raised, or its worker failed over it again and again.
        """
        answers = self._ask(env_ids, name, arguments)
        for answer in answers:
            if isinstance(answer, RagenError):
                raise answer
        return answers

    def _ask(self, env_ids: Sequence[int], name: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
        """What environments answer to a call; in place of an answer, the error of one that has none."""
        orders = {env_id: (env_id, name, arguments) for env_id in env_ids}
        values = self._run("call", orders, self.settings.step_timeout)
        return [self._answer(self._residents[env_id], values[env_id]) for env_id in env_ids]

    def _answer(self, resident: Resident, value: Any) -> Any:
        if isinstance(value, GivenUp):
            return value.error
        resident.live = resident.journal is not None
        if not isinstance(value, Raised):
            return value
        error = EnvError(f"{resident.describe()} raised {value.text} (while: {value.phase}).")
        error.__cause__ = value.exception()
        return error

    def rollout_info(self, env_ids: Sequence[int]) -> list[dict[str, Any]]:
        """What these environments have to say about the whole rollout; empty for those that have nothing."""
        residents = {env_id: self._residents[env_id] for env_id in env_ids}
        asked = [
            env_id
            for env_id, resident in residents.items()
            if _tells_of_rollout(resident.spec.env_class) and resident.given_up is None
        ]
        told: dict[int, dict[str, Any]] = {}
        for env_id, info in zip(asked, self._ask(asked, "rollout_info"), strict=True):
            if isinstance(info, RagenError):
                self._tell(self._residents[env_id], f"has no rollout_info: {info}")
            elif info:
                told[env_id] = info
        return [told.get(env_id, {}) for env_id in env_ids]

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this manager is closed; make a new one.")

    # Accounts

    @property
    def costs(self) -> dict[str, CostMeter]:
        """What was measured, by tag."""
        return self.accounts.costs

    def calls(self) -> list[CallTime]:
        """What calls of :meth:`play` took since this was last asked."""
        return self.accounts.calls()

    def stats(self) -> list[LaneStats]:
        """What each home has done, main first."""
        return self.accounts.stats(self._residents.values())

    @interrupts_held()
    def close(self, forgotten: bool = False) -> None:
        """Close all environments, and the workers if no other manager needs them; may be called twice.

        Args:
            forgotten: Called by the garbage collector, perhaps in the middle of another manager's exchange.
        """
        self._closed = True
        try:
            with self._deadline(self.settings.step_timeout):
                self._main.close()
        finally:
            self._leave_pool(forgotten)

    def _leave_pool(self, forgotten: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for lane in self._quarantine:
            pool.close_extra(lane)
        self._quarantine.clear()
        pool.leave(self.number, later=forgotten)

    # Rounds

    @interrupts_held()
    def _run(self, verb: str, items: Mapping[int, Any], timeout: float, take: Take | None = None) -> dict[int, Any]:
        """Get a value for every item, whatever it takes; a :class:`GivenUp` where nothing helps."""
        self._check_open()
        values: dict[int, Any] = {}

        def take_in(outcomes: Sequence[Outcome]) -> None:
            values.update([outcome[:2] for outcome in outcomes])
            if take is not None:
                take(outcomes)

        todo = items
        while todo:
            ready, missing, lost = self._by_need(todo, take_in)
            if missing:
                self._adopt(missing)
            elif lost and verb != "reset":
                self._rebuild(lost)
            else:
                self._dispatch(verb, ready, todo, timeout, take_in)
            todo = {e: items[e] for e in todo if e not in values} if len(values) < len(items) else {}
            self._make_room_in_quarantine(todo)
        self._repeats.sum_up()
        return values

    def _by_need(self, todo: Mapping[int, Any], take: Take) -> tuple[list[Resident], list[Resident], list[Resident]]:
        """Who of ``todo`` can be worked on now; those given up have their value.

        Returns:
            All of those; the ones among them that their homes do not know; and the ones that are not live.
        """
        ready, missing, lost, over = [], [], [], []
        for env_id in todo:
            resident = self._residents[env_id]
            if resident.given_up is not None:
                over.append(Outcome(env_id, resident.given_up, 0.0))
            elif not resident.waiting:
                ready.append(resident)
                if not resident.is_adopted():
                    missing.append(resident)
                elif not resident.live and resident.journal is not None:
                    lost.append(resident)
        if over:
            take(over)
        return ready, missing, lost

    def _adopt(self, residents: Sequence[Resident]) -> None:
        """Bring specs to homes that lack them; by tag, as they are pickled, so that positions in the batch agree."""
        residents = sorted(residents, key=lambda resident: resident.spec.tag)
        specs = {resident.env_id: resident.spec for resident in residents}
        self._dispatch("adopt", residents, specs, self.settings.startup_timeout)

    def _rebuild(self, residents: Sequence[Resident]) -> None:
        """Replay the journals of environments that are not live."""
        orders = {}
        for resident in residents:
            if resident.is_replayable:
                assert resident.journal is not None
                orders[resident.env_id] = ReplayOrder(resident.env_id, resident.journal)
            else:
                self._give_up(resident, "its state was lost, and it declares that it cannot be replayed", None)

        def relive(outcomes: Sequence[Outcome]) -> None:
            for outcome in outcomes:
                self._residents[outcome.env_id].live = True

        self._dispatch(
            "replay", [r for r in residents if r.env_id in orders], orders, self.settings.reset_timeout, relive
        )

    def _dispatch(
        self,
        verb: str,
        residents: Sequence[Resident],
        items: Mapping[int, Any],
        timeout: float,
        take: Take = lambda outcomes: None,
    ) -> None:
        """Send each home its batch; what succeeds is handed over as it comes in, what failed is judged in the end."""
        self._asked = verb, items, timeout
        batches: dict[Lane | None, list[Any]] = defaultdict(list)
        for resident in residents:
            home = resident.home
            if home in self._one_by_one and home in batches:
                continue
            resident.live = False
            batches[home].append(items[resident.env_id])
        asked = _Round(self, verb, batches.pop(None, []), timeout, take)
        ahead = verb == "play" and len(batches) < usable_cpus()
        jobs = {
            lane: self._message("play ahead" if ahead else verb, batch, timeout)
            for lane, batch in batches.items()
            if lane is not None
        }
        replies = exchange(jobs, asked)
        if verb == "play":
            self.accounts.count_round(asked.slack)
        for outcome in asked.failed:
            self._judge(self._residents[outcome.env_id], outcome.value)
        for lane, reply in replies.items():
            if isinstance(reply, LaneFailure):
                self._judge_lane(lane, reply, batches[lane])

    def _message(self, verb: str, batch: list[Any], timeout: float) -> Message:
        if verb == "adopt":
            blobs = pack_specs(batch)
            return Message(self.number, verb, blobs, timeout, startup_timeout=self.settings.startup_timeout)
        generation = self._residents[_env_id(batch[0])].generation
        items = pack_requests(batch) if verb.startswith("play") else batch
        return Message(self.number, verb, items, timeout, generation)

    def _deadline(self, timeout: float) -> AbstractContextManager[object]:
        return Deadline(self._main, timeout) if self.bounds_main else nullcontext()

    def _do_in_main(self, verb: str, batch: list[Any], timeout: float) -> list[Outcome]:
        if not batch:
            return []
        if verb == "adopt":
            self._main.adopt(batch)
            return [Outcome(spec.env_id, None, 0.0) for spec in batch]
        with self._deadline(timeout):
            return getattr(self._main, verb)(batch)

    def _accept(
        self, verb: str, lane: Lane | None, outcomes: Sequence[Outcome], failed: list[Outcome]
    ) -> Sequence[Outcome]:
        """Keep account of a home's outcomes; returns what succeeded, and puts what did not with the ``failed``."""
        failures = (Divergence,) if verb == "call" else (Raised, Divergence)
        accepted = [outcome for outcome in outcomes if not isinstance(outcome.value, failures)]
        if len(accepted) < len(outcomes):
            failed += [outcome for outcome in outcomes if isinstance(outcome.value, failures)]
        self.accounts.count_outcomes(verb, lane, outcomes, len(accepted))
        if verb == "adopt":
            for outcome in accepted:
                self._residents[outcome.env_id].generation = lane.generation if lane is not None else 0
        elif verb in ("play", "reset"):
            by_tag: dict[str, list[Outcome]] = defaultdict(list)
            for outcome in accepted:
                by_tag[self._residents[outcome.env_id].spec.tag].append(outcome)
            self.accounts.measure(verb, by_tag)
        return accepted

    def _make_room_in_quarantine(self, todo: Mapping[int, Any]) -> None:
        """Let those in that wait, as residents whose turn is over leave."""
        waiting = [self._residents[env_id] for env_id in todo if self._residents[env_id].waiting]
        if not waiting:
            return
        for resident in self._residents.values():
            if resident.in_quarantine and resident.env_id not in todo:
                self._leave_quarantine(resident, resident.seat)
        for resident in waiting:
            resident.waiting = False
            self._enter_quarantine(resident)

    # Judgement

    def _judge(self, resident: Resident, failure: Raised | Divergence) -> None:
        if isinstance(failure, Divergence):
            self._judge_divergence(resident, failure)
        else:
            self._judge_raised(resident, failure)

    def _judge_raised(self, resident: Resident, raised: Raised) -> None:
        if isinstance(raised, TimedOut):
            late = LaneTimeoutError(f"{resident.describe()} {raised.text} in the main process.")
            late.add_note(raised.trace)
            self._count_failure(resident, raised.text, late, lambda: self._move(resident, None))
            return
        error = EnvError(f"{resident.describe()} raised {raised.text} (while: {raised.phase}).")
        error.__cause__ = raised.exception()
        if raised.phase in ("send", "receive", "load"):
            self._tell(resident, f"cannot work in a worker, so it stays in the main process: {raised.text}")
            if resident.home is not None:
                resident.main_only = True
                self._move(resident, None)
                return
        self._count_failure(resident, raised.text, error, lambda: self._retry_raised(resident, raised), raised.phase)

    def _retry_raised(self, resident: Resident, raised: Raised) -> None:
        """Where the second try takes place: what raises first may hang next, which main could not survive."""
        if resident.home is None or raised.phase == "build":  # a worker may lack what building needs
            self._move(resident, None)
        else:
            self._enter_quarantine(resident)

    def _judge_divergence(self, resident: Resident, divergence: Divergence) -> None:
        text = f"does not replay: {divergence.describe()}"
        check = f"python -m ragen.parallel.check {resident.spec.env_type} tells more"
        story = f"is not deterministic: replayed from seed {_seed(resident)} and its actions, {text} ({check})"
        self._tell(resident, story, "is not deterministic")
        error = DivergenceError(f"{resident.describe()} {text}.")
        self._count_failure(resident, text, error, lambda: self._move(resident, None))

    def _judge_lane(self, lane: Lane, failure: LaneFailure, batch: list[Any]) -> None:
        """A lane gave no reply: find the culprit, if there is one, and count a restart."""
        if failure.kind == "stale":
            return
        self.accounts.count_restart(lane)
        culprit = self._culprit(lane, failure, batch)
        if culprit is not None:
            story = f"{failure.describe()} at {culprit.spec.describe()}.{_indented(failure.stacks)}"
            self._repeats.warn(culprit.spec, f"its worker {failure.what}", "", story)
            for resident in self._loaded_with(culprit, batch):
                self._judge_culprit(resident, failure)
        else:
            log.log(self._loudness(failure), "%s.%s", failure.describe(), _indented(failure.stacks))
            self._count_restart(lane, failure)

    def _culprit(self, lane: Lane, failure: LaneFailure, batch: list[Any]) -> Resident | None:
        """The environment that was at its turn; in quarantine there is but one."""
        if lane in self._quarantine:
            return self._residents[_env_id(batch[0])]
        if failure.index is None:
            return None
        if failure.index < len(batch):
            return self._residents[_env_id(batch[failure.index])]
        self._one_by_one.add(lane)
        return self._residents[_env_id(batch[0])] if len(batch) == 1 else None

    def _loaded_with(self, culprit: Resident, batch: list[Any]) -> list[Resident]:
        """The culprit, and those that share its failure: what loads a class loads it for all environments of a tag."""
        if self._asked[0] != "adopt":
            return [culprit]
        residents = [self._residents[_env_id(item)] for item in batch]
        return [resident for resident in residents if resident.spec.tag == culprit.spec.tag]

    def _judge_culprit(self, resident: Resident, failure: LaneFailure) -> None:
        if failure.kind == "timeout":
            text = f"timed out after {failure.seconds:g} s"
            error: RagenError = LaneTimeoutError(f"{resident.describe()} {text}: {failure.describe()}.")
        else:
            text = f"its process {failure.ending.describe()}"
            error = LaneDiedError(f"{resident.describe()}: {text} ({failure.lane}, pid {failure.ending.pid}).")
        if failure.stacks:
            error.add_note(failure.stacks)
        if failure.may_come_from_outside:
            resident.kills += 1
            if resident.kills <= self.settings.max_restarts:
                self._retry_apart(resident)
                return
        self._count_failure(resident, text, error, lambda: self._retry_apart(resident))

    def _retry_apart(self, resident: Resident) -> None:
        """The second try of a suspect is made in quarantine; that of loading, by all of a tag together."""
        resident.live = False
        if self._asked[0] != "adopt":
            self._enter_quarantine(resident)

    def _count_failure(
        self, resident: Resident, text: str, error: RagenError, retry: Callable[[], None], phase: str = ""
    ) -> None:
        """The environment's own failure: another try, or the end of its episode."""
        resident.live = False
        resident.failures += 1
        error.args = (f"{error}{self._keep_capsule(resident, text, error, phase)}",)
        if resident.failures > 1 or self.settings.on_env_failure != "fallback":
            self._give_up(resident, text, error, phase)
        else:
            what = _without_particulars(text, error, phase)
            then = "Trying once more on a rebuilt environment."
            self._repeats.warn(resident.spec, what, then, str(error), error.__cause__)
            retry()

    def _keep_capsule(self, resident: Resident, text: str, error: RagenError, phase: str) -> str:
        """Write down what is needed to play the failure again; where that is, in a sentence."""
        verb, items, timeout = self._asked
        item = items.get(resident.env_id)
        return self._capsules.note(Failure(resident.spec, resident.journal, verb, item, phase, text, error, timeout))

    def _give_up(self, resident: Resident, text: str, error: RagenError | None, phase: str = "") -> None:
        story = error or EnvError(f"{resident.describe()}: {text}.")
        resident.given_up = GivenUp(text, story, phase)
        self._repeats.warn(resident.spec, _without_particulars(text, story, phase), "Its episode is over.", str(story))
        if resident.in_quarantine:
            self._leave_quarantine(resident, resident.seat)

    def _count_restart(self, lane: Lane, failure: LaneFailure) -> None:
        self._restarts[lane] += 1
        hopeless = failure.kind == "start" and failure.seconds > 0
        if self._restarts[lane] <= self.settings.max_restarts and not hopeless:
            return
        if failure.kind == "died" and not failure.may_come_from_outside and self._take_apart(lane):
            return
        residents = [r for r in self._residents.values() if r.home is lane]
        loudness = self._loudness(failure, "given up")
        log.log(loudness, "%s; its %d environments stay in the main process.", failure.describe(), len(residents))
        if failure.kind == "start":
            self._rests[lane].begin()
            log.info("%s is tried again in %d episodes.", lane.name, self._rests[lane].episodes)
        for resident in residents:
            self._move(resident, None)

    def _take_apart(self, lane: Lane) -> bool:
        """A lane's worker ends again and again at nobody's turn: put those in quarantine that may be the reason.

        Those that were there this time, and played on, are cleared and come back. Each death thus clears someone, has
        someone followed more closely for the rest of the episode, or is the last one here.

        Returns:
            Whether there was someone left to suspect, and room.
        """
        for resident in self._residents.values():
            if resident.seat is lane and resident.in_quarantine and resident.live:
                self._leave_quarantine(resident, lane)
                self._cleared.add(resident.env_id)
        left = [r for r in self._residents.values() if r.home is lane and r.env_id not in self._cleared]
        suspects = left[: max(0, self.settings.max_workers - len(self._quarantine))]
        for resident in suspects:
            self._enter_quarantine(resident)
        return bool(suspects)

    # Moves

    def _move(self, resident: Resident, home: Lane | None) -> None:
        """Change a home within an episode; the replica is rebuilt there when next needed."""
        if resident.in_quarantine:
            self._leave_quarantine(resident, home)
        else:
            self._evict([resident])
            resident.home = home
        resident.live = False
        if home is None:
            resident.seat = None

    def _enter_quarantine(self, resident: Resident) -> None:
        """Give a suspect a lane of its own, or have it wait until one is free."""
        resident.live = False
        if resident.in_quarantine:
            return
        if len(self._quarantine) >= self.settings.max_workers or self._pool is None:
            resident.waiting = True
            return
        resident.home = self._pool.open_extra(f"quarantine of env {resident.env_id}")
        self._quarantine.add(resident.home)

    def _leave_quarantine(self, resident: Resident, home: Lane | None) -> None:
        lane = resident.home
        assert lane is not None and self._pool is not None
        self._quarantine.discard(lane)
        self._pool.close_extra(lane)
        resident.home, resident.generation, resident.live = home, NOT_ADOPTED, False

    def _close_empty_quarantine(self) -> None:
        inhabited = {resident.home for resident in self._residents.values()}
        for lane in self._quarantine - inhabited:
            assert self._pool is not None
            self._pool.close_extra(lane)
        self._quarantine &= inhabited  # type: ignore[arg-type]

    def _evict(self, residents: Iterable[Resident]) -> None:
        """Close replicas at homes that are about to be left."""
        leaving: dict[Lane, list[int]] = defaultdict(list)
        for resident in residents:
            resident.live = False
            if resident.home is None:
                with self._deadline(self.settings.step_timeout):
                    self._main.discard([resident.env_id])
            elif resident.is_adopted() and resident.home not in self._quarantine:
                leaving[resident.home].append(resident.env_id)
            resident.generation = NOT_ADOPTED
        exchange(
            {
                lane: Message(self.number, "discard", env_ids, self.settings.step_timeout, lane.generation)
                for lane, env_ids in leaving.items()
            }
        )

    def _hand_over(self, residents: Sequence[Resident], homes: Mapping[int, Lane | None]) -> None:
        """Move environments that cannot be replayed as they are; one that cannot be pickled either stays."""
        for resident in residents:
            env_id, home = resident.env_id, homes[resident.env_id]
            refusal = self._one("adopt", home, env_id, resident.spec)
            gift = refusal or self._one("give", resident.home, env_id, env_id)
            if not isinstance(gift, bytes):
                raise EnvError(
                    f"{resident.spec.describe()} can neither be replayed nor moved to another process in mid-episode "
                    f"({gift}). Switch use_multiprocessing between episodes, or list its type in sequential_env_types."
                )
            taken = self._one("take", home, env_id, (env_id, gift))
            if taken is not None:
                self._give_up(resident, f"could not be moved to another process: {taken}", None)
            resident.home = resident.seat = home
            resident.generation, resident.live = (home.generation if home is not None else 0), True

    def _one(self, verb: str, home: Lane | None, env_id: int, item: Any) -> Any:
        """Do one thing with one environment, outside of rounds; a failure comes back as text."""
        if home is None:
            value = self._do_in_main(verb, [item], self.settings.reset_timeout)[0].value
        else:
            items = pack_specs([item]) if verb == "adopt" else [item]
            times = self.settings.reset_timeout, None, self.settings.startup_timeout
            reply = exchange({home: Message(self.number, verb, items, *times)})[home]
            value = reply.describe() if isinstance(reply, LaneFailure) else reply[0].value
        return value.text if isinstance(value, Raised) else value

    # Words

    def _begin_journal(self, order: ResetOrder, value: Any) -> None:
        resident = self._residents[order.env_id]
        if isinstance(value, GivenUp):
            resident.observation = ""
            return
        resident.observation, digest = value
        resident.journal = EpisodeJournal(order.seed, order.mode, digest)
        resident.live = True
        resident.failures = resident.kills = 0

    def _raise_if_asked(self, values: Mapping[int, Any], at_build: bool = False) -> None:
        """Raise the first failure if failures are to be raised, or if an environment cannot even be built."""
        for value in values.values():
            if not isinstance(value, GivenUp):
                continue
            if (at_build and value.phase == "build") or self.settings.on_env_failure == "raise":
                raise value.error

    def _loudness(self, failure: LaneFailure, how: str = "") -> int:
        """Level of a message about a lane: that workers do not start is a warning once, and then information."""
        key = failure.what, how
        if failure.kind == "start" and key in self._told:
            return logging.INFO
        self._told.add(key)
        return logging.WARNING

    def _tell(self, resident: Resident, what: str, kind: str = "") -> None:
        """Warn once for each tag and kind of problem, which is what is said unless given."""
        key = (resident.spec.tag, kind or what)
        if key not in self._told:
            self._told.add(key)
            log.warning("%s %s", resident.spec.describe(), what)


class _Round(Asker):
    """One batch for each home: main plays its own, and takes in all outcomes.

    Attributes:
        failed: Outcomes that are failures, still to be judged.
    """

    def __init__(self, engine: Engine, verb: str, mine: list[Any], timeout: float, take: Take) -> None:
        self.failed: list[Outcome] = []
        self._engine = engine
        self._verb = verb
        self._mine = mine
        self._timeout = timeout
        self._take = take
        self._end = self._last = self._idle = 0.0
        self._lanes_end = 0.0

    def work(self) -> list[Outcome]:
        return self._engine._do_in_main(self._verb, self._mine, self._timeout)

    def take(self, lane: Lane | None, outcomes: list[Outcome]) -> None:
        start = monotonic()
        self._take(self._engine._accept(self._verb, lane, outcomes, self.failed))
        self._end = monotonic()
        if lane is not None:
            self._last = self._end - start
            self._lanes_end = max(self._lanes_end, lane.finished())

    def waited(self, seconds: float) -> None:
        self._idle += seconds

    @property
    def slack(self) -> float | None:
        """Seconds by which main was busy longer than the last lane; None if no lane took part.

        What comes in last has to be taken in after that lane's end, and does not count.
        """
        return self._end - self._last - self._lanes_end - self._idle if self._lanes_end else None


def _tells_of_rollout(env_class: type) -> bool:
    return getattr(env_class, "rollout_info", BaseEnv.rollout_info) is not BaseEnv.rollout_info


def _env_id(item: Any) -> int:
    return item[0] if isinstance(item, tuple) else item.env_id


def _seed(resident: Resident) -> int | None:
    return resident.journal.seed if resident.journal else None


def _without_particulars(text: str, error: RagenError, phase: str) -> str:
    """A failure in words that fit all environments that failed alike."""
    if isinstance(error, DivergenceError):
        return "does not replay"
    return f"{text} (while: {phase})" if phase else text


def _indented(stacks: str) -> str:
    return "".join(f"\n    {line}" for line in stacks.splitlines())
