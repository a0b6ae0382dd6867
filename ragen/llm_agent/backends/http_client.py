"""The HTTP client of the API backend: the openai client's own, with a limit on the size of answers.

Answers are decompressed here, not by the library, which would expand half a megabyte into half a gigabyte before any
check. Redirects are not followed, since requests carry a key, and the user chose the address.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from functools import cache
from importlib import import_module
from typing import Any

from openai import DefaultAsyncHttpxClient

MOST_BYTES = 16 * 2**20
"""Maximum size of an answer after decompression; 8,000 tokens with 20 alternatives each are about 10 MiB."""
_COMPRESSED = ("gzip", "x-gzip", "deflate")


class AnswerTooLongError(Exception):
    """An answer is too long, or compressed in a format that was not requested."""


def new_http_client() -> Any:
    """A client without a limit on connections, since the backend limits concurrent requests.

    Returns:
        An ``AsyncClient`` of ``httpx``, or of the library that the installed ``openai`` uses instead.
    """
    library = http_library()

    async def bound(response: Any) -> None:
        coding = response.headers.pop("content-encoding", "").strip().lower()
        response.stream = _bounded_stream()(response.stream, "" if coding == "identity" else coding)

    return DefaultAsyncHttpxClient(
        limits=library.Limits(max_connections=None, max_keepalive_connections=None),
        headers={"Accept-Encoding": "gzip"},
        event_hooks={"response": [bound]},
        follow_redirects=False,
    )


@cache
def http_library() -> Any:
    """``httpx``, or the library that the installed ``openai`` uses instead."""
    base = next(each for each in DefaultAsyncHttpxClient.__mro__ if each.__name__ == "AsyncClient")
    return import_module(base.__module__.partition(".")[0])


@cache
def _bounded_stream() -> Any:
    library = http_library()

    class BoundedStream(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """The decompressed body of an answer, limited to ``MOST_BYTES``."""

        def __init__(self, stream: Any, coding: str) -> None:
            self._stream, self._coding = stream, coding

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if self._coding and self._coding not in _COMPRESSED:
                raise AnswerTooLongError(f"the answer is compressed as {self._coding[:20]!r}, which was not asked for")
            expander = zlib.decompressobj(zlib.MAX_WBITS | 32) if self._coding else None
            room = MOST_BYTES
            async for chunk in self._stream:
                if expander is not None:
                    chunk = _expanded(expander, chunk, room)
                room -= len(chunk)
                if room < 0:
                    raise AnswerTooLongError(f"the answer has more than {MOST_BYTES // 2**20} MiB")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    return BoundedStream


def _expanded(expander: Any, chunk: bytes, room: int) -> bytes:
    """A decompressed chunk, at most one byte longer than ``room``."""
    try:
        return expander.decompress(chunk, room + 1)
    except zlib.error as error:
        raise AnswerTooLongError(f"the answer cannot be decompressed ({error})") from None
