"""Rollouts that overlap: while some environments' prompts are being answered, others are stepped.

In lockstep every turn waits for the slowest environment and for the slowest answer. Here the environments are split
into shards, each with a turn loop of its own in a thread (joblib drives them)::

    shard 0   step . prompt ......... step . prompt ......
    shard 1   ..... step .... prompt .......... step .....        one EnvStateManager, one engine
    shard 2   .. step . prompt .... step . prompt ........
    actor     ###########  ############  ######### #######        SharedLLMInferenceManager gathers batches

There is one manager, with one entry per environment: seeds, ids, statuses and caches are those of the ordinary rollout,
and the batch is made from them in the order of environments when all shards are through. A trajectory depends on its
seed and its replies alone, so where a reply depends on its own prompt alone, the rollouts are equal bit for bit.

What cannot overlap is played by the ordinary loop, and the log says why: the shards' episodes are taken over as they
stand, so nothing is played or asked twice. Tokenisers and the output files are used by one thread at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from ragen.errors import ConfigError, EnvError, LaneError
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.rollout.actor import failures_of, name_requests
from ragen.llm_agent.rollout.player import PromptWriter, Rollout, RolloutPlayer, Schedule
from ragen.llm_agent.rollout.schedules import play_together
from ragen.llm_agent.rollout.shared_inference import Batch, SharedLLMInferenceManager, client_of
from ragen.llm_agent.rollout.stopping import wait_for_replies
from ragen.llm_agent.rollout.timeline import Span
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.placement import spread
from ragen.parallel.stats import LaneStats
from ragen.settings import count, number

Cache = dict[str, Any]


AUTO = -1
MOST_SHARDS = 16  # threads of an automatic number of shards


class ShardedEnvManager(EnvStateManager):
    """An :class:`~ragen.llm_agent.es_manager.EnvStateManager` whose shards may be stepped by a thread each.

    Lanes are dealt out by shard, as far as there are enough, since a lane serves one thread at a time.

    Attributes:
        shards: The environment ids of each shard: every tag is spread evenly over them, and groups stay whole where
            that stays even.
    """

    def __init__(self, config: Any, mode: str = "train", jobs: int = AUTO) -> None:
        """See :class:`~ragen.llm_agent.es_manager.EnvStateManager`.

        Args:
            config: The whole configuration.
            mode: ``"train"`` or ``"val"``.
            jobs: How many shards; -1 is two for each worker, so that one of them can think while the other acts.
        """
        self._shard_of: dict[int, int] = {}
        super().__init__(config, mode, spread=self._spread)
        specs = self._engine.specs()
        count = min(MOST_SHARDS, max(2, 2 * self.max_workers)) if jobs == AUTO else jobs
        self._shard_of = spread(specs, max(1, min(count, len(specs))))
        found = sorted(set(self._shard_of.values()))
        self.shards = [[env_id for env_id, shard in self._shard_of.items() if shard == index] for index in found]

    def step_shard(self, inputs: Sequence[Mapping[str, Any]]) -> list[Cache]:
        """:meth:`step` for environments of one shard, in any thread. A shard is one thread's at a time."""
        return self.step(inputs) if inputs else []

    def thread_stats(self) -> list[LaneStats]:
        """:meth:`lane_stats` of what this thread has asked for alone."""
        return self._engine.stats(of_this_thread=True)

    def disturbed_by_threads(self) -> list[str]:
        """The tags whose environments cannot be played while other threads run.

        They draw from the process's own random numbers, and live in the main process, where others draw too.
        """
        return sorted({r.spec.tag for r in self._engine.records.values() if r.lane is None and r.spec.uses_global_rng})

    def _spread(self, specs: Sequence[EnvSpec], lanes: int) -> dict[int, int]:
        """Give the environments of each shard lanes of its own, or one that it shares with other shards."""
        shards: dict[int, list[EnvSpec]] = {}
        for spec in specs:
            shards.setdefault(self._shard_of.get(spec.env_id, 0), []).append(spec)
        homes: dict[int, int] = {}
        for place, members in enumerate(shards[shard] for shard in sorted(shards)):
            own = _lanes_of(place, len(shards), lanes)
            homes.update({env_id: own[index] for env_id, index in spread(members, len(own)).items()})
        return homes


def _lanes_of(place: int, shards: int, lanes: int) -> range:
    """The lanes of one of several shards: several of its own, or one that it shares with others."""
    if lanes <= shards:
        return range(place % lanes, place % lanes + 1)
    return range(place * lanes // shards, (place + 1) * lanes // shards)


log = logging.getLogger(__name__)

RAISED_ALIKE = (ConfigError, EnvError, LaneError)  # what the ordinary rollout would raise too
_JOBS = "agent_proxy.parallel_n_jobs"
_BATCH = "agent_proxy.parallel_max_batch_size"
_WAIT = "agent_proxy.parallel_max_wait"


class Overlapping(Schedule):
    """Plays the turns of a player's rollouts in shards.

    Attributes:
        n_jobs: How many shards; -1 for an automatic number.
        max_batch_size: The most prompts that the actor is asked at a time; None for no bound.
        max_wait: The longest that a request waits for others to share its batch, in seconds; None for the default.
        fallback_reason: Why the ordinary loop played (a part of) the last rollout; None if it did not.
    """

    def __init__(self, config: Any, n_jobs: int | None = None) -> None:
        """Read the keys; environments and threads are made when they are first needed.

        Args:
            config: The whole configuration.
            n_jobs: How many shards; None for ``agent_proxy.parallel_n_jobs``.

        Raises:
            ConfigError: A key has a value that cannot work.
        """
        self.n_jobs = read_jobs(setting(config, _JOBS, int, AUTO) if n_jobs is None else n_jobs)
        self.max_batch_size = count(config, _BATCH, None, low=1)
        self.max_wait = number(config, _WAIT, None, 0)
        self.fallback_reason: str | None = None

    def new_es_manager(self, config: Any, mode: str) -> ShardedEnvManager:
        """A manager whose environments are in shards."""
        return ShardedEnvManager(config, mode, self.n_jobs)

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`.

        ``on_turn`` is told the turn of the slowest shard. The callbacks are called from the shards' threads, one at a
        time.
        """
        rollout.player.import_tensors()  # before threads need them: importing is counted apart, and done by one
        sharded = _ShardedRollout(self, rollout)
        self.fallback_reason = sharded.overlap()
        if self.fallback_reason is not None:
            log.warning("rollouts do not overlap, the ordinary loop goes on: %s", self.fallback_reason)
        sharded.play_rest()


class ParallelRolloutManager(RolloutPlayer):
    """A player whose turns overlap, whatever the configuration says.

    Drop-in for the class of this name in RAGEN's forks, and what ``LLMAgentProxy`` is where
    ``agent_proxy.use_parallel_rollout`` is true. A context manager; ``close`` may be called twice.
    """

    def __init__(self, config: Any, actor_rollout_wg: Any, tokenizer: Any, n_jobs: int | None = None) -> None:
        """Take the parts; environments and threads are made when they are first needed.

        Args:
            config: The whole configuration.
            actor_rollout_wg: Who answers; see :class:`~ragen.llm_agent.rollout.player.RolloutPlayer`.
            tokenizer: The actor's tokenizer.
            n_jobs: How many shards; None for ``agent_proxy.parallel_n_jobs``.

        Raises:
            ConfigError: A key has a value that cannot work.
        """
        self.parallel = Overlapping(config, n_jobs)
        super().__init__(config, actor_rollout_wg, tokenizer, self.parallel)

    parallel_rollout = RolloutPlayer.rollout

    @property
    def proxy(self) -> Self:
        """Itself: the forks' manager has a proxy, this one is what a proxy is."""
        return self

    @property
    def n_jobs(self) -> int:
        """How many shards; -1 for an automatic number."""
        return self.parallel.n_jobs

    @property
    def fallback_reason(self) -> str | None:
        """Why the ordinary loop played (a part of) the last rollout; None if it did not."""
        return self.parallel.fallback_reason


class _ShardedRollout:
    """One rollout: what its shards share, and who has come how far."""

    def __init__(self, loop: Overlapping, rollout: Rollout) -> None:
        self._loop, self._rollout, self._player = loop, rollout, rollout.player
        assert isinstance(rollout.es_manager, ShardedEnvManager)
        self._es_manager, self._ctx_manager = rollout.es_manager, rollout.ctx_manager
        by_id = {cache["env_id"]: cache for cache in rollout.episodes}
        self._active = {
            shard: [by_id[env_id] for env_id in env_ids if env_id in by_id]
            for shard, env_ids in enumerate(self._es_manager.shards)
        }
        self._turns = dict.fromkeys(self._active, 0)
        self._errors: dict[int, Exception] = {}
        self._failure: Exception | None = None
        self._tokens = threading.Lock()
        self._told = threading.Lock()
        self._stopped = threading.Event()
        self._ended: dict[int, threading.Event] = {}

    # In shards

    def overlap(self) -> str | None:
        """Play the shards at the same time; why (some of) them could not be, None if all could.

        Raises:
            ConfigError, EnvError, LaneError: What the ordinary rollout would raise too.
        """
        shards = [shard for shard, active in self._active.items() if active]
        if len(shards) < 2:
            return None
        if tags := self._es_manager.disturbed_by_threads():
            return (
                f"{', '.join(tags)} draws from the process's own random numbers in the main process; give it workers "
                "(es_manager.use_multiprocessing=true), or say uses_global_rng = False if it does not."
            )
        try:
            self._drive(shards)
        except RAISED_ALIKE:
            raise
        except Exception as error:  # joblib is missing, or cannot start threads
            return f"{type(error).__name__}: {error}"
        if self._failure is not None:
            raise self._failure
        errors = sorted(self._errors.items())  # not in the order in which they came
        for _, raised in errors:
            if isinstance(raised, RAISED_ALIKE):
                raise raised
        return next((f"shard {shard} raised {type(error).__name__}: {error}" for shard, error in errors), None)

    def _drive(self, shards: Sequence[int]) -> None:
        from joblib import Parallel, delayed

        options, actor = (self._loop.max_batch_size, self._loop.max_wait), self._player.actor
        with SharedLLMInferenceManager(actor, self._player.tokenizer, *options, on_batch=self._note) as inference:
            for shard in shards:
                inference.join(shard)
            calls = [delayed(self._play_shard)(shard, inference) for shard in shards]
            try:
                Parallel(n_jobs=len(shards), backend="threading", batch_size=1, pre_dispatch="all")(calls)
            except BaseException:
                self._stopped.set()
                wait_for_replies(actor)  # else threads wait for them, however long
                inference.close()
                for ended in list(self._ended.values()):
                    ended.wait()  # no longer than the time-outs of one step
                raise

    def _play_shard(self, shard: int, inference: SharedLLMInferenceManager) -> None:
        """Play a shard's episodes to their end; what goes wrong is kept."""
        ended = self._ended[shard] = threading.Event()
        try:
            with client_of(inference, shard):
                while self._active[shard] and not self._stopped.is_set():
                    self._play_turn(shard, inference)
        except Exception as error:
            self._errors[shard] = error
        finally:
            ended.set()

    def _play_turn(self, shard: int, inference: SharedLLMInferenceManager) -> None:
        self._tell_turn(shard)
        playing, talks = self._begin_turn(shard)
        with self._tokenising(shard):
            lm_inputs = talks.get_lm_inputs(playing)
            if self._player.names_requests:
                name_requests(lm_inputs, playing)
            lm_inputs.meta_info = {**lm_inputs.meta_info, **self._rollout.meta_info}
        with self._timed(shard, "waiting"):
            lm_outputs = inference.generate_sequences(lm_inputs, client=shard)
        with self._tokenising(shard):
            inputs = talks.get_env_inputs(lm_outputs)
        failed = failures_of(lm_outputs)
        self._player.failures.update(failed)
        active = self._step(shard, [each for each in inputs if each["env_id"] not in failed])
        self._turns[shard] += 1
        self._active[shard] = active if self._turns[shard] < self._player.max_turn else []
        self._tell_over(shard, playing)

    def _begin_turn(self, shard: int) -> tuple[Sequence[Cache], PromptWriter]:
        """Who plays the shard's turn, and who writes their prompts; of trees, they branch first."""
        growth, active = self._rollout.growth, self._active[shard]
        if growth is None:
            return active, self._ctx_manager
        with (
            self._fatal(),  # whoever decides where to branch may be the caller's own function
            self._timed(shard, "environments"),
            self._player.timeline.lanes(self._es_manager.thread_stats),
        ):
            return growth.begin_turn(active)

    def _step(self, shard: int, inputs: Sequence[Mapping[str, Any]]) -> list[Cache]:
        with self._timed(shard, "environments"), self._player.timeline.lanes(self._es_manager.thread_stats):
            return self._es_manager.step_shard(inputs)

    def _timed(self, shard: int, kind: str) -> Any:
        return self._player.timeline.span(f"shard {shard}", kind)

    @contextmanager
    def _tokenising(self, shard: int) -> Iterator[None]:
        """Alone with the tokeniser."""
        with self._tokens, self._timed(shard, "tokenising"):
            yield

    def _note(self, batch: Batch) -> None:
        shards = ", ".join(map(str, sorted(set(batch.clients), key=_by_number)))
        note = f"{batch.rows} prompts of shards {shards}"
        self._player.timeline.add(Span("generator", "generation", batch.start, batch.end, note))

    def _tell_turn(self, shard: int) -> None:
        if self._rollout.on_turn is None:
            return
        with self._told, self._fatal():
            going = [turn for other, turn in self._turns.items() if self._active[other]]
            self._rollout.on_turn(min(going), sum(map(len, self._active.values())))

    def _tell_over(self, shard: int, playing: Sequence[Cache]) -> None:
        if self._rollout.on_over is None:
            return
        states = self._rollout.over(playing, self._active[shard])
        with self._tokens, self._fatal():
            self._rollout.on_over(states)

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """What the caller's own functions raise ends the rollout, as it does in lockstep."""
        try:
            yield
        except Exception as error:
            self._failure = error
            self._stopped.set()
            raise

    # In the ordinary loop

    def play_rest(self) -> None:
        """Play what the shards left, turn by turn together, in the order of environments."""
        rollout, player = self._rollout, self._player
        active: Sequence[Cache] = self._left()
        while active:
            rollout.tell_turn(min(len(cache["history"]) - 1 for cache in active), len(active))
            playing, active = play_together(rollout, active, rollout.meta_info)
            active = [cache for cache in active if len(cache["history"]) - 1 < player.max_turn]
            rollout.tell_over(playing, active)
        rollout.tell_turn(player.max_turn, 0)

    def _left(self) -> list[Cache]:
        left = [cache for active in self._active.values() for cache in active]
        return sorted(left, key=lambda cache: cache["env_id"])


def read_jobs(jobs: int) -> int:
    """The number of shards, checked.

    Raises:
        ConfigError: It is neither -1 nor at least 1.
    """
    if jobs != AUTO and jobs < 1:
        raise ConfigError(f"configuration key {_JOBS!r} is {jobs}; expected at least 1, or -1 for an automatic number.")
    return jobs


def _by_number(client: Hashable) -> int:
    return client if isinstance(client, int) else -1
