"""A network that is slow: what passes between those who connect here and a port arrives late."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import select
import socket
import threading
import time


class SlowWire:
    """Stands between callers and a port of this machine; a context manager.

    Attributes:
        port: Where to connect instead.
        delay: Seconds that each piece takes, in either direction; may be changed at any time.
    """

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self._target, self.delay = port, delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._ends: list[socket.socket] = []  # of all connections that there were
        self._under_way: list[tuple[float, int, socket.socket, bytes]] = []
        self._numbers = itertools.count()
        self._still_until = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow wire")
        self._thread.start()

    def stand_still(self, seconds: float) -> None:
        """Let nothing arrive for a while; nothing is lost."""
        self._still_until = time.monotonic() + seconds

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def __enter__(self) -> SlowWire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._over.is_set():
            for ready in select.select([self._listener, *self._peers], [], [], 0.005)[0]:
                if ready is self._listener:
                    here, there = self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._target))
                    self._peers |= {here: there, there: here}
                    self._ends += [here, there]
                    for end in (here, there):
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                elif ready in self._peers:
                    self._take(ready)
            self._deliver()
        for end in [self._listener, *self._ends]:
            end.close()

    def _take(self, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 16)
        except OSError:
            data = b""
        heapq.heappush(self._under_way, (time.monotonic() + self.delay, next(self._numbers), self._peers[end], data))
        if not data:
            del self._peers[end]  # it says nothing more; it is closed when its peer has said so too

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._under_way and max(self._under_way[0][0], self._still_until) <= now:
            _, _, end, data = heapq.heappop(self._under_way)
            with contextlib.suppress(OSError):
                if data:
                    end.sendall(data)
                else:
                    end.shutdown(socket.SHUT_WR)
