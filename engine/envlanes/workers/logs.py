"""Log records of environments in workers, which travel with the replies and are handled by the program's own loggers.

A worker sends the records that the program's levels let through (:mod:`envlanes.episode.program`). Records that
no reply can take, such as those of an environment's ``close`` as its worker ends, go to standard error instead.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any

Record = dict[str, Any]
_unsent: SimpleQueue[logging.LogRecord] = SimpleQueue()


def send_records() -> None:
    """In a worker, keep what is logged for the next reply."""
    logging.getLogger().addHandler(QueueHandler(_unsent))


def taken(is_plain: Callable[[Any], bool]) -> list[Record]:
    """The attributes of the records since the last call, as plain values."""
    found = []
    # Plain values are told apart here, not in the main process: opening a reply must run no code of an environment.
    while not _unsent.empty():
        attributes = vars(_unsent.get())
        found.append({key: value if is_plain(value) else repr(value) for key, value in attributes.items()})
    return found


def show_rest() -> None:
    """Write what is left to standard error, as the worker ends."""
    for record in taken(lambda value: True):
        print(record["message"], file=sys.stderr, flush=True)


def handle(records: Sequence[Record]) -> None:
    """In the main process, hand records to the loggers that they were logged with."""
    for attributes in records:
        record = logging.makeLogRecord(attributes)
        logger = logging.getLogger(record.name)
        with contextlib.suppress(Exception):  # a filter of the program's raises: that must not cost the reply
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
