"""What may go wrong with a request to a server, and whether another try may work."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

from ragen.llm_agent.backends.completions import UnreadableAnswerError
from ragen.llm_agent.config.loading import one_line

_RETRIED_STATUS = frozenset({408, 409, 425, 429})

# What reading a body may raise: the client takes some bodies, such as a bare list, for what they should have been.
UNREADABLE = (UnreadableAnswerError, APIError, ValueError, TypeError, AttributeError)


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        reason: In words.
        passing: Whether it may work the next time.
        wait: Seconds after which the server asks to be tried again; None if it did not say.
        is_refusal: Whether it is one of too many requests.
    """

    reason: str
    passing: bool
    wait: float | None = None
    is_refusal: bool = False


@dataclass
class Attempts:
    """One request's tries so far.

    Attributes:
        count: How many there were.
        failure: Why the last one failed.
    """

    count: int = 0
    failure: Failure = field(default_factory=lambda: Failure("not tried", passing=True))

    @property
    def usage(self) -> dict[str, float]:
        """Their counts."""
        return {"requests": self.count, "retries": self.count - 1}


def diagnose(error: Exception) -> Failure:
    """Why a try failed, and whether another one may work."""
    if isinstance(error, TimeoutError | APITimeoutError):
        return Failure("the server did not answer in time", passing=True)
    if isinstance(error, APIConnectionError):
        return Failure(f"the connection failed: {cause_of(error)}", passing=True)
    if isinstance(error, APIStatusError):
        status, code = error.status_code, getattr(error, "code", None)
        passing = (status in _RETRIED_STATUS or status >= 500) and code != "insufficient_quota"
        return Failure(f"HTTP {status}: {_said(error)}", passing, _retry_after(error), status == 429 and passing)
    if isinstance(error, UNREADABLE):
        return Failure(f"the server's answer cannot be read: {one_line(error)}", passing=True)
    return Failure(f"{type(error).__name__}: {one_line(error)}", passing=False)


def _said(error: APIStatusError) -> str:
    body = error.body.get("message") if isinstance(error.body, Mapping) else None
    return " ".join(str(body or error.message).split())


def _retry_after(error: APIStatusError) -> float | None:
    """The seconds of a ``Retry-After`` header, in either of its forms (RFC 9110): a number of them, or a date."""
    value = error.response.headers.get("retry-after", "")
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time()


def cause_of(error: BaseException) -> str:
    """What is at the bottom of a connection's failure."""
    if isinstance(error, TimeoutError | APITimeoutError):
        return "it took too long"
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)
