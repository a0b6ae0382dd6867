"""The manager of environments: seeds, the rollout cache, metrics, and who is asked to play.

Drop-in for RAGEN's ``EnvStateManager``. Where the environments live and what happens when a worker fails is the
engine's business (:mod:`ragen.parallel.engine`); nothing here knows processes. What the manager returns does not depend
on it.
"""

from __future__ import annotations

import logging
import operator
import random
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from ragen.errors import EnvError, InputError, StateError
from ragen.llm_agent.config.environments import EnvEntry, ManagerConfig, read_config
from ragen.parallel import worker
from ragen.parallel.accounts import LaneStats
from ragen.parallel.engine import Engine, EngineSettings
from ragen.parallel.host import Outcome, ResetOrder, let_signals_pass
from ragen.parallel.placement import Mode, Placement
from ragen.parallel.residents import GivenUp
from ragen.parallel.system import interrupts_held
from ragen.parallel.turn import EnvSpec, EnvStatus, Observation, TurnRequest, TurnResult, named

log = logging.getLogger(__name__)

DEFAULT_VAL_SEED = 123
MAX_SEED = 2**32 - 1  # NumPy's legacy generators take no larger one
INPUT_KEYS = "env_id", "actions", "llm_response", "llm_raw_response"
PLAYED_KEYS = ("actions", "reward", "info", "llm_response", "llm_raw_response")  # of a turn in the history
Asked = dict[int, tuple[TurnRequest, Mapping[str, Any]]]  # the turns of a call with their inputs, by env_id
_fields = operator.itemgetter(*INPUT_KEYS)


@dataclass(slots=True)
class _Turns:
    """The turns of one call, and what has come of them so far.

    Attributes:
        asked: The requests with their inputs.
        over: Whose episode has ended.
        failed: Who was given up.
        unfined: Penalties as they were before, of those that were fined.
    """

    asked: Asked
    over: set[int] = field(default_factory=set)
    failed: dict[int, GivenUp] = field(default_factory=dict)
    unfined: dict[int, float] = field(default_factory=dict)


class EnvStateManager:
    """Resets and steps all environments of one mode, and keeps their rollouts.

    A context manager; ``close`` may be called twice, and a manager that is forgotten closes itself.

    Attributes:
        envs: One dict per environment with keys ``tag, group_id, env_id, env, config, status, max_actions_per_traj``;
            ``env`` is a handle that works wherever the environment lives.
        rollout_cache: One dict per environment with keys ``env_id, group_id, tag, history, penalty``; None before the
            first reset.
        max_workers: Most worker processes.
        sequential_env_types: Types that always stay in the main process.
    """

    def __init__(self, config: Any, mode: str = "train") -> None:
        """Check the whole configuration; environments are built by the first reset, workers start now.

        Args:
            config: The whole configuration (Hydra's, or nested dicts), of which ``es_manager``, ``custom_envs`` and
                ``seed`` are read.
            mode: ``"train"`` or ``"val"``: which part of ``es_manager`` counts, and how seeds go on.

        Raises:
            ConfigError: A key is missing or has a value that cannot work.
            StateError: Called inside a worker process.
        """
        if worker.in_worker:
            raise StateError(
                "an EnvStateManager was made inside a worker process: a module that defines an environment makes one "
                "when it is imported. Put that code under `if __name__ == '__main__':`."
            )
        self.config = config
        self.mode = mode
        self._settings: ManagerConfig = read_config(config, mode)
        self.base_seed = self._settings.base_seed
        self.seed_counter = 0
        self.max_workers = self._settings.engine.max_workers
        self.sequential_env_types = list(self._settings.sequential_env_types)
        self._engine = self._new_engine([entry.spec for entry in self._settings.entries], self._settings.engine)
        self._finalizer = weakref.finalize(self, self._engine.close, forgotten=True)
        self.envs = [self._public_entry(entry) for entry in self._settings.entries]
        self.rollout_cache: list[dict[str, Any]] | None = None
        self._placement = Placement(self._engine, self.sequential_env_types)
        self._use_multiprocessing = self._settings.use_multiprocessing
        self._placement.prepare(self._use_multiprocessing)

    # Switches

    @property
    def use_multiprocessing(self) -> Mode:
        """``True``, ``False`` or ``"auto"``; may be set between any two turns, and then holds from the next one."""
        return self._use_multiprocessing

    @use_multiprocessing.setter
    def use_multiprocessing(self, value: Mode) -> None:
        if not (value is True or value is False or value == "auto"):
            raise InputError(f"use_multiprocessing = {value!r}: expected True, False or 'auto'.")
        if value != self._use_multiprocessing and self.rollout_cache is not None:
            self._placement.decide(value)
        self._use_multiprocessing = value

    def _new_engine(self, specs: list[EnvSpec], settings: EngineSettings) -> Engine:
        return Engine(specs, settings)

    # Episodes

    def reset(self, seed: int | None = None) -> list[dict[str, Any]]:
        """Begin a new episode in every environment.

        Args:
            seed: Seed of the first group; each further group's is one higher. None counts on from the last reset
                (train) or takes ``seed.val`` again (val).

        Returns:
            The rollout caches, by env_id.

        Raises:
            InputError: The seed is no integer from 0 to 2**32 - 1; nothing was reset.
            EnvError: An environment could not be built.
        """
        self._check_open()
        seeds = self._group_seeds(seed)
        orders = [ResetOrder(e["env_id"], seeds[e["group_id"]], self.mode) for e in self.envs]
        self.rollout_cache = None
        self._engine.begin_episode()
        self._placement.decide(self._use_multiprocessing)
        observations = self._engine.reset(orders)
        caches = [
            self._begin_cache(entry, order, observation)
            for entry, order, observation in zip(self.envs, orders, observations, strict=True)
        ]
        self._advance_seed(seed)  # last, so that a reset that is interrupted can be made again
        self.rollout_cache = caches
        return caches

    def step(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Play one turn in the environments named by the inputs.

        Args:
            all_env_inputs: Dicts with keys ``env_id``, ``actions`` (list of str), ``llm_response`` and
                ``llm_raw_response``; each env_id at most once, of an environment whose episode is not over.

        Returns:
            The rollout caches of those whose episode goes on, in the order of the inputs.

        Raises:
            InputError: An input is not of that form; no environment was stepped.
            StateError: There was no reset yet.
            EnvError, LaneError: An environment failed with ``on_env_failure: raise``; all others were stepped.
        """
        asked = self._checked(all_env_inputs)
        if self._placement.wants_to_look_again:
            self._placement.look_again()
        step = self._step_parallel if self._engine.has_lane(asked) else self._step_sequential
        return step(all_env_inputs, asked)

    def _step_sequential(
        self, all_env_inputs: Sequence[Mapping[str, Any]], asked: Asked | None = None
    ) -> list[dict[str, Any]]:
        """Play turns in the main process, one after the other; environments in lanes are brought home for it."""
        asked = asked or self._checked(all_env_inputs)
        self._engine.bring_home(asked)
        return self._play(asked)

    def _step_parallel(
        self, all_env_inputs: Sequence[Mapping[str, Any]], asked: Asked | None = None
    ) -> list[dict[str, Any]]:
        """Play turns where the environments are at home: lanes work while main plays its own share."""
        return self._play(asked or self._checked(all_env_inputs))

    def get_rollout_states(self) -> list[dict[str, Any]]:
        """The rollout caches, with ``metrics`` of each, and what environments have to say about the whole rollout.

        Metrics are ``<tag>/success``, ``<tag>/num_actions``, ``<tag>/<key>`` for every numeric info key (its sum over
        the turns, divided by the number of turns), and ``<tag>/pass@<group_size>``.

        Raises:
            StateError: There was no reset yet.
        """
        return self.episode_states(range(len(self.envs)))

    def episode_states(self, env_ids: Sequence[int]) -> list[dict[str, Any]]:
        """What :meth:`get_rollout_states` says of some environments; ``pass@k`` is among them alone.

        Raises:
            StateError: There was no reset yet.
        """
        caches = [self._caches()[env_id] for env_id in env_ids]
        for cache in caches:
            cache["metrics"] = self._metrics(self.envs[cache["env_id"]], cache)
        self._add_pass_at_k(caches)
        for cache, told in zip(caches, self._engine.rollout_info(env_ids), strict=True):
            cache.update({key: value for key, value in told.items() if key not in cache})
        return caches

    def render(self) -> list[Any]:
        """What each environment shows now: text, or a list of ``(H, W, 3)`` uint8 arrays."""
        self._caches()
        return [self._engine.observation(entry["env_id"]) for entry in self.envs]

    def lane_stats(self) -> list[LaneStats]:
        """What each home (main first, then lanes) hosts and has done since this manager was made."""
        return self._engine.stats()

    def home(self, env_id: int) -> str:
        """Where an environment lives now: ``"main"``, or the name of a lane."""
        return self._engine.home(env_id)

    def placement(self) -> dict[str, str]:
        """Where each tag's environments live, and why."""
        return self._placement.reasons()

    def close(self) -> None:
        """Close all environments, and the workers unless another manager uses them; may be called twice."""
        if self._finalizer.detach():
            self._engine.close()

    def __enter__(self) -> EnvStateManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Seeds

    def _group_seeds(self, seed: int | None) -> list[int]:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InputError(f"reset(seed={seed!r}): expected an integer from 0 to {MAX_SEED}, or None.")
        first = self._first_seed() if seed is None else seed
        groups = self._settings.env_groups
        if first < 0 or first + groups - 1 > MAX_SEED:
            raise InputError(
                f"reset(seed={seed!r}): {groups} groups would get the seeds {first} to {first + groups - 1}; "
                f"seeds go from 0 to {MAX_SEED}."
            )
        return list(range(first, first + groups))

    def _first_seed(self) -> int:
        if self.mode != "train":
            return self.base_seed if self.base_seed is not None else DEFAULT_VAL_SEED
        if self.base_seed is None:
            return random.randint(0, 1_000_000)
        return self.base_seed + self.seed_counter

    def _advance_seed(self, seed: int | None) -> None:
        """Count on after a reset; an explicit seed moves the counter to one after it, as RAGEN does."""
        if self.mode != "train" or self.base_seed is None:
            return
        self.seed_counter = self.seed_counter + self._settings.env_groups if seed is None else seed - self.base_seed + 1

    # Turns

    def _play(self, asked: Asked) -> list[dict[str, Any]]:
        turns = _Turns(asked)
        try:
            requests = [request for request, _ in asked.values()]
            self._engine.play(requests, lambda outcomes: self._commit(turns, outcomes))
            if not turns.failed or self._settings.engine.on_env_failure != "raise":
                caches, over = self.rollout_cache, turns.over
                return [caches[env_id] for env_id in asked if env_id not in over]  # type: ignore[index]
        except BaseException:
            self._take_back(turns)
            raise
        raise next(turns.failed[env_id].error for env_id in asked if env_id in turns.failed)

    def _commit(self, turns: _Turns, outcomes: Sequence[Outcome]) -> None:
        """Make turns part of the episodes, as their results come in."""
        for env_id, result, _, _ in outcomes:
            request, given = turns.asked[env_id]
            if type(result) is GivenUp:
                turns.failed[env_id] = result
                result = self._engine.give_up_result(request, result)
            else:
                self._engine.commit(request, result)
            self._apply(turns, given, result)

    @interrupts_held()
    def _take_back(self, turns: _Turns) -> None:
        """Undo :meth:`_commit`, as far as it came."""
        for env_id, (request, _) in turns.asked.items():
            entry, cache = self.envs[env_id], self.rollout_cache[env_id]  # type: ignore[index]
            status: EnvStatus = entry["status"]
            status.num_actions = entry["max_actions_per_traj"] - request.actions_left
            status.terminated = status.truncated = False
            del status.rewards[request.turn :]
            del cache["history"][request.turn + 1 :]
            for key in PLAYED_KEYS:
                cache["history"][-1].pop(key, None)
            cache["penalty"] = turns.unfined.get(env_id, cache["penalty"])
            self._engine.revoke(request)

    def _apply(self, turns: _Turns, given: Mapping[str, Any], result: TurnResult) -> None:
        """Write a result into status and history."""
        env_id, _, executed, malformed, reward, done, info, observation, _ = result
        entry = self.envs[env_id]
        cache = self.rollout_cache[env_id]  # type: ignore[index]
        status: EnvStatus = entry["status"]
        if malformed:
            turns.unfined[env_id] = cache["penalty"]
            cache["penalty"] += self._settings.format_penalty
        status.num_actions += len(executed)
        status.rewards.append(reward)
        left = entry["max_actions_per_traj"] - status.num_actions
        if done:
            status.terminated = True
            status.truncated = not info.get("success", False)
        elif left <= 0:
            status.terminated = status.truncated = True
        if status.terminated:
            turns.over.add(env_id)
        history = cache["history"]
        turn = history[-1]
        turn["actions"] = executed
        turn["reward"] = reward
        turn["info"] = info
        turn["llm_response"] = given["llm_response"]
        turn["llm_raw_response"] = given["llm_raw_response"]
        history.append(_open_turn(observation, left))

    # Checks

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise StateError("this manager is closed; make a new one.")

    def _caches(self) -> list[dict[str, Any]]:
        self._check_open()
        if self.rollout_cache is None:
            raise StateError("there is no episode yet (or the last reset failed): call reset() first.")
        return self.rollout_cache

    def _checked(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> Asked:
        """The turns that the inputs ask for, every input checked."""
        self._caches()
        asked: Asked = {}
        for position, given in enumerate(all_env_inputs):
            try:
                env_id, actions, _, _ = _fields(given if type(given) is dict else dict(given))
            except KeyError:
                missing, present = ", ".join(sorted(set(INPUT_KEYS) - given.keys())), ", ".join(map(str, given))
                raise InputError(f"step input {position} lacks {missing}; it has {present}.") from None
            except (TypeError, ValueError):
                raise InputError(f"step input {position} is {given!r}; expected a dict.") from None
            if type(env_id) is not int or not 0 <= env_id < len(self.envs):
                env_id = self._checked_env_id(position, env_id)
            if env_id in asked:
                raise InputError(f"step input {position}: env_id = {env_id} was given twice in this call.")
            self._check_actions(position, actions)
            entry = self.envs[env_id]
            status: EnvStatus = entry["status"]
            if status.terminated:
                raise InputError(
                    f"step input {position}: the episode of env_id = {env_id} is over; step only what step() returned."
                )
            left = entry["max_actions_per_traj"] - status.num_actions
            asked[env_id] = named(TurnRequest, (env_id, len(status.rewards), tuple(actions), left)), given
        return asked

    def _checked_env_id(self, position: int, env_id: Any) -> int:
        try:
            index = -1 if isinstance(env_id, bool) else operator.index(env_id)
        except TypeError:
            index = -1
        if not 0 <= index < len(self.envs):
            raise InputError(
                f"step input {position}: env_id = {env_id!r}; expected an integer from 0 to {len(self.envs) - 1}."
            )
        return index

    @staticmethod
    def _check_actions(position: int, actions: Any) -> None:
        if isinstance(actions, (list, tuple)):
            for action in actions:
                if not isinstance(action, str):
                    break
            else:
                return
        raise InputError(f"step input {position}: actions = {actions!r}; expected a list of strings.")

    # Entries

    def _public_entry(self, entry: EnvEntry) -> dict[str, Any]:
        spec = entry.spec
        return {
            "tag": spec.tag,
            "group_id": spec.group_id,
            "env_id": spec.env_id,
            "env": EnvHandle(self._engine, spec.env_id),
            "config": spec.config,
            "status": EnvStatus(),
            "max_actions_per_traj": entry.max_actions_per_traj,
        }

    def _begin_cache(self, entry: dict[str, Any], order: ResetOrder, observation: Observation) -> dict[str, Any]:
        entry["status"] = EnvStatus(seed=order.seed)
        return {
            "env_id": entry["env_id"],
            "group_id": entry["group_id"],
            "tag": entry["tag"],
            "history": [_open_turn(observation, entry["max_actions_per_traj"])],
            "penalty": 0,
        }

    # Metrics

    def _metrics(self, entry: dict[str, Any], cache: dict[str, Any]) -> dict[str, float]:
        status, tag = entry["status"], entry["tag"]
        values: dict[str, list[float]] = {}
        for turn in cache["history"]:
            for key, value in turn.get("info", {}).items():
                number = _number(value) if key != "success" else None
                if number is not None:
                    values.setdefault(key, []).append(number)
        cache["history"][-1]["metrics"] = values
        turns = len(cache["history"]) - 1
        metrics = {f"{tag}/success": float(status.terminated and not status.truncated)}
        metrics[f"{tag}/num_actions"] = status.num_actions
        metrics.update({f"{tag}/{key}": sum(numbers) / turns for key, numbers in values.items()})
        return metrics

    def _add_pass_at_k(self, caches: list[dict[str, Any]]) -> None:
        """``pass@k``: whether any member of the group succeeded."""
        groups: dict[int, float] = {}
        for cache in caches:
            success = cache["metrics"][f"{cache['tag']}/success"]
            groups[cache["group_id"]] = max(groups.get(cache["group_id"], 0.0), success)
        for cache in caches:
            cache["metrics"][f"{cache['tag']}/pass@{self._settings.group_size}"] = groups[cache["group_id"]]


class EnvHandle:
    """An environment of a manager, wherever it lives: methods and attributes are those of the environment itself.

    Every access is bounded by ``step_timeout``. What it returns from a worker is a copy. Between two turns only.
    """

    def __init__(self, engine: Engine, env_id: int) -> None:
        """Stand for this environment."""
        self._engine = engine
        self._env_id = env_id

    def __getattr__(self, name: str) -> Any:
        """Read an attribute, or get a method that is called where the environment lives."""
        if name.startswith("__"):
            raise AttributeError(name)
        env_class = self._engine.spec(self._env_id).env_class
        if callable(getattr(env_class, name, None)):
            return lambda *arguments: self._engine.call([self._env_id], name, *arguments)[0]
        try:
            return self._engine.call([self._env_id], name)[0]
        except EnvError as error:
            if isinstance(error.__cause__, AttributeError):
                raise AttributeError(str(error)) from error  # what hasattr and getattr with a default expect
            raise

    def __repr__(self) -> str:
        return f"<{self._engine.spec(self._env_id).describe()}>"


def _open_turn(observation: Observation, actions_left: int) -> dict[str, Any]:
    """A history entry whose turn is still to be played."""
    if isinstance(observation, str):
        return {"state": observation, "actions_left": actions_left}
    images = [Image.fromarray(pixels) for pixels in observation]
    return {"state": "<images>" * len(images), "images": images, "actions_left": actions_left}


def _number(value: Any) -> float | None:
    """The value as a float; None for what is no number, which makes no metric."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except BaseException as error:  # whatever an environment's own class raises
        let_signals_pass(error)
        return None
