"""Adapts a backend to the actor of RAGEN's rollout loop, which maps ``DataProto`` to ``DataProto``.

The input is a batch of ``ContextManager.get_lm_inputs``: ``non_tensor_batch`` has ``env_ids``, ``group_ids``,
``messages_list``, with images ``multi_modal_data``, and, if the loop adds them, ``tags`` and ``turns``; ``batch`` has
left-padded ``input_ids`` and their ``attention_mask``. The output has ``env_ids``, ``group_ids``, ``response_texts``,
``errors`` and ``out_of_context`` (both None for a reply) and ``exchanges`` (known tokens of prompt and reply, for the
training batch); if all replies' tokens are known, also right-padded ``responses`` and ``response_mask``, and, if known,
``rollout_log_probs``.

In a batch of ``get_prompts``, the tokens are the column ``prompt_ids``, and the output has no tensors.

Workers of RAGEN 2026 get a mode with every batch of prompts, so that weights are switched once per rollout. A verl
worker that trains and generates keeps weights for each. RAGEN's switches to those for generation at
``meta_info["mode"]`` ``singleturn`` or ``multiturn-start``, and back at ``singleturn`` or ``multiturn-end``; without a
mode it switches there and back for every turn. If all episodes end early, a last batch with ``skip_generation``
switches back without generating.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, overload, runtime_checkable

from envlanes.returned import wrong
from ragen.errors import BackendError, ConfigError, counted
from ragen.llm_agent.backends.base import (
    SAMPLING_BOUNDS,
    Activity,
    Backend,
    Reply,
    Request,
    Sampling,
    reply_facts,
)
from ragen.llm_agent.backends.streaming import StreamingBackend
from ragen.results.rows import LEFT_OUT
from ragen.settings import count, number, override_key, setting

if TYPE_CHECKING:
    from torch import Tensor
    from verl import DataProto

    from ragen.llm_agent.tokens.dataproto import AnyBatch, PromptBatch
    from ragen.llm_agent.tokens.sampled_tokens import Exchange


_ROLLOUT = "actor_rollout_ref.rollout"


@runtime_checkable
class GeneratesSequences(Protocol):
    """RAGEN's actor interface: a worker group of verl, RAGEN's wrappers, or a user's own class."""

    def generate_sequences(self, prompts: Any) -> Any:
        """Answer a ``DataProto`` of prompts with a ``DataProto`` of replies."""


class Actor(ABC):
    """Answers the batches of a rollout loop; the defaults apply to an actor of another project.

    Attributes:
        takes_prompts: Whether batches may come without tensors.
        needs_tokens: Whether it needs a prompt's tokens, not only its chat.
        backend: The backend behind it, if any.
        activity: Its current and past activity.
        replies: Facts about each reply of the last episode, by environment id; see
            :func:`~ragen.llm_agent.backends.base.reply_facts`.
    """

    takes_prompts: ClassVar[bool] = False
    needs_tokens: bool = True
    backend: Backend | None = None

    def __init__(self) -> None:
        """Begin with zero counts."""
        self.activity = Activity()
        self.replies: dict[int, list[dict[str, Any]]] = {}

    @abstractmethod
    def generate_sequences(self, lm_inputs: Any) -> Any:
        """Answer a batch of prompts."""

    @property
    def usage(self) -> dict[str, float]:
        """The total usage of replies over all batches, or that of the journal; empty if unknown."""
        return {}

    @property
    def title(self) -> str:
        """The actor's display name."""
        return type(self).__name__


class ForeignActor(Actor):
    """Anything with ``generate_sequences``.

    Attributes:
        given: The object.
    """

    def __init__(self, given: GeneratesSequences) -> None:
        """Wrap the object."""
        super().__init__()
        self.given = given
        if isinstance(given, Backend):
            self.backend = given

    @property
    def title(self) -> str:
        """The class's name."""
        return type(self.given).__name__

    def generate_sequences(self, lm_inputs: Any) -> Any:
        """See :class:`Actor`."""
        return self.given.generate_sequences(lm_inputs)


class BackendActor(Actor):
    """Answers batches with a backend; the attributes are those of :class:`Actor`.

    Attributes:
        backend: The backend.
    """

    takes_prompts: ClassVar[bool] = True
    backend: Backend

    def __init__(self, backend: Backend, config: Any, tokenizer: Any) -> None:
        """Wrap a backend, and read the sampling parameters.

        Args:
            backend: Answers the prompts.
            config: The whole configuration, of which ``actor_rollout_ref.rollout`` is read.
            tokenizer: Its padding token pads rows of replies.

        Raises:
            ConfigError: A key of the section has an invalid value.
        """
        super().__init__()
        self.backend = backend
        self.needs_tokens = backend.takes_tokens
        self._usage: Counter[str] = Counter()
        self._streaming = backend if isinstance(backend, StreamingBackend) else None
        if self._streaming is not None:
            self.activity = self._streaming.activity
        self._sampling = {validate: read_sampling(config, validate) for validate in (False, True)}
        self._vocabulary = len(tokenizer)
        self._pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def generate_sequences(self, lm_inputs: AnyBatch) -> AnyBatch:
        """Answer a batch of prompts, with a batch of its kind.

        Args:
            lm_inputs: The prompts; ``meta_info["validate"]`` selects the sampling of ``val_kwargs``, and
                ``meta_info["do_sample"]``, if present, overrides both. With ``skip_generation``, which ends a rollout,
                they are returned unchanged.
        """
        if lm_inputs.meta_info.get("skip_generation", False):
            return lm_inputs
        requests = requests_of(lm_inputs)
        with nullcontext() if self._streaming is not None else self.activity.asking(len(requests)):
            replies = self.backend.generate(requests, self.sampling(lm_inputs.meta_info))
        return outputs_of(lm_inputs, self.noted(requests, replies), self._pad_id)

    @property
    def usage(self) -> dict[str, float]:
        """See :class:`Actor`."""
        journal = self._streaming.journal if self._streaming is not None else None
        return dict(self._usage) if journal is None else journal.usage

    @property
    def title(self) -> str:
        """The backend's own title."""
        return self.backend.title

    def sampling(self, meta_info: Mapping[str, Any]) -> Sampling:
        """The sampling parameters for a batch with this ``meta_info``; see :meth:`generate_sequences`."""
        sampling = self._sampling[bool(meta_info.get("validate", False))]
        do_sample = meta_info.get("do_sample")
        return sampling if do_sample is None else replace(sampling, do_sample=bool(do_sample))

    def noted(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Reply]:
        """Count replies, and return them with valid tokens; see :func:`in_vocabulary`.

        Raises:
            BackendError: The backend returned something else than a reply for each request.
        """
        check_replies(self.backend, replies, len(requests))
        for request, reply in zip(requests, replies, strict=True):
            self._usage.update(reply.usage)
            if self._streaming is None:
                self.activity.answered(reply.usage, is_reply=reply.is_answer)
            facts = self.replies.setdefault(request.env_id, [])
            if request.turn == 0:
                facts.clear()
            if reply.is_answer:
                facts.append(reply_facts(reply, request))
        return [in_vocabulary(reply, self._vocabulary) for reply in replies]


def check_replies(backend: Backend, replies: Any, count: int) -> None:
    """Check what a backend, which may be a user's own class, returned for this many requests.

    Raises:
        BackendError: It is no sequence of one :class:`Reply` for each.
    """
    expected = f"a list of {count} Reply, one for each request"
    if isinstance(replies, str) or not isinstance(replies, Sequence):
        raise BackendError(f"{wrong(backend, 'generate', replies, expected)}.")
    if len(replies) != count:
        given = f"{counted(len(replies), 'reply', 'replies')} to {counted(count, 'request')}"
        raise BackendError(f"{type(backend).__name__}.generate() returned {given}; expected {expected}.")
    for place, reply in enumerate(replies, 1):
        if not isinstance(reply, Reply):
            part, kind = f"reply {place} of {count}", "a Reply of ragen.llm_agent.backends"
            raise BackendError(f"{wrong(backend, 'generate', reply, kind, part)}.")


def in_vocabulary(reply: Reply, size: int) -> Reply:
    """A reply without its tokens if a server returned some that the tokenizer lacks, since they cannot be trained on.

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
    """Replies to a batch of prompts as a batch of the same kind; see the module for columns.

    Args:
        lm_inputs: The prompts.
        replies: One for each.
        pad_id: The padding token.
    """
    from ragen.llm_agent.tokens.dataproto import PromptBatch, object_array

    given = lm_inputs.non_tensor_batch
    columns = {
        **{name: given[name] for name in ("env_ids", "group_ids") if name in given},
        "response_texts": object_array(reply.text for reply in replies),
        "errors": object_array(reply.error for reply in replies),
        "out_of_context": object_array(reply.out_of_context for reply in replies),
        "exchanges": object_array(exchanges_of(lm_inputs, replies)),
    }
    meta_info = dict(lm_inputs.meta_info)
    if isinstance(lm_inputs, PromptBatch):
        return PromptBatch(columns, meta_info)
    from verl import DataProto

    return DataProto.from_dict(tensors=token_rows(replies, pad_id), non_tensors=columns, meta_info=meta_info)


def exchanges_of(lm_inputs: AnyBatch, replies: Sequence[Reply]) -> list[Exchange]:
    """The prompts and replies in tokens; for a chat that a server tokenized, as far as it returned them."""
    chats = lm_inputs.non_tensor_batch.get("messages_list", [()] * len(replies))
    has_tokens = any(reply.token_ids is not None for reply in replies)
    rows = _prompt_rows(lm_inputs, len(replies)) if has_tokens else [None] * len(replies)
    return [exchange_of(*each) for each in zip(chats, rows, replies, strict=True)]


def exchange_of(chat: Sequence[dict[str, Any]], row: Sequence[int] | None, reply: Reply) -> Exchange:
    """The prompt and reply of one turn.

    Args:
        chat: The prompt.
        row: Its tokens; None if only the reply may have them.
        reply: The reply.
    """
    from ragen.llm_agent.tokens.sampled_tokens import Exchange

    prompt_ids = row if reply.prompt_ids is None else reply.prompt_ids
    if prompt_ids is None or reply.token_ids is None:
        return Exchange(cut_off=reply.cut_off)
    return Exchange.of_tokens(chat, prompt_ids, reply.token_ids, reply.log_probs, reply.cut_off)


def read_sampling(config: Any, validate: bool) -> Sampling:
    """The sampling parameters for training, or for validation, where ``val_kwargs`` take precedence.

    Raises:
        ConfigError: A key has an invalid value.
    """
    default = Sampling()

    def read(name: str, kind: type, otherwise: Any, low: float | None = None, high: float | None = None) -> Any:
        value = setting(config, f"{_ROLLOUT}.{name}", kind, otherwise)
        key, own = f"{_ROLLOUT}.{name}", f"{_ROLLOUT}.val_kwargs.{name}"
        if validate and setting(config, own, kind, None) is not None:
            key, value = own, setting(config, f"{_ROLLOUT}.val_kwargs.{name}", kind, None)
        if low is not None:
            number(config, key, otherwise, low, high)
        return value

    return Sampling(
        do_sample=read("do_sample", bool, default.do_sample),
        temperature=read("temperature", float, default.temperature, *SAMPLING_BOUNDS["temperature"]),
        top_p=read("top_p", float, default.top_p, *SAMPLING_BOUNDS["top_p"]),
        top_k=read("top_k", int, default.top_k, -1),
        max_tokens=count(config, f"{_ROLLOUT}.response_length", default.max_tokens, low=1),
    )


def check_sampling_overrides(config: Any, overrides: Sequence[str]) -> None:
    """Refuse an override of a sampling parameter that ``val_kwargs`` overrides in turn.

    Raises:
        ConfigError: It would have no effect.
    """
    if setting(config, "mode", str, None) != "val":
        return
    given = {*map(override_key, overrides)}
    for name in ("do_sample", "temperature", "top_p", "top_k"):
        key, own = f"{_ROLLOUT}.{name}", f"{_ROLLOUT}.val_kwargs.{name}"
        value, instead = setting(config, key, object, None), setting(config, own, object, None)
        if key in given and own not in given and instead not in (None, value):
            raise ConfigError(
                f"{key}={value} has no effect with mode=val, which samples with {own}={instead}: set that."
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
    left_out = columns.get(LEFT_OUT, [0] * count)
    return [
        Request(int(env_id), int(turn), str(tag), chat, row, shown, int(lacks))
        for env_id, turn, tag, chat, row, shown, lacks in zip(
            columns["env_ids"], turns, tags, chats, rows, images, left_out, strict=True
        )
    ]


def _prompt_rows(lm_inputs: AnyBatch, count: int) -> list[list[int] | None]:
    from ragen.llm_agent.tokens.dataproto import PromptBatch

    if isinstance(lm_inputs, PromptBatch):
        return list(lm_inputs.non_tensor_batch["prompt_ids"])
    if lm_inputs.batch is None or "input_ids" not in set(lm_inputs.batch.keys()):
        return [None] * count
    ids, mask = lm_inputs.batch["input_ids"], lm_inputs.batch["attention_mask"].bool()
    return [row[seen].tolist() for row, seen in zip(ids, mask, strict=True)]


def token_rows(replies: Sequence[Reply], pad_id: int) -> dict[str, Tensor] | None:
    """The replies' tokens as right-padded rows ``(batch, longest reply)``; None unless those of all replies are known.

    Returns:
        ``responses``, ``response_mask``, and ``rollout_log_probs`` (0 where padded) if all are known.
    """
    answered = [reply for reply in replies if reply.is_answer]
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


def name_requests(lm_inputs: AnyBatch, active: Sequence[Mapping[str, Any]]) -> None:
    """Add the tag and the turn, from 0, to every prompt."""
    from ragen.llm_agent.tokens.dataproto import object_array

    caches = {cache["env_id"]: cache for cache in active}
    rows = [caches[env_id] for env_id in lm_inputs.non_tensor_batch["env_ids"]]
    lm_inputs.non_tensor_batch["tags"] = object_array(cache["tag"] for cache in rows)
    lm_inputs.non_tensor_batch["turns"] = object_array(len(cache["history"]) - 1 for cache in rows)


def reasons_of(lm_outputs: AnyBatch, column: str) -> dict[int, str]:
    """Why prompts have no reply, by environment id: the column ``errors`` or ``out_of_context``."""
    reasons = lm_outputs.non_tensor_batch.get(column)
    if reasons is None:
        return {}
    env_ids = lm_outputs.non_tensor_batch["env_ids"]
    return {int(env_id): reason for env_id, reason in zip(env_ids, reasons, strict=True) if reason is not None}


# The modes of RAGEN 2026's workers


SINGLE, START, MIDDLE, END = "singleturn", "multiturn-start", "multiturn-middle", "multiturn-end"
SKIP = "skip_generation"


class WorkerModes:
    """The modes of the batches of one rollout, with one batch per turn."""

    def __init__(self, max_turn: int, meta_info: Mapping[str, Any]) -> None:
        """Begin.

        Args:
            max_turn: Maximum number of turns.
            meta_info: The caller's ``meta_info`` for workers, which stays as it is.
        """
        self._max_turn = max_turn
        self._meta_info = {**meta_info}
        self._mode = END

    def of_turn(self, turn: int) -> dict[str, Any]:
        """The ``meta_info`` of a turn, counted from 0."""
        if self._max_turn == 1:
            self._mode = SINGLE
        elif turn == 0:
            self._mode = START
        else:
            self._mode = END if turn == self._max_turn - 1 else MIDDLE
        self._meta_info["mode"] = self._mode
        return self._meta_info

    def of_end(self) -> dict[str, Any] | None:
        """The ``meta_info`` after the last turn; None if the last turn's mode has already ended the rollout."""
        if self._mode in (SINGLE, END):
            return None
        self._mode = END
        self._meta_info.update({"mode": END, SKIP: True})
        return self._meta_info
