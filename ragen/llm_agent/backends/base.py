"""What a backend is: it answers prompts, and knows nothing of environments, ``DataProto`` or the rollout loop.

A backend derives from :class:`Backend`, one for a server from
:class:`~ragen.llm_agent.backends.streaming.StreamingBackend`. It gets chats, and where the
caller has a tokenizer also the chats' token rows, and gives texts, and where it knows them the token ids that it
sampled with their log-probabilities (token in, token out keeps a trainer's probabilities equal to the rollout's).
Nothing here imports torch.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from ragen.errors import ConfigError

SAMPLING_BOUNDS: dict[str, tuple[float, float | None]] = {
    "max_completion_tokens": (1, None),
    "max_tokens": (1, None),
    "temperature": (0, None),
    "top_p": (0, 1),
}
"""What each number of a request may be, at least and at most."""
_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Sampling:
    """How replies are drawn; the fields are those of ``actor_rollout_ref.rollout`` and its ``val_kwargs``.

    Attributes:
        do_sample: False asks for the likeliest reply, whatever the temperature.
        temperature: Divides the logits.
        top_p: Draw from the smallest set of tokens with this much probability.
        top_k: Draw from this many of the likeliest tokens; -1 means all.
        max_tokens: The most tokens that one reply may have.
    """

    do_sample: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 400

    @property
    def greedy(self) -> bool:
        """Whether the likeliest reply is asked for."""
        return not self.do_sample or self.temperature <= 0


@dataclass(frozen=True)
class Request:
    """One prompt to answer.

    Attributes:
        env_id: Who asks; the same prompt of two environments is two requests.
        turn: Which turn of the episode this is, from 0.
        tag: The environment's tag.
        messages: The chat in OpenAI form, its last message the user's.
        prompt_ids: The chat's tokens up to where the reply begins, without padding; None where it was not tokenized.
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

    Its texts are made valid Unicode here, where they enter, so that they can be tokenized, printed and written.

    Attributes:
        text: The reply, without the prompt and without special tokens.
        token_ids: The sampled tokens, the end token included; None where the backend does not know them.
        log_probs: The log-probability of each of ``token_ids``, as sampled; None where unknown.
        prompt_ids: The prompt's tokens, where a server made them and not the request.
        cut_off: Whether the reply is not at its end, but was as long as it may be.
        finish_reason: Why the server ended it, in its words; None where it says nothing.
        refused: Whether the server says that the model refused.
        tool_calls: How many tools it wanted to call; none is called.
        error: Why there is no reply. Only this request's trajectory ends then, not the batch.
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
    usage: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """See to the texts."""
        object.__setattr__(self, "text", valid_text(self.text))
        if self.error is not None:
            object.__setattr__(self, "error", valid_text(self.error))


class Activity:
    """What a backend is doing now, and has done: for a progress bar, from any thread.

    Attributes:
        under_way: Requests that were asked and not answered yet.
        replies: Replies that came.
        kept: How many of them an earlier run had got.
        usage: What the replies of this run used, added up; see :class:`Reply`.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = Lock()
        self.under_way = self.replies = self.kept = 0
        self.usage: Counter[str] = Counter()

    @contextmanager
    def asking(self, requests: int = 1) -> Iterator[None]:
        """So many requests are under way within the block."""
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
            usage: What it used; counted unless an earlier run has done so.
            is_reply: Whether it is a reply, and not the last of a request's failures.
            is_kept: Whether an earlier run had got it.
        """
        with self._lock:
            self.replies += is_reply
            self.kept += is_kept
            if not is_kept:
                self.usage.update(usage)


def reply_facts(reply: Reply) -> dict[str, Any]:
    """What a row has of a reply beside its text: what followed from prompt and sampling, so no times.

    Returns:
        ``prompt_tokens``, ``completion_tokens``, ``cost`` and ``finish_reason`` where they are known; ``cut_off``,
        ``filtered``, ``refused``, ``empty`` and ``tool_calls`` only where they are so. Empty where nothing is known.
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


def valid_text(text: str) -> str:
    """A text in which every half of a surrogate pair is the replacement character; JSON may well have such halves."""
    return _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)


@runtime_checkable
class Backend(Protocol):
    """Answers prompts in batches. Derive from it: what is given here is what holds unless a class says otherwise.

    Attributes:
        thread_safe: Whether ``generate`` may be called from several threads at a time.
        takes_tokens: Whether it answers a prompt's tokens, which are then in the model's own; else its chat.
        samples: Whether replies are drawn as ``Sampling`` says. A script draws in its own way.
    """

    thread_safe: ClassVar[bool] = False
    takes_tokens: ClassVar[bool] = False
    samples: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """Make one from the whole configuration; its own keys are those under ``actor``.

        Args:
            config: The whole configuration.
            tokenizer: The tokenizer of the chats' token rows, for backends that take them.

        Raises:
            ConfigError: A key is missing or has a value that cannot work. Checked here, before environments are built.
        """
        raise ConfigError(f"{cls.__name__} cannot be created from a configuration; pass an object to LLMAgentProxy.")

    @abstractmethod
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """Answer every request, in the order of the requests.

        Args:
            requests: Prompts of any length and from any environments; may be empty.
            sampling: How to draw the replies.

        Returns:
            One reply per request. A request that cannot be answered gets a reply with ``error`` set.
        """

    def close(self) -> None:
        """Give back models, clients and processes; may be called twice."""

    @property
    def title(self) -> str:
        """The backend and its model, for people; empty for the backend's name in the configuration."""
        return ""

    @property
    def lacks_log_probs(self) -> str:
        """Why replies come without the log-probabilities of their tokens, and what to set; empty if they come with."""
        return ""
