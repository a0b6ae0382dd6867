"""The HTTP client of the API backend: as many connections as requests are under way, used again."""

from __future__ import annotations

import asyncio

import pytest

from support.later import http_client

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers once as many requests are there as are expected; cuts a connection where a body says so."""

    def __init__(self, together: int) -> None:
        self.barrier = asyncio.Barrier(together)
        self.connections = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                if await reader.readexactly(length) == b"cut":
                    break
                await self.barrier.wait()
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:9"])
def test_connections_are_used_again(proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is for other addresses changes nothing."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if proxy is not None:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")

    async def play() -> tuple[int, int]:
        server = Server(together=3)
        async with await asyncio.start_server(server.connected, "127.0.0.1", 0) as listening:
            url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
            async with http_client.new_http_client() as client:
                for _ in range(4):
                    answers = await asyncio.gather(*(client.post(url, content=b"hello") for _ in range(3)))
                    assert [answer.text for answer in answers] == ["ok"] * 3
                before = server.connections
                with pytest.raises(Exception, match="disconnected"):
                    await client.post(url, content=b"cut")
                await asyncio.gather(*(client.post(url, content=b"hello") for _ in range(3)))
                return before, server.connections

    assert asyncio.run(play()) == (3, 4)
