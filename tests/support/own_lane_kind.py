"""A kind of lane of one's own: each worker is a subprocess that is spoken with over a socket.

It tells no position, so a batch has the time of all its environments together.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

from ragen.errors import LaneStartError
from ragen.parallel.kinds.process.channel import Channel
from ragen.parallel.lanes import codec
from ragen.parallel.lanes.handle import Ending, LaneKind, Message, WorkerGone, WorkerHandle
from ragen.parallel.lanes.progress import Progress
from ragen.parallel.lanes.worker import Worker, enter_worker_process


class SubprocessHandle(WorkerHandle):
    """One subprocess."""

    def __init__(self, lane: str) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._channel = Channel(ours)
        self._ending: Ending | None = None
        with theirs:
            call = [sys.executable, "-m", __name__, lane, str(theirs.fileno())]
            path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            self._process = subprocess.Popen(call, pass_fds=[theirs.fileno()], env=path, start_new_session=True)

    def send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except OSError as error:
            raise WorkerGone(str(error)) from None

    def fileno(self) -> int:
        return self._channel.fileno()

    def unsent(self) -> bool:
        return self._channel.is_sending()

    def receive(self) -> Message | None:
        with contextlib.suppress(OSError):  # it has ended, but may have answered before
            self._channel.flush()
        try:
            message = self._channel.receive()
            if message is not None and not self.is_up:
                self.pid, self.is_up = self._process.pid, True  # that was its hello
                message = self._channel.receive()
        except (EOFError, OSError) as error:
            raise WorkerGone(str(error)) from None
        self.moved = self._channel.moved
        return message

    def ask_to_exit(self) -> bool:
        if not self.is_up or self.unsent():
            return False
        self.send(codec.EXIT)
        return True

    def end(self) -> Ending:
        if self._ending is None:
            self._process.kill()
            self._ending = Ending(f"pid {self._process.pid}", self._process.wait())
            self._channel.close()
        return self._ending


class SubprocessKind(LaneKind):
    """Starts subprocesses."""

    name = "subprocess"
    slots = 2

    def start(self, lane: str) -> SubprocessHandle:
        try:
            return SubprocessHandle(lane)
        except OSError as error:
            raise LaneStartError(f"{lane}: {error}") from error

    def close(self) -> None:
        """Nothing: subprocesses share nothing."""


def serve(lane: str, descriptor: int) -> None:
    """Be a worker: say hello, and answer until the main process is gone or asks for the end."""
    enter_worker_process(lane)
    worker = Worker(lane, Progress(bytearray(Progress.SIZE)))
    channel = Channel(socket.socket(fileno=descriptor))
    reply: Message | None = [b"hello"]
    while reply is not None:
        channel.send(reply)
        message = channel.receive()
        reply = worker.handle(message) if message is not None else None


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
