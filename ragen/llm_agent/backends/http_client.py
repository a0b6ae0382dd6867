"""The HTTP client below the openai client: bounds every try of a request, and reads its answer before it is accepted.

The openai client retries lost connections and statuses such as 429 and 503. An answer that cannot be read is raised
here as a connection that failed, and an error that is sent with status 200 gets the status that it names; both are
thereby retried by the same rules.

Answers are requested uncompressed, since half a megabyte could expand into half a gigabyte. Redirects are not followed,
since requests carry a key, and the user chose the address.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from openai import DefaultAsyncHttpxClient

from ragen.errors import one_line

MOST_BYTES = 16 * 2**20
"""Maximum size of an answer; 8,000 tokens with 20 alternatives each are about 10 MiB."""
_RETRIES = "x-stainless-retry-count"  # a header in which openai's client counts
_BEGIN = 4096  # bytes of an unreadable answer
_CODED = ("content-encoding", "content-length", "transfer-encoding")

_base = next(each for each in DefaultAsyncHttpxClient.__mro__ if each.__name__ == "AsyncClient")
http: Any = import_module(_base.__module__.partition(".")[0])
"""``httpx``, or the library that the installed ``openai`` uses instead."""


class UnreadableAnswerError(http.RemoteProtocolError):  # type: ignore[misc]
    """An answer is not a chat completion, is too long, or was broken off by the server."""


class HttpClient(DefaultAsyncHttpxClient):
    """A client without a limit on connections, since the backend limits concurrent requests."""

    def __init__(self, timeout: float, read: Callable[[dict[str, Any]], Any], may_retry: Callable[[], bool]) -> None:
        """Create the client.

        Args:
            timeout: Seconds for one try, from the first byte sent to the last one received.
            read: Reads a JSON answer to a POST, which is kept in the response's ``extensions["read"]``; raises
                UnreadableAnswerError.
            may_retry: Whether requests are tried again; a first try was recorded as sent, and so is sent.
        """
        super().__init__(
            limits=http.Limits(max_connections=None, max_keepalive_connections=None),
            headers={"Accept-Encoding": "identity"},
            follow_redirects=False,
        )
        self._timeout_s, self._read, self._may_retry = timeout, read, may_retry

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request and receive the whole answer."""
        if request.headers.get(_RETRIES, "0") != "0" and not self._may_retry():
            raise asyncio.CancelledError
        try:
            async with asyncio.timeout(self._timeout_s):
                received = await super().send(request, **{**options, "stream": True})
                try:
                    body = await _body(received)
                finally:
                    await received.aclose()
        except TimeoutError as error:
            raise http.ReadTimeout("the server did not answer in time", request=request) from error
        headers = [(name, value) for name, value in received.headers.multi_items() if name.lower() not in _CODED]
        answer = http.Response(received.status_code, headers=headers, content=body, request=request)
        if request.method == "POST" and answer.is_success:
            found = read_json(body)
            if (fault := found.get("error")) and not found.get("choices"):
                code = fault.get("code") if isinstance(fault, dict) else None
                answer.status_code = code if isinstance(code, int) and 400 <= code < 600 else 502
            else:
                answer.extensions["read"] = self._read(found)
        return answer


async def _body(answer: Any) -> bytes:
    """The body of an answer, limited to ``MOST_BYTES``."""
    if coding := answer.headers.get("content-encoding", "identity").strip().lower().removeprefix("identity"):
        raise UnreadableAnswerError(f"the answer is compressed as {coding[:20]!r}, which was not asked for")
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > MOST_BYTES:
            raise UnreadableAnswerError(f"the answer has more than {MOST_BYTES // 2**20} MiB")
    return bytes(body)


def read_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        UnreadableAnswerError: It is none, or is nested too deeply.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        begin = " ".join(body[:_BEGIN].decode("utf-8", "replace").split())  # shortened once keys are removed
        raise UnreadableAnswerError(f"{one_line(error)}; it begins with: {begin}") from None
    return found if isinstance(found, dict) else {}
