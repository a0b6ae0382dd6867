"""The client of HTTP: a connection for each request that is under way, and what has left told.

A pool of connections goes through all of them whenever a request begins or ends, which with a hundred under way costs
more than the request. Here each connection is a pool of its own, and a free one is taken off the top of a stack::

    request --> [free] --> connection --> server
                  ^                         |
                  +---- the answer was read or given up

That the last byte of a request has left is noticed as its body is asked for more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib import import_module
from typing import Any
from urllib.request import getproxies

from openai import DefaultAsyncHttpxClient

Left = Callable[[], None]
_PROXIES = frozenset({"http", "https", "all"})


def new_http_client(watch: Callable[[], Left | None]) -> Any:
    """The client of HTTP, without a bound on connections: what is under way is bounded by who asks.

    Args:
        watch: Called in the task that sends a request; gives what is to be called when its last byte has been handed
            to the connection, which may be more than once, or None.
    """
    library = _library()

    async def watched(request: Any) -> None:
        left = watch()
        if left is not None:
            request.stream = _kinds().body(request.stream, left)

    unbounded = library.Limits(max_connections=None, max_keepalive_connections=None)
    given: dict[str, Any] = {"limits": unbounded, "event_hooks": {"request": [watched]}}
    if not _PROXIES & getproxies().keys():  # a client finds them only where it makes its own connections
        given["transport"] = _kinds().connections()
    return DefaultAsyncHttpxClient(**given)


@cache
def _library() -> Any:
    """``httpx``, or what the installed ``openai`` has in its place."""
    base = next(each for each in DefaultAsyncHttpxClient.__mro__ if each.__name__ == "AsyncClient")
    return import_module(base.__module__.partition(".")[0])


class _Kinds:
    """Classes that derive from those of the library.

    Attributes:
        connections: See :class:`Connections`, a transport.
        body: See :class:`Body`, a stream.
    """

    def __init__(self, library: Any) -> None:
        class Body(library.AsyncByteStream):  # type: ignore[misc, name-defined]
            """The body of a request; tells when it has been handed on."""

            def __init__(self, stream: Any, left: Left) -> None:
                self._stream, self._left = stream, left

            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for chunk in self._stream:
                    yield chunk
                self._left()

            async def aclose(self) -> None:
                await self._stream.aclose()

        class Answer(library.AsyncByteStream):  # type: ignore[misc, name-defined]
            """The body of an answer; its connection is free when it is closed."""

            def __init__(self, stream: Any, freed: Left) -> None:
                self._stream, self._freed = stream, freed

            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for chunk in self._stream:
                    yield chunk

            async def aclose(self) -> None:
                try:
                    await self._stream.aclose()
                finally:
                    freed, self._freed = self._freed, _nothing
                    freed()

        class Connections(library.AsyncBaseTransport):  # type: ignore[misc, name-defined]
            """A stack of free connections; there are as many as requests were ever under way at a time."""

            def __init__(self) -> None:
                self._all: list[Any] = []
                self._free: list[Any] = []
                self._context = library.create_ssl_context()
                self._one = library.Limits(max_connections=1, max_keepalive_connections=1)

            def _take(self) -> Any:
                if self._free:
                    return self._free.pop()
                self._all.append(library.AsyncHTTPTransport(verify=self._context, limits=self._one))
                return self._all[-1]

            async def handle_async_request(self, request: Any) -> Any:
                connection = self._take()
                try:
                    answer = await connection.handle_async_request(request)
                except BaseException:
                    self._free.append(connection)
                    raise
                answer.stream = Answer(answer.stream, lambda: self._free.append(connection))
                return answer

            async def aclose(self) -> None:
                for connection in self._all:
                    await connection.aclose()

        self.body, self.connections = Body, Connections


@cache
def _kinds() -> _Kinds:
    return _Kinds(_library())


def _nothing() -> None:
    """What is freed a second time."""
