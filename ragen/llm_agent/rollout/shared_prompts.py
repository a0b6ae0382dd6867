"""Prompts that several environments share: written and tokenised once, and asked for as many replies.

Between a rollout loop and the context manager. The rows of a shared prompt stand side by side in the batch, so that a
backend which reads equal prompts once (``actor.hf.share_prompts``, the prefix caches of servers) does so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragen.llm_agent.rollout.actor import requests_of
from ragen.llm_agent.tokens.dataproto import object_array
from ragen.llm_agent.tokens.prompt_batch import AnyBatch, PromptBatch
from ragen.llm_agent.tokens.sampled_tokens import RawReply
from ragen.llm_agent.trees.counts import sizes

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.rollout.growth import PromptWriter

Cache = dict[str, Any]


class SharedPrompts:
    """Writes the prompts of one turn, and reads the replies.

    Attributes:
        tokens: Environment id to what its turn took: its reply, and of those that share a prompt the first one the
            prompt too. Known once the replies were read.
    """

    def __init__(
        self,
        ctx_manager: PromptWriter,
        shared: Sequence[Sequence[Cache]],
        tokenizer: Any,
        on_read: Callable[[Mapping[int, int]], None],
    ) -> None:
        """Take who shares a prompt.

        Args:
            ctx_manager: Writes and reads.
            shared: The rollout caches of those that play, in stretches of such that stand at the same point.
            tokenizer: Counts the tokens of replies of which nobody tells them.
            on_read: Is told ``tokens`` as soon as the replies were read.
        """
        self._ctx_manager = ctx_manager
        self._shared = shared
        self._tokenizer = tokenizer
        self._on_read = on_read
        self.tokens: dict[int, int] = {}

    def get_prompts(self, _: Sequence[Cache], with_tokens: bool = True) -> PromptBatch:
        """See :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_prompts`; a row for each reply to ask for.

        Tokens are there in any case, since trees count them.
        """
        return self._repeated(self._ctx_manager.get_prompts([alike[0] for alike in self._shared]))

    def get_lm_inputs(self, _: Sequence[Cache]) -> DataProto:
        """See :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_lm_inputs`; a row for each reply to ask for."""
        return self._repeated(self._ctx_manager.get_lm_inputs([alike[0] for alike in self._shared]))

    def _repeated(self, batch: Any) -> Any:
        """Every row as often as its prompt is shared, each with the id of who asks."""
        for alike, request in zip(self._shared, requests_of(batch), strict=True):
            self.tokens |= {cache["env_id"]: 0 for cache in alike}
            self.tokens[alike[0]["env_id"]] = len(request.prompt_ids or ())
        places = [place for place, alike in enumerate(self._shared) for _ in alike]
        columns = {name: values[places] for name, values in batch.non_tensor_batch.items()}
        kind = columns["env_ids"].dtype
        columns["env_ids"] = object_array(cache["env_id"] for alike in self._shared for cache in alike).astype(kind)
        if isinstance(batch, PromptBatch):
            return PromptBatch(columns, batch.meta_info)
        return type(batch)(None if batch.batch is None else batch.batch[places], columns, batch.meta_info)

    def get_env_inputs(self, lm_outputs: AnyBatch) -> list[dict[str, Any]]:
        """See :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_env_inputs`."""
        inputs = self._ctx_manager.get_env_inputs(lm_outputs)
        for each in inputs:
            self.tokens[each["env_id"]] += self._reply_size(each["llm_raw_response"])
        self._on_read(self.tokens)
        return inputs

    def _reply_size(self, raw: Any) -> int:
        exchange = raw.exchange if isinstance(raw, RawReply) else None
        if exchange is not None and exchange.has_tokens:
            return sizes(exchange)[1]
        return len(self._tokenizer([str(raw)], add_special_tokens=False)["input_ids"][0])
