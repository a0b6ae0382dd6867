"""What a rollout that branches asks before each turn; :mod:`~ragen.llm_agent.rollout.trees` answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.tokens.prompt_batch import AnyBatch, PromptBatch


class PromptWriter(Protocol):
    """Writes a turn's prompts and reads its replies, such as a ``ContextManager``, whose methods these are."""

    def get_lm_inputs(self, env_outputs: Sequence[dict[str, Any]]) -> DataProto:
        """The prompts as tensors."""

    def get_prompts(self, env_outputs: Sequence[dict[str, Any]], with_tokens: bool = True) -> PromptBatch:
        """The prompts without tensors."""

    def get_env_inputs(self, lm_outputs: AnyBatch) -> list[dict[str, Any]]:
        """The replies as inputs of environments."""


class Growth(Protocol):
    """The trees of one rollout while they grow. Several threads may use it, if each tree is one thread's."""

    def begin_turn(self, active: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], PromptWriter]:
        """Branch before a turn.

        Args:
            active: Those that go on, of each tree all or none; of a tree whose last prompts got no reply, since the
                actor failed, they are branched already.

        Returns:
            Who plays the turn, and who writes their prompts and reads the replies.
        """

    def whole(self, over: Sequence[int], going_on: Collection[int]) -> list[int]:
        """The leaves of the trees that are over with these.

        Args:
            over: Environments whose episodes ended now.
            going_on: Those that go on.

        Returns:
            By tree, its root last: where that was taken down, the rest was.
        """
