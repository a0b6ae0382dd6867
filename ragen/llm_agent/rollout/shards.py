"""Parallel rollouts under the names that RAGEN's forks use; :mod:`~ragen.llm_agent.rollout.parallel` plays them."""

from __future__ import annotations

import threading
from typing import Any, Self

from ragen.llm_agent.rollout.parallel import Shards
from ragen.llm_agent.rollout.proxy import LLMAgentProxy


class SharedLLMInferenceManager:
    """Shares one actor among threads: any of them may call it, and the actor gets one call at a time."""

    def __init__(self, actor_rollout_wg: Any) -> None:
        """Share an actor.

        Args:
            actor_rollout_wg: Anything with ``generate_sequences``: a worker group of verl, also of Ray, or an
                actor of this package.
        """
        self.actor_rollout_wg = actor_rollout_wg
        self._lock = threading.Lock()

    def generate_sequences(self, lm_inputs: Any) -> Any:
        """Generate replies to a batch of prompts."""
        with self._lock:
            return self.actor_rollout_wg.generate_sequences(lm_inputs)


class ParallelRolloutManager(LLMAgentProxy):
    """A player of parallel rollouts, whatever the configuration says.

    ``LLMAgentProxy`` with ``agent_proxy.use_parallel_rollout: true``, under the name that RAGEN's forks use. A
    context manager; ``close`` may be called twice.
    """

    def __init__(self, config: Any, actor_rollout_wg: Any, tokenizer: Any, n_jobs: int | None = None) -> None:
        """Take the parts; workers and environments are made by each rollout.

        Args:
            config: The whole configuration.
            actor_rollout_wg: The actor; see :class:`LLMAgentProxy`.
            tokenizer: The actor's tokenizer.
            n_jobs: Number of workers; None for ``agent_proxy.parallel_n_jobs``.

        Raises:
            ConfigError: A key has an invalid value.
        """
        super().__init__(config, actor_rollout_wg, tokenizer)
        self.parallel: Shards = Shards(config, n_jobs)

    parallel_rollout = LLMAgentProxy.rollout

    @property
    def proxy(self) -> Self:
        """Itself: the forks' manager has a proxy, this one is what a proxy is."""
        return self

    @property
    def n_jobs(self) -> int:
        """Number of workers; -1 for one per processor."""
        return self.parallel.n_jobs

    @property
    def fallback_reason(self) -> str | None:
        """The reason for (a part of) the last rollout being played by the ordinary loop; None if it was not."""
        return self.parallel.fallback_reason
