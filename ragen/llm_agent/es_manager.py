"""The environment manager of this package's rollouts: :mod:`envlanes.ragen`'s, with the checks of this package."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from envlanes.ragen.inputs import EnvStatus
from envlanes.ragen.manager import RolloutManager
from ragen.llm_agent.environments import ManagerConfig, read_config
from ragen.tools.examples import gives_examples

__all__ = ["EnvStateManager", "EnvStatus"]


class EnvStateManager(RolloutManager):
    """Resets and steps all environments of one mode, and keeps their rollouts."""

    def _read_settings(self, config: Any, mode: str) -> ManagerConfig:
        return read_config(config, mode)

    def end_failed(self, caches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """End the episodes of environments that failed in their reset, whose only turn has an empty reply.

        Args:
            caches: The rollout caches of environments that were just reset.

        Returns:
            The caches of the others.
        """
        failed, nothing = self.failed(), {"actions": [], "llm_response": "", "llm_raw_response": ""}
        self.step([{**nothing, "env_id": cache["env_id"]} for cache in caches if cache["env_id"] in failed])
        return [cache for cache in caches if cache["env_id"] not in failed]

    def end_episode(self, env_id: int, reason: str) -> None:
        """End an episode whose next prompt does not fit the model's context: it is truncated, without success.

        Args:
            env_id: The environment.
            reason: Becomes ``out_of_context`` of its cache; ``<tag>/out_of_context`` is then 1 among its metrics.
        """
        self._caches()
        status: EnvStatus = self._entries[env_id]["status"]
        status.terminated = status.truncated = True
        self._cache_of[env_id]["out_of_context"] = reason

    def example_action(self, env_id: int, rng: Random) -> str:
        """An action that an environment's ``example_action`` proposes now; "" if it has none, or has failed."""
        if not gives_examples(self._engine.spec(env_id).env_class):
            return ""
        answer = self._engine.read([env_id], "example_action", rng)[env_id]
        return answer if isinstance(answer, str) else ""
