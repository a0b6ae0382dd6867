"""Processes that wait and do nothing else: what a machine needs for so many wakes, whatever engine asks for them.

``python benchmarks/bare_waits.py PROCESSES WAITS SECONDS`` forks so many processes. For each line that comes, each is
sent a byte, waits so often for so many seconds, one wait after the other, and answers with a byte; a line says that all
have. After each wait a process touches about as many pages and cache lines as a turn of a text game touches in a worker
of ours: where hundreds of processes take turns on a few processors, none finds in the caches what it left there.

    one line in --> bytes out to all --> all wait --> bytes back from all --> one line out
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
import time

PAGES, LINES = 300, 4  # that a turn touches, and in each of them; by /proc/PID/clear_refs and the time that it takes
_PAGE = 4096


def main(processes: int, waits: int, seconds: float) -> None:
    """Fork, then play a turn for each line; all end with the input."""
    ends: dict[int, socket.socket] = {}
    gc.freeze()
    for _ in range(processes):
        ours, theirs = socket.socketpair()
        if not os.fork():
            ours.close()
            for other in ends.values():
                other.close()
            try:
                _wait(theirs, waits, seconds)
            finally:
                os._exit(0)
        theirs.close()
        ends[ours.fileno()] = ours
    poll = select.poll()
    for descriptor in ends:
        poll.register(descriptor, select.POLLIN)
    print(os.getpid(), flush=True)
    for _ in sys.stdin:
        for end in ends.values():
            end.send(b"\0")
        left = len(ends)
        while left:
            for descriptor, _ in poll.poll():
                if not ends[descriptor].recv(1):
                    raise SystemExit("a waiting process has ended: what this turn took is no figure")
                left -= 1
        print(flush=True)


def _wait(connection: socket.socket, waits: int, seconds: float) -> None:
    """What a process does."""
    memory = bytearray(PAGES * _PAGE)
    stride = _PAGE // LINES + 64  # another line of each page
    while connection.recv(1):
        for _ in range(waits):
            time.sleep(seconds)
            memory[::stride] = memory[::stride]
        connection.send(b"\0")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
