"""What runs once on each node: it starts that node's workers, watches them, and ends them; it never sees a turn.

    main process                                node
    +------------------+   control: JSON lines  +-----------------------------+
    | Link ------------+----------------------->| Agent                       |
    |                  |   beats: where each    |   Launcher                  |
    |                  |<-----------------------+-- worker is, 5 times a s    |
    |                  |                        |        |                    |
    |                  |                        |   supervisor process        |
    | NodeHandle ------+--+   a turn's messages |        | fork               |
    | NodeHandle ------+-+|                     |   +-----------------------+ |
    +------------------+ |+---------------------+-->| worker_main: Worker   | |
                         +----------------------+-->| worker_main: Worker   | |
                                                |   +-----------------------+ |
                                                +-----------------------------+

The agent listens at one port. A connection that introduces itself (:mod:`ragen.parallel.nodes.wire`) as a lane's is
handed to a new worker, as the socket that it serves: from then on the main process and the worker speak with each
other, a message for each turn of all of the lane's environments, and nobody stands between. When a worker ends, however
it does, the kernel of its node closes that connection.

When the control connection ends, the main process is gone, or done: every worker is ended, and so is the agent. When
the agent is killed its supervisor ends the workers, as it does for any main process.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ragen.parallel.lanes.handle import Ending
from ragen.parallel.nodes.wire import CONTROL, Lines, Refused, Wish, introduced, without_delay
from ragen.parallel.process.launcher import Launcher
from ragen.parallel.process.vitals import Vitals
from ragen.parallel.this_process import NODE

BEAT = 0.2  # seconds
_INTRODUCTION = 5.0  # seconds that a caller gets to introduce itself
_CALLERS = 64  # most callers that introduce themselves at a time
_SEND_TIMEOUT = 30.0  # seconds after which a main process that reads nothing is gone


@dataclass
class _Hosted:
    """A worker that was started."""

    launcher: Launcher
    vitals: Vitals


class Agent:
    """The agent of one node, for one main process.

    Attributes:
        port: Where it listens.
        secret: What callers must know.
        ended: Set when all is over.
    """

    def __init__(self, address: str, node: str, start_method: str, preload: Sequence[str]) -> None:
        """Listen, and start the supervisor, without waiting for it.

        Args:
            address: Of this node, in the cluster's network.
            node: Its name, for people.
            start_method: See :class:`~ragen.parallel.process.launcher.Launcher`.
            preload: See there.

        Raises:
            OSError: The agent cannot listen at that address, or the supervisor cannot be started.
        """
        self._node, self._how = node, (start_method, list(preload), {NODE: node})
        self.secret = secrets.token_bytes(32)
        self.ended = threading.Event()
        self._lock = threading.RLock()
        self._hosted: dict[str, _Hosted] = {}
        self._unwanted: set[str] = set()  # workers that were to be ended before they were started
        self._callers = threading.BoundedSemaphore(_CALLERS)
        self._launcher = Launcher(*self._how)
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, name="ragen agent listens", daemon=True).start()

    def close(self) -> None:
        """End all workers and listen no more; bounded in time."""
        with self._lock:
            if self.ended.is_set():
                return
            self.ended.set()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
            self._listener.close()
            for hosted in self._hosted.values():
                hosted.vitals.close()
            self._hosted.clear()
            self._launcher.close()

    # Callers

    def _listen(self) -> None:
        while not self.ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._callers.acquire()
            threading.Thread(target=self._admit, args=[connection], name="ragen agent admits", daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        """Serve a caller that introduces itself; any other one hears nothing."""
        with connection:
            try:
                connection.settimeout(_INTRODUCTION)
                without_delay(connection)
                wish = introduced(connection, self.secret)
            except (Refused, EOFError, OSError):
                return
            finally:
                self._callers.release()
            if wish.purpose == CONTROL:
                self._obey(connection)
            else:
                connection.settimeout(None)  # the worker's copy shares that
                with contextlib.suppress(OSError):  # which the caller sees by its connection's end
                    self._start(wish, connection)

    # Workers

    def _start(self, wish: Wish, connection: socket.socket) -> None:
        with self._lock:
            token = wish.worker.hex()
            if self.ended.is_set() or token in self._unwanted:
                self._unwanted.discard(token)
                return
            if not self._launcher.is_alive():
                self._launcher.close()
                self._launcher = Launcher(*self._how)
            vitals = Vitals()
            try:
                descriptors = [connection.fileno(), vitals.fileno()]
                self._launcher.start(token, f"{wish.lane} on {self._node}", descriptors)
            except BaseException:
                vitals.close()
                raise
            self._hosted[token] = _Hosted(self._launcher, vitals)

    def _end(self, token: str, was_up: bool) -> dict[str, Any]:
        with self._lock:
            hosted = self._hosted.pop(token, None)
            if hosted is None:
                self._unwanted.add(token)
        if hosted is None:
            return {**asdict(Ending(error="was not started")), "position": None}
        ending = hosted.launcher.end(token, was_up)
        position = hosted.vitals.position() if ending.status is not None else None  # it cannot move any more
        hosted.vitals.close()
        return {**asdict(ending), "position": position and [position[0], position[1], time.monotonic() - position[2]]}

    # The main process

    def _obey(self, connection: socket.socket) -> None:
        """Serve the control connection until it ends, and then end everything."""
        connection.settimeout(_SEND_TIMEOUT)
        lines, sending = Lines(connection), threading.Lock()
        beats = threading.Thread(target=self._beat, args=[lines, sending], name="ragen agent beats", daemon=True)
        beats.start()
        try:
            while True:
                try:
                    for command in lines.receive():
                        answer = self._answer(command)
                        with sending:
                            lines.send(answer)
                except TimeoutError:  # there was nothing to do
                    continue
        except (EOFError, OSError):
            pass
        finally:
            self.close()

    def _answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out a command; the answer bears its number."""
        does, worker = command["do"], command.get("worker", "")
        if does == "end":
            value: Any = self._end(worker, command["was_up"])
        elif does == "stacks":
            with self._lock:
                hosted = self._hosted.get(worker)
            value = hosted.vitals.stacks(command["pid"]) if hosted else ""
        else:
            value = time.time()  # a ping
        return {"number": command["number"], "value": value}

    def _beat(self, lines: Lines, sending: threading.Lock) -> None:
        """Tell where each worker is, as often as to be known to live."""
        while not self.ended.wait(BEAT):
            with self._lock:
                now = time.monotonic()
                positions = {token: hosted.vitals.position() for token, hosted in self._hosted.items()}
            beat = {token: [number, item, now - since] for token, (number, item, since) in positions.items()}
            try:
                with sending:
                    lines.send({"beat": beat})
            except OSError:
                with contextlib.suppress(OSError):
                    lines.connection.shutdown(socket.SHUT_RDWR)  # the other thread sees it, and ends everything
                return
