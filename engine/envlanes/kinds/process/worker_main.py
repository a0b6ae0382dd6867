"""The main loop of a worker process: receive a message, hand it to the worker, send the reply.

One thread, one message at a time. It ends when it was asked to, or when the main process closes its end of the socket,
and is ended by the kernel when the supervisor, its parent, ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
import socket
import sys
import traceback
from typing import Any

from envlanes.kinds.process.supervisor import WORKER_MARK
from envlanes.temporary import use_temporary_folder
from envlanes.workers.handle import Progress
from envlanes.workers.server import Server, enter_worker_process, open_channel


def main(arguments: dict[str, Any]) -> None:
    """Be a worker until the main process is done with this one; never returns.

    Args:
        arguments: ``worker``, its name; ``token``, by which the supervisor knows it; ``folder`` for temporary files;
            ``descriptors``: the socket to the main process, and the shared file that
            begins with :class:`Progress`, to whose end all threads' stacks are written on ``SIGUSR2``.
    """
    code = 1
    try:
        os.environ[WORKER_MARK] = arguments["token"]  # inherited by all that this worker starts, which is found by it
        if arguments["folder"]:
            use_temporary_folder(arguments["folder"])
        _run(arguments["worker"], *arguments["descriptors"])
        code = 0
    except SystemExit as error:  # an environment that ends its interpreter
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            sys.stdout.flush()
        os._exit(code)  # at once: an environment may have left threads running


def _run(name: str, connection: int, vitals: int) -> None:
    os.set_inheritable(
        vitals, False
    )  # a program that environments start would keep the memory, and could write over it
    faulthandler.register(signal.SIGUSR2, file=vitals, all_threads=True)
    enter_worker_process(name)
    server = Server(name, Progress(mmap.mmap(vitals, Progress.SIZE)))
    with contextlib.suppress(EOFError, OSError):  # the main process is gone
        channel = open_channel(socket.socket(fileno=connection))
        while server.answer(channel):
            pass
