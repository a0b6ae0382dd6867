"""The state of one trajectory, in the format of the environment manager's rollout cache.

:class:`~ragen.llm_agent.es_manager.EnvStateManager` keeps such caches for all of its environments; here each agent loop
keeps its own. The rules are the same, and a test compares the two.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from envlanes.ragen.inputs import EnvStatus
from envlanes.ragen.step import NO_SUCCESS, success_of
from envlanes.ragen.turn import Observation, TurnResult
from ragen.errors import InputError
from ragen.llm_agent.prompts.replies import ParsedReply

log = logging.getLogger(__name__)


class Episode:
    """One trajectory.

    Attributes:
        tag: Key of ``custom_envs``.
        status: Its status.
        rollout: The rollout cache, as the context manager reads it: ``tag, history, penalty``.
        turn_scores: The reward of each turn, including its format penalty.
    """

    def __init__(
        self,
        tag: str,
        seed: int,
        max_actions: int,
        format_penalty: float,
        first: Observation,
    ) -> None:
        """Begin after the environment's reset.

        Args:
            tag: Key of ``custom_envs``.
            seed: The seed of the reset.
            max_actions: Maximum number of actions of the episode.
            format_penalty: Added for a turn with invalid actions.
            first: The first observation.

        Raises:
            InputError: The observation is an image.
        """
        self.tag = tag
        self.status = EnvStatus(seed=seed)
        self.turn_scores: list[float] = []
        self._max_actions = max_actions
        self._format_penalty = format_penalty
        self.rollout: dict[str, Any] = {"tag": tag, "history": [self._open_turn(first)], "penalty": 0}

    @property
    def is_over(self) -> bool:
        """Whether no further turn may be played."""
        return self.status.terminated

    @property
    def actions_left(self) -> int:
        """Actions that may still be executed."""
        return self._max_actions - self.status.num_actions

    @property
    def success(self) -> bool:
        """Whether it succeeded."""
        return self.status.terminated and not self.status.truncated

    def apply(self, reply: ParsedReply, result: TurnResult) -> None:
        """Record a turn.

        Args:
            reply: The model's reply.
            result: Its result.

        Raises:
            InputError: The observation is an image.
        """
        penalty = self._format_penalty if result.malformed else 0
        self.turn_scores.append(float(result.reward + penalty))
        self.rollout["penalty"] += penalty
        status = self.status
        status.num_actions += len(result.executed)
        status.rewards.append(result.reward)
        if result.done:
            success = success_of(result.info)
            status.terminated, status.truncated = True, not success
            if success is None and "env_error" not in result.info:
                _warn_of_no_success(self.tag)
        elif self.actions_left <= 0:
            status.terminated = status.truncated = True
        is_invalid = not result.executed and "env_error" not in result.info
        mark = {"manager_invalid_action": True} if is_invalid else {}
        self.rollout["history"][-1].update(
            actions=result.executed,
            reward=result.reward,
            info=result.info | mark,
            llm_response=reply.text,
            llm_raw_response=reply.raw,
        )
        self.rollout["history"].append(self._open_turn(result.observation) | mark)

    def _open_turn(self, observation: Observation) -> dict[str, Any]:
        """A history entry for a turn not yet played."""
        if not isinstance(observation, str):
            raise InputError(
                f"the environments of tag {self.tag!r} show images, which agent loops do not put into prompts; "
                "train on a configuration whose render_mode is text."
            )
        return {"state": observation, "actions_left": self.actions_left}


@cache
def _warn_of_no_success(tag: str) -> None:
    """Warn once of a tag whose infos do not report success."""
    log.warning(NO_SUCCESS, f"tag {tag!r}")
