"""A stand-in for what runs in workers, without environments; it takes the worker's place where it is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from envlanes.kinds.process import worker_main
from envlanes.workers import codec
from envlanes.workers.handle import Message
from envlanes.workers.progress import Progress
from envlanes.workers.server import Server

SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


class BareWorker(Server):
    """Does what the first part of a message says; the second is where it says to be, the rest arguments."""

    def __init__(self, name: str, progress: Progress) -> None:
        self._progress = progress

    def handle(self, message: Message) -> Message | None:
        if bytes(message[0]) == bytes(codec.EXIT[0]):
            return None
        verb, number, *rest = message
        self._progress.begin(int(bytes(number)))
        self._progress.mark(2)
        getattr(self, "_" + bytes(verb).decode())(*[bytes(part).decode() for part in rest if len(part) < 100])
        self._progress.mark(3)
        return message

    def _echo(self, *_: str) -> None:
        pass

    def _sleep(self) -> None:
        time.sleep(1000)

    def _exit(self, code: str) -> None:
        os._exit(int(code))

    def _leave(self, code: str) -> None:
        sys.exit(int(code))

    def _raise(self) -> None:
        raise ZeroDivisionError

    def _die(self, number: str) -> None:
        os.kill(os.getpid(), int(number))

    def _wait_in_thread(self) -> None:
        threading.Thread(target=time.sleep, args=(1000,), name="a thread", daemon=True).start()

    def _start_program(self, *hidden: str) -> None:
        """A program in a process group, and if it hides a session, of its own."""
        subprocess.Popen(SLEEP, start_new_session=bool(hidden))

    def _ignore(self, number: str) -> None:
        signal.signal(int(number), signal.SIG_IGN)


worker_main.Server = BareWorker  # type: ignore[misc]
