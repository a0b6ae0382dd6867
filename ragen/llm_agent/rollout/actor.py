"""Puts a backend where RAGEN's rollout loop expects an actor: from ``DataProto`` to ``DataProto``.

A batch is read from what ``ContextManager.get_lm_inputs`` makes: in ``non_tensor_batch`` ``env_ids``, ``group_ids``,
``messages_list`` and, with images, ``multi_modal_data``; where the loop adds them also ``tags`` and ``turns``; in
``batch`` left-padded ``input_ids`` and their ``attention_mask``. The answer has ``env_ids``, ``group_ids``,
``response_texts``, ``errors`` (None where a reply came) and ``exchanges`` (what is known of prompt and reply, for the
training batch), and where every reply's tokens are known also right-padded ``responses`` and ``response_mask``, and
``rollout_log_probs`` where those are known too.

Where ``get_prompts`` made the batch, the tokens are the column ``prompt_ids``, and the answer has no tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, overload

from ragen.llm_agent.backends.activity import Activity
from ragen.llm_agent.backends.base import Backend, Reply, Request, Sampling, reply_facts
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.tokens.dataproto import object_array
from ragen.llm_agent.tokens.prompt_batch import AnyBatch, PromptBatch
from ragen.llm_agent.tokens.sampled_tokens import Exchange

if TYPE_CHECKING:
    from torch import Tensor
    from verl import DataProto

_ROLLOUT = "actor_rollout_ref.rollout"


class BackendActor:
    """Answers batches with a backend.

    Attributes:
        takes_prompts: True: batches may come without tensors.
        backend: Who answers.
        usage: The replies' counts, added up over all batches; with a journal, what it counts.
        activity: What the backend is doing now, and has done.
        replies: Environment id to what is known of each reply of its last episode; see
            :func:`~ragen.llm_agent.backends.base.reply_facts`.
    """

    takes_prompts: ClassVar[bool] = True

    def __init__(self, backend: Backend, config: Any, tokenizer: Any) -> None:
        """Take a backend and read how replies are to be drawn.

        Args:
            backend: Who answers.
            config: The whole configuration, of which ``actor_rollout_ref.rollout`` is read.
            tokenizer: Its padding token fills up rows of replies.

        Raises:
            ConfigError: A key of the section has a value of the wrong type.
        """
        self.backend = backend
        self._usage: Counter[str] = Counter()
        self.activity: Activity = getattr(backend, "activity", None) or Activity()
        self._tells_activity = hasattr(backend, "activity")
        self.replies: dict[int, list[dict[str, Any]]] = {}
        self._counting = Lock()  # several threads may ask a backend that is thread_safe
        self._sampling = {validate: read_sampling(config, validate) for validate in (False, True)}
        self._vocabulary = len(tokenizer)
        self._pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def generate_sequences(self, lm_inputs: AnyBatch) -> AnyBatch:
        """Answer a batch of prompts, with a batch of its kind.

        Args:
            lm_inputs: The prompts; ``meta_info["validate"]`` asks for the sampling of ``val_kwargs``, and
                ``meta_info["do_sample"]``, where it is there, overrides both. With ``skip_generation`` in it they come
                back as they are: a rollout is over.
        """
        if lm_inputs.meta_info.get("skip_generation", False):
            return lm_inputs
        requests = requests_of(lm_inputs)
        with nullcontext() if self._tells_activity else self.activity.asking(len(requests)):
            replies = self.backend.generate(requests, self.sampling(lm_inputs.meta_info))
        return outputs_of(lm_inputs, self.noted(requests, replies), self._pad_id)

    @property
    def usage(self) -> dict[str, float]:
        """See the class."""
        journal = getattr(self.backend, "journal", None)
        return dict(self._usage) if journal is None else journal.usage

    def sampling(self, meta_info: Mapping[str, Any]) -> Sampling:
        """How to draw replies to a batch with this ``meta_info``; see :meth:`generate_sequences`."""
        sampling = self._sampling[bool(meta_info.get("validate", False))]
        do_sample = meta_info.get("do_sample")
        return sampling if do_sample is None else replace(sampling, do_sample=bool(do_sample))

    def noted(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Reply]:
        """Replies as they may be used, after they were counted; see :func:`in_vocabulary`."""
        with self._counting:
            for request, reply in zip(requests, replies, strict=True):
                self._usage.update(reply.usage)
                if not self._tells_activity:
                    self.activity.answered(reply.usage, is_reply=reply.error is None)
                told = self.replies.setdefault(request.env_id, [])
                if request.turn == 0:
                    told.clear()
                if reply.error is None:
                    told.append(reply_facts(reply))
        return [in_vocabulary(reply, self._vocabulary) for reply in replies]


def in_vocabulary(reply: Reply, size: int) -> Reply:
    """A reply without its tokens, where a server told them and they are not all the tokenizer's: nothing learns those.

    Args:
        reply: The reply.
        size: How many tokens the tokenizer has.
    """
    if reply.prompt_ids is None or max((*reply.prompt_ids, *(reply.token_ids or ())), default=0) < size:
        return reply
    return replace(reply, token_ids=None, log_probs=None, prompt_ids=None)


@overload
def outputs_of(lm_inputs: PromptBatch, replies: Sequence[Reply], pad_id: int) -> PromptBatch: ...


@overload
def outputs_of(lm_inputs: DataProto, replies: Sequence[Reply], pad_id: int) -> DataProto: ...


def outputs_of(lm_inputs: AnyBatch, replies: Sequence[Reply], pad_id: int) -> AnyBatch:
    """Replies to a batch of prompts as a batch of its kind, which the rollout loop reads; see the module for columns.

    Args:
        lm_inputs: The prompts.
        replies: One for each.
        pad_id: Fills up rows of tokens.
    """
    columns = {
        "env_ids": lm_inputs.non_tensor_batch["env_ids"],
        "group_ids": lm_inputs.non_tensor_batch["group_ids"],
        "response_texts": object_array(reply.text for reply in replies),
        "errors": object_array(reply.error for reply in replies),
        "exchanges": object_array(exchanges_of(lm_inputs, replies)),
    }
    meta_info = dict(lm_inputs.meta_info)
    if isinstance(lm_inputs, PromptBatch):
        return PromptBatch(columns, meta_info)
    from verl import DataProto

    return DataProto.from_dict(tensors=token_rows(replies, pad_id), non_tensors=columns, meta_info=meta_info)


def exchanges_of(lm_inputs: AnyBatch, replies: Sequence[Reply]) -> list[Exchange]:
    """What was asked and answered. A server that made its own tokens of a chat must have told which."""
    chats = lm_inputs.non_tensor_batch.get("messages_list", [()] * len(replies))
    told = any(reply.token_ids is not None for reply in replies)
    rows = _prompt_rows(lm_inputs, len(replies)) if told else [None] * len(replies)
    return [exchange_of(*each) for each in zip(chats, rows, replies, strict=True)]


def exchange_of(chat: Sequence[dict[str, Any]], row: Sequence[int] | None, reply: Reply) -> Exchange:
    """What was asked and answered in one turn.

    Args:
        chat: The prompt.
        row: Its tokens; None where only the reply may know them.
        reply: The reply.
    """
    prompt_ids = row if reply.prompt_ids is None else reply.prompt_ids
    if prompt_ids is None or reply.token_ids is None:
        return Exchange(cut_off=reply.cut_off)
    return Exchange.of_tokens(chat, prompt_ids, reply.token_ids, reply.log_probs, reply.cut_off)


def read_sampling(config: Any, validate: bool) -> Sampling:
    """How replies are to be drawn in training, or at validation, where ``val_kwargs`` come first.

    Raises:
        ConfigError: A key has a value of the wrong type.
    """
    default = Sampling()

    def read(name: str, kind: type, otherwise: Any) -> Any:
        value = setting(config, f"{_ROLLOUT}.{name}", kind, otherwise)
        return setting(config, f"{_ROLLOUT}.val_kwargs.{name}", kind, value) if validate else value

    return Sampling(
        do_sample=read("do_sample", bool, default.do_sample),
        temperature=read("temperature", float, default.temperature),
        top_p=read("top_p", float, default.top_p),
        top_k=read("top_k", int, default.top_k),
        max_tokens=setting(config, f"{_ROLLOUT}.response_length", int, default.max_tokens),
    )


def requests_of(lm_inputs: AnyBatch) -> list[Request]:
    """A batch of prompts as requests, in its order."""
    columns = lm_inputs.non_tensor_batch
    count = len(columns["env_ids"])
    tags = columns.get("tags", [""] * count)
    chats = columns["messages_list"]
    turns = columns.get("turns", [sum(message["role"] == "assistant" for message in chat) for chat in chats])
    rows = _prompt_rows(lm_inputs, count)
    nothing: list[dict[str, Any]] = [{}] * count
    images = [data.get("images", ()) for data in columns.get("multi_modal_data", nothing)]
    return [
        Request(int(env_id), int(turn), str(tag), chat, row, shown)
        for env_id, turn, tag, chat, row, shown in zip(
            columns["env_ids"], turns, tags, chats, rows, images, strict=True
        )
    ]


def _prompt_rows(lm_inputs: AnyBatch, count: int) -> list[list[int] | None]:
    if isinstance(lm_inputs, PromptBatch):
        return list(lm_inputs.non_tensor_batch["prompt_ids"])
    if lm_inputs.batch is None or "input_ids" not in set(lm_inputs.batch.keys()):
        return [None] * count
    ids, mask = lm_inputs.batch["input_ids"], lm_inputs.batch["attention_mask"].bool()
    return [row[seen].tolist() for row, seen in zip(ids, mask, strict=True)]


def token_rows(replies: Sequence[Reply], pad_id: int) -> dict[str, Tensor] | None:
    """The replies' tokens as right-padded rows ``(batch, longest reply)``; None unless all that came are known.

    Returns:
        ``responses``, ``response_mask``, and ``rollout_log_probs`` (0 where padded) if all are known.
    """
    answered = [reply for reply in replies if reply.error is None]
    if not answered or any(reply.token_ids is None for reply in answered):
        return None
    ids = [list(reply.token_ids or ()) for reply in replies]
    rows = {"responses": _padded(ids, pad_id), "response_mask": _padded([[1] * len(row) for row in ids], 0)}
    if all(reply.log_probs is not None for reply in answered):
        rows["rollout_log_probs"] = _padded([list(reply.log_probs or ()) for reply in replies], 0.0)
    return rows


def _padded(rows: Sequence[Sequence[Any]], filler: float) -> Tensor:
    import torch

    width = max(map(len, rows))
    kind = torch.float32 if isinstance(filler, float) else torch.long
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows], dtype=kind)
