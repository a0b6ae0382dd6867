"""Sub-environments in an engine, and when each of them begins its next episode.

    asked: indices, actions -> turns for the engine: step, begin an episode instead, or begin one if this step ends the
           last
    given: a result for each, in the order of the indices; of one that has failed too (truncated, with the reason)

Nothing here knows of batches or spaces. Different environments may be used by several threads at the same time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from envlanes import EnvFailed, EnvSet, EnvSpec, Settings
from envlanes.episode.turn import named
from envlanes.errors import EpisodeOverError
from envlanes.games.gym_game import AT_END, NEVER, NOW, GymResult, GymTurn, Shown
from envlanes.games.shared_buffer import IN_BUFFER, Place, SharedBuffer
from envlanes.gym.arguments import Options, nothing

UNKNOWN = object()  # the last observation of an environment that has shown none yet


class SubEnvs(EnvSet):
    """Environments by index.

    Attributes:
        engine: Where they live.
        autoreset: When an environment whose episode has ended begins the next one.
        buffer: Where large observations are left, if some are.
        last: What each showed last.
        over: Those whose episodes have ended, so that the next step begins another one or is refused.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        settings: Settings,
        autoreset: AutoresetMode,
        next_options: Callable[[int, int], Options] = nothing,
        next_seed: Callable[[int, int], int | None] = nothing,
    ) -> None:
        """Host these; workers that they need start now.

        Args:
            specs: What builds them; their ids are their indices.
            settings: The engine's.
            autoreset: When ended environments start over.
            next_options: Options of an autoreset, by index and number of the episode: a reset begins number 1.
            next_seed: The seed of an autoreset likewise; None continues with the environment's generators.
        """
        self._hold(specs, settings)
        self.engine = self._engine
        self.autoreset = autoreset
        self._next_options, self._next_seed = next_options, next_seed
        count = len(specs)
        self._ids = list(range(count))
        self.last: list[Any] = [UNKNOWN] * count
        self.over: set[int] = set()
        self._unset = set(self._ids)  # those that were never reset
        self._failed: set[int] = set()
        self._failures = [0] * count
        self._episodes = [0] * count
        self._planned: list[tuple[int | None, Options] | None] = [None] * count
        self._seeds: list[int | None] = [None] * count
        self.buffer: SharedBuffer | None = None
        self._slots = [0] * count  # which row holds what each showed last

    def reset_envs(self, ids: Sequence[int], seeds: Sequence[int | None], options: Sequence[Options]) -> list[Shown]:
        """Begin new episodes.

        Args:
            ids: Of these.
            seeds: For each of them.
            options: Likewise.

        Returns:
            What each shows. Of one that failed: its last observation, and the reason in its info.

        Raises:
            Exception: With ``on_env_failure="raise"``, that of an environment that failed; the others are reset.
        """
        found = self._reset(dict(zip(ids, seeds, strict=True)), dict(zip(ids, options, strict=True)))
        for index, seed in zip(ids, seeds, strict=True):
            self._seeds[index] = seed if seed is not None else self._seeds[index]
            self._episodes[index], self._planned[index] = 1, None
        self._raise_first(found.values())
        return [self._told_failed(i, found[i]) if isinstance(found[i], EnvFailed) else found[i] for i in ids]

    def step_envs(self, ids: Sequence[int], actions: Sequence[Any]) -> list[GymResult]:
        """Step environments, or begin the next episodes of those whose last ones are over.

        Args:
            ids: These.
            actions: An action for each; ignored where an episode begins instead.

        Returns:
            A result for each. An environment that failed is truncated, and its info says why.

        Raises:
            EpisodeOverError: An episode has ended, and is not reset by itself; no environment was stepped.
            ResetNeeded: An environment was never reset; no environment was stepped.
            Exception: With ``on_env_failure="raise"``, that of an environment that failed; the others were stepped.
        """
        self._refuse_unready(ids)
        self._count_turns(len(ids))
        lost = [index for index in ids if index in self._failed] if self._failed else []
        turns = dict(zip(ids, map(self._turn, ids, actions), strict=True))
        for index in lost:
            del turns[index]
        results: dict[int, Any] = self.engine.play(turns) if turns else {}
        if self.buffer is not None:
            self._find_in_buffer(results, self.buffer)
        if lost:
            results |= {index: self._as_result(shown) for index, shown in self._reset_lost(lost).items()}
        failed = (
            [index for index in results if isinstance(results[index], EnvFailed)]
            if EnvFailed in set(map(type, results.values()))
            else []
        )
        return self._taken(ids, results, failed)

    def _taken(self, ids: Sequence[int], results: dict[int, Any], ended_now: Sequence[int]) -> list[GymResult]:
        """Note what environments gave, and begin the next episodes of those that have failed now, if it is time."""
        self._note(results)
        if not ended_now:
            return list(map(results.__getitem__, ids))
        self._raise_first(results.values())
        shown = {index: self.last[index] for index in ended_now}
        again = self._reset_lost(ended_now) if self.autoreset is AutoresetMode.SAME_STEP else {}
        for index in results:
            if isinstance(results[index], EnvFailed):
                results[index] = self._truncated(index, results[index], shown.get(index), again.get(index))
        return [results[index] for index in ids]

    def forget(self) -> None:
        """Give up shared memory, once the engine is closed."""
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            buffer.close()
            self.last = [UNKNOWN] * len(self._ids)

    # What is asked

    def _refuse_unready(self, ids: Sequence[int]) -> None:
        if self._unset and (never := [index for index in ids if index in self._unset]):
            raise ResetNeeded(f"Environments {never} were stepped before their first reset: call `reset` first.")
        if self.autoreset is AutoresetMode.DISABLED and (over := [i for i in ids if i in self.over]):
            raise EpisodeOverError(
                f"The episodes of environments {over} are over, and with autoreset_mode DISABLED nothing resets them: "
                "call `reset` with these in `options['reset_mask']` first. No environment was stepped."
            )

    def _turn(self, index: int, action: Any) -> GymTurn:
        place = None if self.buffer is None else Place(self.buffer.address, 1 - self._slots[index], index)
        if index in self.over:
            return GymTurn(action, NOW, *self._plan(index), place)
        if self.autoreset is AutoresetMode.SAME_STEP:
            return GymTurn(action, AT_END, *self._plan(index), place)
        return named(GymTurn, (action, NEVER, None, None, place))

    def _plan(self, index: int) -> tuple[int | None, Options]:
        """Seed and options of the environment's next autoreset, asked for once for each episode."""
        plan = self._planned[index]
        if plan is None:
            episode = self._episodes[index] + 1
            plan = self._planned[index] = (self._next_seed(index, episode), self._next_options(index, episode))
        return plan

    def _reset_lost(self, ids: Sequence[int]) -> dict[int, Any]:
        """Begin new episodes of environments that have failed, whose own generators are lost."""
        if not ids:
            return {}
        plans = {index: self._plan(index) for index in ids}
        seeds = {index: self._seed_after_failure(index) if seed is None else seed for index, (seed, _) in plans.items()}
        return self._reset(seeds, {index: options for index, (_, options) in plans.items()})

    def _seed_after_failure(self, index: int) -> int | None:
        seed = self._seeds[index]
        return None if seed is None else zlib.crc32(f"{seed} {index} {self._failures[index]}".encode())

    # What came of it

    def _reset(self, seeds: Mapping[int, int | None], options: Mapping[int, Options]) -> dict[int, Any]:
        found = self.engine.reset(seeds, own_options=options)
        for index, shown in found.items():
            is_failed = isinstance(shown, EnvFailed)
            self._unset.discard(index)
            if is_failed:
                self._fail(index)
            else:
                self._failed.discard(index)
                self._begun(index, shown.observation)
        return found

    def _note(self, results: Mapping[int, Any]) -> None:
        """Keep what environments show, and whose episode is over."""
        for index, result in results.items():
            if type(result) is EnvFailed:
                self._fail(index)
            elif result.began is not None:
                self._begun(index, result.observation)
            else:
                self.last[index] = result.observation
                if result.terminated or result.truncated:
                    self.over.add(index)

    def _begun(self, index: int, observation: Any) -> None:
        self.last[index] = observation
        self._next_episode(index)

    def _next_episode(self, index: int) -> None:
        self.over.discard(index)
        self._episodes[index] += 1
        self._planned[index] = None

    def _fail(self, index: int) -> None:
        if index not in self._failed:
            self._failures[index] += 1
        self._failed.add(index)
        self.over.add(index)

    def _find_in_buffer(self, results: dict[int, Any], buffer: SharedBuffer) -> None:
        """Put the rows in place of what stands for them; they hold what environments show now."""
        for index, result in results.items():
            if type(result) is GymResult and type(result.observation) is str and result.observation == IN_BUFFER:
                slot = self._slots[index] = 1 - self._slots[index]
                results[index] = result._replace(observation=buffer.rows[slot, index])

    def _as_result(self, shown: Any) -> Any:
        """A reset that stands for a turn."""
        if isinstance(shown, EnvFailed):
            return shown
        return GymResult(shown.observation, 0.0, False, False, shown.info, None, None, None)

    def _told_failed(self, index: int, failed: EnvFailed) -> Shown:
        return Shown(self.last[index], {"env_error": failed.text})

    def _truncated(self, index: int, failed: EnvFailed, shown: Any, again: Any) -> GymResult:
        """The turn at which an environment failed: nothing gained, cut short, with the reason; and the next episode."""
        note = {"env_error": failed.text}
        if again is None or isinstance(again, EnvFailed):
            return GymResult(self.last[index], 0.0, False, True, note, None)
        final = Shown(shown, note)
        return GymResult(again.observation, 0.0, False, True, {**again.info, **note}, None, final)

    def _raise_first(self, values: Any) -> None:
        if self.engine.settings.on_env_failure != "raise":
            return
        for value in values:
            if isinstance(value, EnvFailed):
                raise own_error(value)


def own_error(failed: EnvFailed) -> BaseException:
    """The environment's own exception, with where it came from as a note; or what became of its worker."""
    own = failed.error.__cause__
    if own is None or not isinstance(own, Exception):
        return failed.error
    own.add_note(str(failed.error))
    return own
