"""The environment manager: seeds, the rollout cache and metrics, with RAGEN's names and format.

The engine (:mod:`envlanes.engine`) decides where environments live and what happens when a worker fails; the manager's
results do not depend on it::

    step -> _step_parallel or _step_sequential -> checked_turns -> engine.play -> _log_env_state, in input order
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envlanes.env_set import EnvSet
from envlanes.environments import EnvFailed
from envlanes.errors import EnvLanesError, InputError, StateError
from envlanes.interrupts import holds_interrupts
from envlanes.ragen.handle import public_entry
from envlanes.ragen.inputs import EnvStatus, TurnRequests, checked_turns
from envlanes.ragen.metrics import add_metrics, add_pass_at_k, largest_tile
from envlanes.ragen.recorded import RecordedEpisodes
from envlanes.ragen.seeds import checked_seed, counted_on, first_seed, group_seeds
from envlanes.ragen.settings import ManagerSettings
from envlanes.ragen.step import NO_SUCCESS
from envlanes.ragen.turn import Observation, TurnResult, digest_observation, failed_turn, state_hash
from envlanes.settings import Mode
from envlanes.stats import LaneStats, duration

if TYPE_CHECKING:
    from PIL import Image

BASE = "ragen.env.base"  # the module of RAGEN's base classes
log = logging.getLogger(__name__)


class RolloutManager(EnvSet):
    """Resets and steps all environments of one mode, and keeps their rollouts.

    A context manager; ``close`` may be called twice, and a manager that is garbage-collected closes itself.

    Attributes:
        sys_config: The whole configuration, as passed.
        config: The mode's part of ``es_manager``.
        env_groups: Number of groups.
        group_size: Environments per group.
        envs: One dict per environment with keys ``tag, group_id, env_id, env, config, status, max_actions_per_traj``;
            ``env`` is a handle that works wherever the environment lives.
        rollout_cache: One dict per environment with keys ``env_id, group_id, tag, history, penalty``; None before the
            first reset.
        max_workers: Maximum number of worker processes.
        sequential_env_types: Types that always stay in the main process.
    """

    def __init__(self, config: Any, mode: str = "train") -> None:
        """Read the whole configuration, start workers, and build the environments of ``sequential_env_types``.

        The first reset builds the others. RAGEN builds all of them here: what the class of a sequential type counts or
        shares is as with RAGEN, also between the managers of training and validation.

        Args:
            config: The whole configuration (Hydra's, or nested dicts); ``es_manager``, ``custom_envs`` and ``seed`` are
                read. Or what was read from it, with all environments or some.
            mode: ``"train"`` or ``"val"``: selects the part of ``es_manager`` and how seeds advance.

        Raises:
            ConfigError: A key is missing or has an invalid value.
            StateError: Called inside a worker process.
            EnvError: An environment of a sequential type could not be built.
        """
        is_read = isinstance(config, ManagerSettings)
        self._settings: ManagerSettings = config if is_read else self._read_settings(config, mode)
        self.sys_config, self.mode = config, mode
        self.config = None if is_read else _part(_part(config, "es_manager"), mode)
        self.env_groups, self.group_size = self._settings.env_groups, self._settings.group_size
        self.base_seed, self.seed_counter = self._settings.base_seed, 0
        self._hashes_states = self._settings.env_state_hash
        self.max_workers = self._settings.engine.workers
        self.sequential_env_types = list(self._settings.engine.sequential_env_types)
        specs = [entry.spec for entry in self._settings.entries]
        self._hold(specs, self._settings.engine, on_failure=self._settings.keep_failure())
        self._episodes: Any = self._engine
        if self._settings.journal is not None:
            path = Path(self._settings.journal) / f"{mode}.jsonl"
            self._episodes = RecordedEpisodes(self._engine, path, self._settings.about())
        self.envs = [public_entry(entry, self._engine) for entry in self._settings.entries]
        self._entries = {entry["env_id"]: entry for entry in self.envs}
        self._cache_of: dict[int, dict[str, Any]] = {}
        self.rollout_cache: list[dict[str, Any]] | None = None
        self._warned: set[str] = set()  # types without success
        self._invalid: dict[int, list[int]] = {}  # turns with invalid actions, from 0, by env_id
        stay = [spec.env_id for spec in specs if spec.env_type in self.sequential_env_types]
        self._raise_failures(self._engine.build(stay), at_build=True)

    def close(self) -> None:
        """Close all environments, the workers unless another holder uses them, and the journal."""
        super().close()
        if self._episodes is not self._engine:
            self._episodes.close()

    @abstractmethod
    def _read_settings(self, config: Any, mode: str) -> ManagerSettings:
        """Read and check the configuration; nothing is built or started."""

    @property
    def use_multiprocessing(self) -> Mode:
        """``True``, ``False`` or ``"auto"``; may be set between any two turns, and takes effect from the next one."""
        return self._engine.use_lanes

    @use_multiprocessing.setter
    def use_multiprocessing(self, value: Mode) -> None:
        if not (value is True or value is False or value == "auto"):
            raise InputError(f"use_multiprocessing = {value!r}: expected True, False or 'auto'.")
        self._engine.use_lanes = value

    # Episodes

    @holds_interrupts
    def reset(self, seed: int | None = None) -> list[dict[str, Any]]:
        """Begin a new episode in every environment.

        Args:
            seed: Seed of the first group; each further group's is one higher. None continues from the last reset's
                seeds (train) or uses ``seed.val`` again (val).

        Returns:
            The rollout caches, by env_id.

        Raises:
            InputError: The seed is not an integer from 0 to 2**32 - 1; nothing was reset.
            EnvError: An environment could not be built.
        """
        self._check_open()
        given = None if seed is None else checked_seed(seed)
        first = first_seed(self.mode, self.base_seed, self.seed_counter) if given is None else given
        numbers = self._settings.group_numbers
        seeds = group_seeds(first, numbers)
        # Until the new ones are there: a reset that fails must not leave the last episode's caches to be trained on.
        self.rollout_cache = None
        self._invalid.clear()
        by_id = {entry["env_id"]: seeds[entry["group_id"]] for entry in self.envs}
        observations = self._episodes.reset(by_id, {"mode": self.mode})
        self._raise_failures(observations, at_build=True)
        caches = [self._begin_cache(entry, by_id[i], observations[i]) for i, entry in self._entries.items()]
        # last, so that a reset that is interrupted can be made again
        self.seed_counter = counted_on(self.mode, self.base_seed, self.seed_counter, given, max(numbers) + 1)
        self.rollout_cache, self._cache_of = caches, dict(zip(self._entries, caches, strict=True))
        return caches

    def step(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Play one turn in the environments named by the inputs.

        Args:
            all_env_inputs: Dicts with ``env_id`` and ``actions`` (list of str), and the model's ``llm_response`` and
                ``llm_raw_response`` if there are any; each env_id at most once, of an environment whose episode is not
                over. Unknown actions are dropped, earn the format penalty, and use up nothing of
                ``max_actions_per_traj``: a loop has to limit the number of turns itself.

        Returns:
            The rollout caches of the environments whose episode continues, in the order of the inputs.

        Raises:
            InputError: An input does not have this form; no environment was stepped.
            StateError: There was no reset yet.
            EnvError, LaneError: An environment failed with ``on_env_failure: raise``; all others were stepped.
        """
        if self._engine.use_lanes is not False:
            return self._step_parallel(all_env_inputs)
        return self._step_sequential(all_env_inputs)

    @holds_interrupts
    def _step_sequential(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """:meth:`step` in the main process, one environment after the other; those in workers are moved there first.

        Used by :meth:`step` if no environment may live in a worker.
        """
        requests = self._checked(all_env_inputs)
        self._engine.move_to_main(requests)
        return self._play(requests)

    @holds_interrupts
    def _step_parallel(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """:meth:`step` where the environments live: workers play while the main process plays its own share.

        Used by :meth:`step` if some environments may live in workers.
        """
        return self._play(self._checked(all_env_inputs))

    def failed(self) -> set[int]:
        """The environments that have failed in this episode, which is over for them."""
        return {entry["env_id"] for entry in self.envs if self._engine.failure(entry["env_id"]) is not None}

    def _checked(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> TurnRequests:
        self._caches()
        return checked_turns(all_env_inputs, self._entries)

    def _play(self, requests: TurnRequests) -> list[dict[str, Any]]:
        """Play the turns, and write them into statuses and histories in the order of the inputs."""
        results = self._episodes.play({env_id: turn for env_id, (turn, _) in requests.items()})
        going_on = []
        for env_id, (_, env_input) in requests.items():
            entry, cache = self._entries[env_id], self._cache_of[env_id]
            result = results[env_id]
            if type(result) is EnvFailed:
                result = failed_turn(result.text, self._engine.observation(env_id))
            if not self._log_env_state(entry, cache, env_input, result):
                going_on.append(cache)
        # Only now: the results of all other environments are in their caches.
        if self._raises:
            self._raise_failures(results)
        return going_on

    def get_rollout_states(self) -> list[dict[str, Any]]:
        """The rollout caches, each with its ``metrics`` and the environment's ``rollout_info``.

        Metrics are ``<tag>/success``, ``<tag>/num_actions``, ``<tag>/<key>`` for every numeric info key (see
        :func:`~envlanes.ragen.metrics.add_metrics`), and ``<tag>/pass@<group_size>``. An environment that
        failed, through its own code or with its worker, has ``<tag>/env_error`` (1.0), and ``env_error`` in its cache
        with the reason.

        Raises:
            StateError: There was no reset yet.
        """
        return self.episode_states([cache["env_id"] for cache in self._caches()])

    def episode_states(self, env_ids: Sequence[int]) -> list[dict[str, Any]]:
        """:meth:`get_rollout_states` for some environments; ``pass@k`` covers whole groups.

        Raises:
            StateError: There was no reset yet.
        """
        self._caches()
        caches, rules = [self._cache_of[each] for each in env_ids], self._settings.rules
        grids = self._grids(env_ids) if rules.generation == 2026 else {}
        for env_id, cache in zip(env_ids, caches, strict=True):
            tile = largest_tile(grids[env_id]) if env_id in grids else None
            add_metrics(self._entries[env_id], cache, tile, rules)
        add_pass_at_k(caches, self.group_size)
        for env_id, info in self._rollout_infos(env_ids).items():
            cache = self._cache_of[env_id]
            cache.update({key: value for key, value in (info or {}).items() if key not in cache})
        return caches

    def render(self) -> list[Any]:
        """The current observation of each environment: text, or a list of ``(H, W, 3)`` uint8 arrays."""
        return [self._engine.observation(cache["env_id"]) for cache in self._caches()]

    def lane_stats(self) -> list[LaneStats]:
        """Statistics of each process, main first, since this manager was created."""
        return self._engine.stats()

    def home(self, env_id: int) -> str:
        """The home of an environment: ``"main"``, or the name of a worker."""
        return self._engine.home(env_id)

    def placement(self) -> dict[str, str]:
        """The home of each tag's environments, and the cost of a turn."""
        work = self.work()
        return {tag: f"in {home}: {duration(work.costs[tag].turns.usual_s)} a turn" for tag, home in work.homes.items()}

    # Turns

    def invalid_turns(self, env_id: int) -> Sequence[int]:
        """The turns of an episode, from 0, whose reply earned the format penalty: an unknown action, or none."""
        return tuple(self._invalid.get(env_id, ()))

    def _log_env_state(
        self, entry: dict[str, Any], cache: dict[str, Any], env_input: Mapping[str, Any], result: TurnResult
    ) -> bool:
        """Write a result into status and history; whether the episode is over."""
        executed, malformed, reward, done, info, observation, digest = result
        status: EnvStatus = entry["status"]
        if malformed:
            cache["penalty"] += self._settings.format_penalty
            self._invalid.setdefault(entry["env_id"], []).append(len(status.rewards))
        status.num_actions += len(executed)
        status.rewards.append(reward)
        left = entry["max_actions_per_traj"] - status.num_actions
        if done:
            status.terminated = True
            success = self._settings.rules.success_of(info)
            status.truncated = not success
            kind = self._engine.spec(entry["env_id"]).env_type
            if success is None and "env_error" not in info and kind not in self._warned:
                self._warned.add(kind)
                log.warning(NO_SUCCESS, f"type {kind!r} (tag {entry['tag']!r})")
        elif left <= 0:
            status.terminated = status.truncated = True
        turn = cache["history"][-1]
        turn["actions"] = executed
        turn["reward"] = reward
        marks_invalid = self._settings.rules.generation == 2026 and not executed and "env_error" not in info
        turn["info"] = {**info, "manager_invalid_action": True} if marks_invalid else info
        turn["llm_response"] = env_input.get("llm_response", "")
        turn["llm_raw_response"] = env_input.get("llm_raw_response", "")
        self._update_cache_history(cache["history"], observation, left, digest)
        if marks_invalid:
            cache["history"][-1]["manager_invalid_action"] = True
        return status.terminated

    def _update_cache_history(
        self, history: list[dict[str, Any]], observation: Observation, actions_left: int, digest: Any
    ) -> None:
        """Append an entry whose turn is still to be played."""
        if isinstance(observation, str):
            history.append({"state": observation, "actions_left": actions_left})
        else:
            images = self._handle_mm_state(observation)
            history.append({"state": "<images>" * len(images), "images": images, "actions_left": actions_left})
        if self._hashes_states:
            history[-1]["env_state_hash"] = state_hash(digest_observation(observation) if digest is None else digest)

    @staticmethod
    def _handle_mm_state(observation: Observation) -> list[Image.Image]:
        """Arrays of shape ``(H, W, 3)`` as pictures."""
        from PIL import Image  # of the extra `ragen`: who shows text needs none

        return [Image.fromarray(pixels) for pixels in observation]

    # Entries

    def _caches(self) -> list[dict[str, Any]]:
        if self._finalizer is None or not self._finalizer.alive:
            self._check_open()
        if self.rollout_cache is None:
            raise StateError("there is no episode yet, or the last reset failed; call reset() first.")
        return self.rollout_cache

    def _begin_cache(self, entry: dict[str, Any], seed: int, observation: Observation | EnvFailed) -> dict[str, Any]:
        entry["status"] = EnvStatus(seed=seed)
        shown = "" if isinstance(observation, EnvFailed) else observation  # its first turn will say why
        history: list[dict[str, Any]] = []
        digest = self._engine.reset_digest(entry["env_id"])
        self._update_cache_history(history, shown, entry["max_actions_per_traj"], digest)
        keys = {"env_id": entry["env_id"], "history": history, "group_id": entry["group_id"], "tag": entry["tag"]}
        return {**keys, "penalty": 0}

    # Requests to environments at the end

    def _read(self, env_ids: Iterable[int], name: str, has: Callable[[Any], bool] = callable) -> dict[int, Any]:
        """An attribute, or the result of a method, of those environments that have it and have not failed.

        Args:
            env_ids: The environments.
            name: Its name.
            has: Whether a class may have it; any class by default.
        """
        engine = self._engine
        asked = [i for i in env_ids if engine.failure(i) is None and has(engine.spec(i).env_class)]
        found = engine.read(asked, name) if asked else {}
        return {i: value for i, value in found.items() if not isinstance(value, EnvLanesError)}

    def _grids(self, env_ids: Iterable[int]) -> dict[int, Any]:
        return self._read(env_ids, "grid", lambda each: hasattr(each, "grid"))

    def _rollout_infos(self, env_ids: Iterable[int]) -> dict[int, Any]:
        return self._read(env_ids, "rollout_info", _has_rollout_info)


def _has_rollout_info(env_class: Any) -> bool:
    """Whether a class has a ``rollout_info`` of its own: the base class's says nothing."""
    return getattr(getattr(env_class, "rollout_info", None), "__module__", BASE) != BASE


def _part(config: Any, name: str) -> Any:
    return config[name] if isinstance(config, Mapping) else getattr(config, name)
