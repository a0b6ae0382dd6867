"""The interface of a backend: it answers prompts, independent of environments, ``DataProto`` and the rollout loop.

A backend derives from :class:`Backend`, one for a server from
:class:`~ragen.llm_agent.backends.base.StreamingBackend`. It receives chats, and their tokens if the caller has a
tokenizer. It returns texts and, if available, the sampled token ids with their log-probabilities (token in, token out
keeps a trainer's probabilities equal to the rollout's). Nothing here imports torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from ragen.errors import BackendError, ConfigError, InputError
from ragen.files import valid_text

TOKENS = ("prompt_tokens", "completion_tokens")
"""Names of the token counts in a reply's usage."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; the fields are those of ``actor_rollout_ref.rollout`` and its ``val_kwargs``.

    Attributes:
        do_sample: False decodes greedily, whatever the temperature.
        temperature: Divides the logits.
        top_p: Sample from the smallest set of tokens with this total probability.
        top_k: Sample from this many of the most likely tokens; -1 means all.
        max_tokens: Maximum number of tokens of a reply.
    """

    do_sample: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 400

    @property
    def greedy(self) -> bool:
        """Whether decoding is greedy."""
        return not self.do_sample or self.temperature <= 0


@dataclass(frozen=True)
class Request:
    """One prompt to answer.

    Attributes:
        env_id: The environment; the same prompt of two environments is two requests.
        turn: Index of the turn in its episode, from 0.
        tag: The environment's tag.
        messages: The chat in OpenAI form, its last message the user's.
        prompt_ids: The chat's tokens up to where the reply begins, without padding; None if it was not tokenized.
        images: The images that the chat's ``<images>`` marks stand for, in order.
    """

    env_id: int
    turn: int
    tag: str
    messages: Sequence[dict[str, Any]]
    prompt_ids: Sequence[int] | None = None
    images: Sequence[Any] = ()


@dataclass(frozen=True)
class Reply:
    """The answer to one request.

    Its texts are made valid Unicode here, so that they can be tokenized, printed and written.

    Attributes:
        text: The reply, without the prompt and without special tokens.
        token_ids: The sampled tokens, including the end token; None if the backend does not know them.
        log_probs: The log-probability of each of ``token_ids``, as sampled; None if unknown.
        prompt_ids: The prompt's tokens, if a server tokenized it instead of the request.
        cut_off: Whether the reply was truncated at the maximum length.
        finish_reason: The server's reason for ending it; None if it sent none.
        refused: Whether the server reported that the model refused.
        tool_calls: Number of tool calls that the model requested; none is executed.
        error: The reason that there is no reply. Only this request's trajectory ends then, not the batch.
        out_of_context: The reason that there is no reply if the prompt does not fit the model's context. The
            model cannot go on: its episode is over, truncated, and counts.
        usage: Counts to add up over a run, such as ``{"prompt_tokens": 812, "completion_tokens": 40, "cost": 0.002}``.
    """

    text: str
    token_ids: Sequence[int] | None = None
    log_probs: Sequence[float] | None = None
    prompt_ids: Sequence[int] | None = None
    cut_off: bool = False
    finish_reason: str | None = None
    refused: bool = False
    tool_calls: int = 0
    error: str | None = None
    out_of_context: str | None = None
    usage: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the texts valid Unicode.

        Raises:
            BackendError: The text is none.
        """
        if not isinstance(self.text, str):
            raise BackendError(f"a Reply's text is {self.text!r}; expected a str, beside error='why' for no reply.")
        object.__setattr__(self, "text", valid_text(self.text))
        for name in ("error", "out_of_context"):
            if (reason := getattr(self, name)) is not None:
                object.__setattr__(self, name, valid_text(reason))

    @property
    def is_answer(self) -> bool:
        """Whether the model replied."""
        return self.error is None and self.out_of_context is None


class Activity:
    """The current and past activity of a backend: for a progress bar, from any thread.

    Attributes:
        under_way: Number of requests sent and not yet answered.
        replies: Number of replies received.
        kept: Number of them that an earlier run had received.
        usage: The total usage of this run's replies; see :class:`Reply`.
        failure: Error of the latest attempt, if no reply was received since; otherwise empty.
    """

    def __init__(self) -> None:
        """Begin with zero counts."""
        self._lock = Lock()
        self.under_way = self.replies = self.kept = 0
        self.failure = ""
        self.usage: Counter[str] = Counter()

    @contextmanager
    def asking(self, requests: int = 1) -> Iterator[None]:
        """Count requests as under way within the block."""
        with self._lock:
            self.under_way += requests
        try:
            yield
        finally:
            with self._lock:
                self.under_way -= requests

    def answered(self, usage: Mapping[str, float], is_reply: bool = True, is_kept: bool = False) -> None:
        """Count an answer.

        Args:
            usage: Its usage; counted unless an earlier run has counted it.
            is_reply: Whether it is a reply, and not the last failure of a request.
            is_kept: Whether an earlier run had received it.
        """
        with self._lock:
            self.replies += is_reply
            self.kept += is_kept
            if is_reply and not is_kept:
                self.failure = ""
            if not is_kept:
                self.usage.update(usage)


def tokens_of(usage: Mapping[str, float]) -> float:
    """The tokens of prompts and replies together; see :class:`Reply`."""
    return sum(usage.get(name, 0) for name in TOKENS)


def reply_facts(reply: Reply) -> dict[str, Any]:
    """The facts about a reply, beside its text, that are stored in a row; no times, since rows must be reproducible.

    Returns:
        ``prompt_tokens``, ``completion_tokens``, ``cost`` and ``finish_reason`` if known; ``cut_off``, ``filtered``,
        ``refused``, ``empty`` and ``tool_calls`` only if true or nonzero.
    """
    known: dict[str, Any] = {
        name: reply.usage[name] for name in ("prompt_tokens", "completion_tokens", "cost") if name in reply.usage
    }
    if reply.finish_reason is not None:
        known["finish_reason"] = reply.finish_reason
    if not known:
        return {}
    so = {
        "cut_off": reply.cut_off,
        "filtered": reply.finish_reason == "content_filter",
        "refused": reply.refused,
        "empty": not reply.text.strip(),
        "tool_calls": reply.tool_calls,
    }
    return known | {name: value for name, value in so.items() if value}


@runtime_checkable
class Backend(Protocol):
    """Answers prompts in batches. Derive from it; the values here are the defaults.

    Attributes:
        takes_tokens: Whether it takes a prompt's tokens, from the model's own tokenizer, instead of its chat.
        position: State that its next samples depend on beside prompts, such as the number of batches that it has
            answered; a journal sets it where it answers in the backend's place. 0 if they depend on nothing else.
    """

    takes_tokens: ClassVar[bool] = False
    position: int = 0

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """Create a backend from the whole configuration; its own keys are under ``actor``.

        Args:
            config: The whole configuration.
            tokenizer: The tokenizer of the chats' token rows, for backends that take them.

        Raises:
            ConfigError: A key is missing or invalid. Checked here, before environments are built.
        """
        raise ConfigError(f"{cls.__name__} cannot be created from a configuration; pass an object to LLMAgentProxy.")

    @abstractmethod
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """Answer every request, in the order of the requests.

        Args:
            requests: Prompts of any length and from any environments; may be empty.
            sampling: The sampling parameters.

        Returns:
            One reply per request. A request that cannot be answered gets a reply with ``error`` or
            ``out_of_context`` set.
        """

    def close(self) -> None:
        """Release models, clients and processes; may be called twice."""

    @property
    def title(self) -> str:
        """A display name of the backend and its model; empty for the backend's name in the configuration."""
        return ""


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that answers each request as soon as it can, so that each trajectory can run at its own pace.

    Attributes:
        activity: The activity of this run.
        grace: Maximum seconds that :meth:`settle` waits.
    """

    activity: Activity
    grace: float

    @abstractmethod
    def submit(self, request: Request, sampling: Sampling) -> Future[Reply]:
        """Submit a request without waiting; from any thread.

        Args:
            request: The request.
            sampling: The sampling parameters.

        Returns:
            A future of the reply, which has ``error`` set if the request failed.
        """

    @abstractmethod
    def settle(self) -> None:
        """Stop sending submitted requests, wait for the replies under way, and cancel the rest."""


# Backends that work on tokens: neither prompts nor replies are converted to text and back

MAX_MODEL_LEN = "actor_rollout_ref.rollout.max_model_len"


def prompt_ids(request: Request) -> list[int]:
    """A request's prompt as tokens.

    Raises:
        InputError: It was not tokenized.
    """
    if request.prompt_ids is None:
        raise InputError(
            f"the prompt of env {request.env_id} has no tokens; this backend answers what "
            "ContextManager.get_lm_inputs makes, with input_ids."
        )
    return list(request.prompt_ids)


def unanswerable(request: Request, max_tokens: int, context: int | None) -> Reply | None:
    """The reply to a prompt that is empty or leaves no room in the model's context; None if it fits."""
    length = len(prompt_ids(request))
    if not length:
        return Reply("", error="the prompt is empty, and a model needs at least one token")
    if context is None or length + max_tokens <= context:
        return None
    return Reply(
        "",
        out_of_context=f"the prompt has {length} tokens, a reply up to {max_tokens}, and the model's context ends at "
        f"{context}",
    )


def check_context(wanted: int | None, context: int | None, model: str) -> None:
    """Check that the configured contexts fit into the model.

    Args:
        wanted: ``actor_rollout_ref.rollout.max_model_len``, None if unlimited.
        context: The model's context length, None if unknown.
        model: Its name.

    Raises:
        ConfigError: They do not fit.
    """
    if wanted is not None and context is not None and wanted > context:
        raise ConfigError(
            f"configuration key {MAX_MODEL_LEN!r} is {wanted}, and the context of model {model!r} ends at {context} "
            "tokens; expected at most that."
        )


def end_ids(tokenizer: Any, *others: int | Sequence[int] | None) -> set[int]:
    """The tokens that end a reply: the tokenizer's end token, and those of the model's configuration."""
    ends = {tokenizer.eos_token_id}
    for other in others:
        ends.update([other] if isinstance(other, int) else other or [])
    return ends - {None}


def cut_at_end(ids: Sequence[int], ends: Collection[int]) -> list[int]:
    """A row of sampled tokens up to and including the first end token; the rest is padding."""
    place = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
    return list(ids[: place + 1])
