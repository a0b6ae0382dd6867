"""A ``ragen serve`` of this checkout in a process of its own, for benchmarks: started, killed, its workers found."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
SILENT_S = 120  # seconds that a server may take to end


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Server:
    """One server, on one port, which may be started again and again.

    Attributes:
        url: Its address.
        starts: Number of starts.
    """

    def __init__(self, *words: str) -> None:
        """Know the words of its command line after ``serve``; :meth:`start` starts it."""
        self._port = free_port()
        self.url, self.starts = f"http://127.0.0.1:{self._port}", 0
        self._words = ("serve", "--port", str(self._port), *words)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "ragen", *self._words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self._process.stdout is not None
        if not re.search(r"serving .* at http", self._process.stdout.readline()):
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        self.starts += 1

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it with a signal."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(SILENT_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def workers(self) -> list[psutil.Process]:
        """Its worker processes."""
        if self._process is None:
            return []
        try:
            inside = psutil.Process(self._process.pid).children(recursive=True)
            return [each for each in inside if each.name().startswith("envlanes worker")]
        except psutil.NoSuchProcess:
            return []
