"""This process's connection to a Ray cluster, where lanes are what made it: shared by all who need one."""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any

from ragen.errors import ConfigError, LaneStartError, install_command
from ragen.parallel.nodes.options import RayOptions

log = logging.getLogger(__name__)

_LOCAL_STORE = 80 << 20  # bytes of object store of a cluster of our own, which keeps nothing there
_ANSWER_TIMEOUT = 10.0  # seconds

_lock = threading.RLock()
_users = 0  # of a connection that was made here
_job_has = ""  # the runtime_env that it was made with


def connect(options: RayOptions) -> bool:
    """Connect to a cluster, or start a local one, unless this process is connected already.

    Args:
        options: Which cluster, and what Ray is to ship for the job.

    Returns:
        Whether that was done here, and is to be undone by :func:`disconnect`.

    Raises:
        ConfigError: The process is connected in a way, or to a cluster, that does not fit the options.
        LaneStartError: There is no Ray, or no such cluster.
    """
    global _users, _job_has
    try:
        import ray
    except ImportError as error:
        raise LaneStartError(
            f"backend 'ray' needs Ray, which cannot be imported ({error}): {install_command('ray')}."
        ) from error
    with _lock:
        if ray.util.client.ray.is_connected():
            raise ConfigError(
                "backend 'ray': this process is connected over Ray Client (ray://), which gives no way to speak with "
                "nodes; run the program on a node of the cluster (`ray job submit` does)."
            )
        if ray.is_initialized():
            _refuse_another(options, ray.get_runtime_context().gcs_address)
            _refuse_local_paths(options)
            _users += bool(_users)
            return bool(_users)
        address = options.address or os.environ.get("RAY_ADDRESS")
        _expect_answer(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
        shipped: dict[str, Any] = {"runtime_env": options.environment()} if options.runtime_env else {}
        own: dict[str, Any] = {} if address else {"object_store_memory": _LOCAL_STORE, "include_dashboard": False}
        try:
            ray.init(address=address or "local", **own, **shipped, **quiet)
        except Exception as error:  # of many kinds
            which = f"the cluster at {address!r} cannot be used" if address else "no local cluster can be started"
            raise LaneStartError(f"backend 'ray': {which}: {type(error).__name__}: {error}{_hint(address)}") from error
        if not address:
            _warn_if_open()
        _users, _job_has = 1, options.runtime_env
        return True


def to_ship(options: RayOptions) -> dict[str, Any]:
    """The ``runtime_env`` that agents are to have beside the job's."""
    return options.environment() if options.runtime_env != _job_has else {}


def _expect_answer(address: str | None) -> None:
    """See to it that somebody listens at an address, for which Ray itself would wait for minutes.

    Raises:
        LaneStartError: Nobody does.
    """
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise LaneStartError(
            f"backend 'ray': nobody answers at {address!r} ({error}): is the cluster up, and can its port be reached?"
        ) from error


def _hint(address: str | None) -> str:
    """What may be wrong where a cluster lets nobody in, of which Ray says little."""
    if not address or os.environ.get("RAY_AUTH_MODE"):
        return ""
    return " (if the cluster asks for a token: export RAY_AUTH_MODE=token; see docs/several_machines.md)"


def _warn_if_open() -> None:
    """Tell of a cluster that was started here, and that serves whoever can speak with it."""
    mode = os.environ.get("RAY_AUTH_MODE")  # which Ray sets to "token" as it switches that on
    if (mode or "").lower() != "token":
        what = f"RAY_AUTH_MODE={mode} is set" if mode else "this version of Ray asks for no token by itself"
        log.warning(
            "backend 'ray': whoever reaches the ports of this machine may run code on the cluster that was started "
            "for lanes, since %s. Unset it, or say RAY_AUTH_MODE=token, where others are in the same network.",
            what,
        )


def disconnect() -> None:
    """Let go of the connection, which ends with the last one who has it."""
    global _users, _job_has
    import ray

    with _lock:
        _users -= 1
        if not _users:
            _job_has = ""
            ray.shutdown()


def _refuse_another(options: RayOptions, connected: str) -> None:
    if options.address in (None, "auto", connected):
        return
    raise ConfigError(
        f"ray.address = {options.address!r}: this process is connected to the cluster at {connected!r} already; leave "
        "the key out, or call ray.shutdown() before."
    )


def _refuse_local_paths(options: RayOptions) -> None:
    """What is on this machine is shipped when a process connects, and not after."""
    if options.runtime_env != _job_has and (local := options.local_paths()):
        raise ConfigError(
            f"ray.runtime_env: {', '.join(local)} cannot be shipped any more, since this process is connected to a "
            "cluster already: give it to ray.init(runtime_env=...), or to `ray job submit --working-dir`, or name a "
            "package that the nodes can reach, such as file:///shared/code.zip."
        )
