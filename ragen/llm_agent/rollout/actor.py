"""Adapts backends, and actors of other projects, to the loop of a rollout.

A :class:`BackendActor` answers requests, and also batches of RAGEN's loop, see :mod:`ragen.llm_agent.backends.batch`.

Workers of RAGEN 2026 get a mode with every batch of prompts, so that weights are switched once per rollout. A verl
worker that trains and generates keeps weights for each. RAGEN's switches to those for generation at
``meta_info["mode"]`` ``singleturn`` or ``multiturn-start``, and back at ``singleturn`` or ``multiturn-end``; without a
mode it switches there and back for every turn. If all episodes end early, a last batch with ``skip_generation``
switches back without generating.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from envlanes.returned import wrong
from ragen.errors import BackendError, ConfigError
from ragen.llm_agent.backends.base import (
    Activity,
    Backend,
    Reply,
    Request,
    Sampling,
    StreamingBackend,
    reply_facts,
)
from ragen.llm_agent.backends.batch import outputs_of, read_sampling, requests_of
from ragen.llm_agent.backends.reply_journal import ReplyJournal, reply_key
from ragen.llm_agent.backends.verl import VerlActor, is_worker_group

if TYPE_CHECKING:
    from ragen.llm_agent.batches.dataproto import AnyBatch


@runtime_checkable
class GeneratesSequences(Protocol):
    """RAGEN's actor interface: a worker group of verl, RAGEN's wrappers, or a user's own class."""

    def generate_sequences(self, prompts: Any) -> Any:
        """Answer a ``DataProto`` of prompts with a ``DataProto`` of replies."""


SINGLE, START, MIDDLE, END = "singleturn", "multiturn-start", "multiturn-middle", "multiturn-end"


class Actor:
    """Anything with ``generate_sequences``, as a rollout uses it.

    Attributes:
        backend: The backend behind it, if any.
        activity: Its current and past activity.
        replies: Facts about each reply of the last episode, by environment id; see
            :func:`~ragen.llm_agent.backends.base.reply_facts`.
    """

    backend: Backend | None = None

    def __init__(self, given: Any) -> None:
        """Wrap the object."""
        self._given = given
        self._last: Any = None
        self.activity = Activity()
        self.replies: dict[int, list[dict[str, Any]]] = {}
        if isinstance(given, Backend):
            self.backend = given

    def generate_sequences(self, lm_inputs: Any) -> Any:
        """Answer a batch of prompts."""
        self._last = lm_inputs
        return self._given.generate_sequences(lm_inputs)

    @contextmanager
    def turns(self, most: int) -> Iterator[Iterator[str]]:
        """The mode of each turn of a rollout; at the end of the block, workers hear of an early end."""
        modes = iter([START, *[MIDDLE] * (most - 2), END] if most > 1 else [SINGLE])
        self._last = None
        yield modes
        if self._last is not None and next(modes, None) is not None:
            self._last.meta_info = {**self._last.meta_info, "mode": END, "skip_generation": True}
            self._given.generate_sequences(self._last)

    @property
    def usage(self) -> dict[str, float]:
        """The total usage of replies over all batches, or that of the journal; empty if unknown."""
        return {}

    @property
    def title(self) -> str:
        """The actor's display name."""
        return type(self._given).__name__


def actor_of(given: Any, config: Any, tokenizer: Any) -> Actor:
    """An actor for a backend, a worker group or any other object, which answers batches of any size.

    Args:
        given: A backend, a worker group, or anything with ``generate_sequences``.
        config: The whole configuration.
        tokenizer: The actor's tokenizer.

    Raises:
        ConfigError: It is none of these, or a sampling parameter is invalid.
    """
    if isinstance(given, Actor):
        return given
    if is_worker_group(given):
        return Actor(VerlActor(given, tokenizer))
    if isinstance(given, GeneratesSequences):
        return Actor(given)
    if isinstance(given, Backend):
        return BackendActor(given, config, tokenizer)
    raise ConfigError(
        f"the actor is a {type(given).__name__}; expected a backend, which derives from "
        "ragen.llm_agent.backends.Backend, or an object with generate_sequences, such as a worker group of verl."
    )


class BackendActor(Actor):
    """Answers batches with a backend; the attributes are those of :class:`Actor`.

    Attributes:
        backend: The backend.
        journal: The journal of its replies; None for none. Set it before the first prompt.
    """

    backend: Backend
    journal: ReplyJournal | None = None

    def __init__(self, backend: Backend, config: Any, tokenizer: Any) -> None:
        """Wrap a backend, and read the sampling parameters.

        Args:
            backend: Answers the prompts.
            config: The whole configuration, of which ``actor_rollout_ref.rollout`` is read.
            tokenizer: Its padding token pads rows of replies.

        Raises:
            ConfigError: A key of the section has an invalid value.
        """
        super().__init__(backend)
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
        return outputs_of(lm_inputs, self.answer(requests_of(lm_inputs), lm_inputs.meta_info), self._pad_id)

    def answer(self, requests: Sequence[Request], meta_info: Mapping[str, Any]) -> list[Reply]:
        """Answer a batch of requests; see :meth:`generate_sequences` for ``meta_info``."""
        sampling = self.sampling(meta_info)
        if self._streaming is not None:
            replies: Sequence[Reply] = [
                future.result() for future in [self.submit(request, sampling) for request in requests]
            ]
        else:
            replies = self._generated(requests, sampling)
        return self.noted(requests, replies)

    @contextmanager
    def turns(self, most: int) -> Iterator[Iterator[str]]:
        """See :class:`Actor`; a backend needs no modes."""
        yield repeat("")

    def submit(self, request: Request, sampling: Sampling) -> Future[Reply]:
        """Ask a streaming backend, unless the journal has the reply; see :meth:`StreamingBackend.submit`.

        Returns:
            A future of the reply, which is in the journal by then; it raises StorageError if that is impossible.
        """
        assert self._streaming is not None
        journal = self.journal
        if journal is None:
            return self._streaming.submit(request, sampling)
        key = reply_key(request, sampling)
        answered: Future[Reply] = Future()
        if (known := journal.find(key)) is not None:
            self.activity.answered(known[0].usage, is_kept=True)
            answered.set_result(known[0])
            return answered

        def arrives(future: Future[Reply]) -> None:
            try:
                reply = future.result()
                journal.add([(key, reply)])
                answered.set_result(reply)
            except CancelledError:
                answered.cancel()
            except Exception as error:
                answered.set_exception(error)

        self._streaming.submit(request, sampling).add_done_callback(arrives)
        return answered

    def _generated(self, requests: Sequence[Request], sampling: Sampling) -> Sequence[Reply]:
        """The replies of a batch, from the journal if it has all of them: one may depend on the rest of its batch."""
        backend, journal = self.backend, self.journal
        keys = [] if journal is None else [reply_key(request, sampling, backend.position) for request in requests]
        known = [found for key in keys if journal is not None and (found := journal.find(key)) is not None]
        if known and len(known) == len(requests):
            for reply, backend.position in known:
                self.activity.answered(reply.usage, is_kept=True)
            return [reply for reply, _ in known]
        with self.activity.asking(len(requests)):
            replies = backend.generate(requests, sampling)
        check_replies(backend, replies, len(requests))
        if journal is not None:
            journal.add(zip(keys, replies, strict=True), backend.position)
        for reply in replies:
            self.activity.answered(reply.usage, is_reply=reply.is_answer)
        return replies

    @property
    def usage(self) -> dict[str, float]:
        """See :class:`Actor`."""
        return dict(self._usage) if self.journal is None else self.journal.usage

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
        """Count replies, and return them with valid tokens; see :func:`in_vocabulary`."""
        for request, reply in zip(requests, replies, strict=True):
            self._usage.update(reply.usage)
            facts = self.replies.setdefault(request.env_id, [])
            if request.turn == 0:
                facts.clear()
            if reply.is_answer:
                facts.append(reply_facts(reply))
        return [in_vocabulary(reply, self._vocabulary) for reply in replies]


def check_replies(backend: Backend, replies: Any, count: int) -> None:
    """Check what a backend, which may be a user's own class, returned for this many requests.

    Raises:
        BackendError: It is no sequence of one :class:`Reply` for each.
    """
    is_list = isinstance(replies, Sequence) and not isinstance(replies, str) and len(replies) == count
    if not is_list or not all(isinstance(reply, Reply) for reply in replies):
        expected = f"a list of {count} ragen.llm_agent.backends.Reply, one for each request"
        raise BackendError(f"{wrong(backend, 'generate', replies, expected)}.")


def in_vocabulary(reply: Reply, size: int) -> Reply:
    """A reply without its tokens if a server returned some that the tokenizer lacks, since they cannot be trained on.

    Args:
        reply: The reply.
        size: Number of tokens of the tokenizer.
    """
    if reply.prompt_ids is None or max((*reply.prompt_ids, *(reply.token_ids or ())), default=0) < size:
        return reply
    return replace(reply, token_ids=None, log_probs=None, prompt_ids=None)
