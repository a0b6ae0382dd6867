"""All that is asked of Ray beside calls: to connect, which nodes there are, to place an agent, and why one is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from envlanes.errors import ConfigError, LaneStartError
from envlanes.kinds.ray import ANSWER_TIMEOUT, Node, NodeAgent, versions
from envlanes.kinds.ray_options import WORKERS, RayOptions

log = logging.getLogger(__name__)

_LOCAL_STORE = 80 << 20  # bytes of object store of a cluster of our own, which keeps nothing there
_HEAD = "node:__internal_head__"


class RayCluster:
    """The cluster that this process is connected to, as far as workers need it."""

    def __init__(self, options: RayOptions, start_method: str, preload: Sequence[str]) -> None:
        """Connect, or start a local cluster, unless this process is connected already.

        Args:
            options: The parts of the cluster to use.
            start_method: Start method of workers.
            preload: Modules that workers will need.

        Raises:
            ConfigError: The process is connected in a way, or to a cluster, that does not fit the options.
            LaneStartError: There is no Ray, or no such cluster.
        """
        self._options, self._how = options, (start_method, list(preload))
        self._is_ours = connect(options)

    def nodes(self) -> list[Node]:
        """The nodes that live and are asked for, the head last: it has other things to do."""
        import ray

        found = [_node_of(entry) for entry in ray.nodes() if entry["Alive"]]
        wanted = [node for node in found if is_wanted(node, self._options)]
        return sorted(wanted, key=lambda node: (node.is_head, node.node_id))

    def may_have_room(self) -> bool:
        """Whether a node has a place as soon as others have given up what they claim."""
        claims = self._options.claims()
        return any(all(node.amounts.get(name, 0.0) >= claims[name] for name in claims) for node in self.nodes())

    def why_none(self) -> str:
        """A sentence that says why no node has a place."""
        import ray

        if not self.nodes():
            there = ", ".join(sorted(_node_of(entry).name for entry in ray.nodes() if entry["Alive"])) or "none"
            return f"ray.nodes = {self._options.nodes!r}: no such node is alive; nodes: {there}."
        return (
            f"no node of the cluster has {self._options.claims()} free, which each worker claims "
            f"(es_manager.ray.num_cpus and .resources): claim less, such as num_cpus: 0, or free some."
        )

    def seats(self, node: Node, most: int | None) -> int:
        """The number of workers that can claim a place on a node now, at most so many; None: as many as processors."""
        claims = self._options.claims()
        free = _free().get(node.node_id, node.amounts) if claims else node.amounts
        # Fractions of a processor add up inexactly: 0.3 / 0.1 is less than 3.
        room = [int(free.get(name, 0.0) / amount + 1e-9) for name, amount in claims.items()]
        if not claims or not self._options.num_cpus:
            room.append(max(1, int(node.amounts.get("CPU", 1.0))) if most is None else most)
        return min(room if most is None else [*room, most])

    def place(self, node: Node, seats: int) -> Any:
        """Begin to start a node's agent, with what so many workers claim; calls of its methods are as Ray's."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        claims = {name: amount * seats for name, amount in self._options.claims().items()}
        agent_class = _agent_class().options(
            num_cpus=claims.pop("CPU", 0),
            resources=claims,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        )
        return agent_class.remote(node.name, *self._how, versions())

    def get(self, call: Any, patience: float) -> Any:
        """The result of a call; raises TimeoutError after so many seconds, or the call's own error."""
        import ray

        return ray.get(call, timeout=patience)  # its GetTimeoutError is a TimeoutError

    def why_lost(self, node: Node, error: Exception, was_up: bool) -> str:
        """An error of calls to a node's agent, in words that follow the node's name."""
        import ray

        entry = None
        with contextlib.suppress(Exception):  # Ray raises many kinds when its head is gone
            entry = next((each for each in ray.nodes() if each["NodeID"] == node.node_id), None)
            if entry is None or not entry["Alive"]:
                reason = (entry or {}).get("DeathReasonMessage") or "it is no longer in the cluster"
                return f"is dead, according to Ray: {' '.join(str(reason).split())}"
        if was_up:
            return f"has lost its agent ({type(error).__name__})"
        return _why_not_started(error)

    def kill(self, agent: Any) -> None:
        """End an agent, which may have ended."""
        import ray

        if ray.is_initialized():
            with contextlib.suppress(Exception):  # it has ended, or Ray has
                ray.kill(agent, no_restart=True)

    def close(self) -> None:
        """Let go of the connection, if it was made for workers; a local cluster ends with it."""
        if self._is_ours:
            self._is_ours = False
            disconnect()


@cache
def _agent_class() -> Any:
    """The actor's class, made once: Ray keeps each one that it was ever given."""
    import ray

    return ray.remote(NodeAgent)


def _node_of(entry: dict[str, Any]) -> Node:
    name = f"{entry['NodeManagerHostname']}/{entry['NodeID'][:6]}"
    amounts = dict(entry["Resources"])
    return Node(entry["NodeID"], name, entry["NodeManagerAddress"], amounts, _HEAD in amounts)


def is_wanted(node: Node, options: RayOptions) -> bool:
    """Whether the options name a node."""
    if not isinstance(options.nodes, str):
        known = (node.address, node.name, node.name.partition("/")[0])
        return any(name in known or (len(name) > 3 and node.node_id.startswith(name)) for name in options.nodes)
    return options.nodes != WORKERS or not node.is_head


def _free() -> dict[str, dict[str, float]]:
    """The free resources of each node, as far as Ray reports."""
    try:
        from ray._private.state import available_resources_per_node

        return available_resources_per_node()
    except (ImportError, AttributeError):  # it is none of Ray's public functions
        return {}


def _why_not_started(error: Exception) -> str:
    """The reason for an agent not starting, in words that follow its node's name."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    _, own, why = last.rpartition(f"{LaneStartError.__name__}: ")
    return why if own else f"could not start an agent: {type(error).__name__}: {last}"


# The connection, which all who need one share

_connecting = threading.RLock()
_users = 0  # of a connection that was made here


def connect(options: RayOptions) -> bool:
    """Connect to a cluster, or start a local one, unless this process is connected already.

    Args:
        options: The cluster.

    Returns:
        Whether that was done here, and is to be undone by :func:`disconnect`.

    Raises:
        ConfigError: The process is connected in a way, or to a cluster, that does not fit the options.
        LaneStartError: There is no Ray, or no such cluster.
    """
    global _users
    try:
        import ray
    except ImportError as error:
        raise LaneStartError(
            f"backend 'ray' needs Ray, which cannot be imported ({error}): pip install 'envlanes[ray]'."
        ) from error
    with _connecting:
        if ray.util.client.ray.is_connected():
            raise ConfigError(
                "backend 'ray': this process is connected over Ray Client (ray://), which cannot reach the "
                "nodes; run the program on a node of the cluster (`ray job submit` does)."
            )
        if ray.is_initialized():
            _refuse_another(options, ray.get_runtime_context().gcs_address)
            _users += bool(_users)
            return bool(_users)
        address = options.address or os.environ.get("RAY_ADDRESS")
        expect_answer(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
        own: dict[str, Any] = {} if address else {"object_store_memory": _LOCAL_STORE, "include_dashboard": False}
        try:
            ray.init(address=address or "local", **own, **quiet)
        except Exception as error:  # of many kinds
            which = f"the cluster at {address!r} cannot be used" if address else "no local cluster can be started"
            raise LaneStartError(f"backend 'ray': {which}: {type(error).__name__}: {error}") from error
        if not address:
            warn_if_open()
        _users = 1
        return True


def disconnect() -> None:
    """Let go of the connection, which ends with the last one who has it."""
    global _users
    import ray

    with _connecting:
        _users -= 1
        if not _users:
            ray.shutdown()


def expect_answer(address: str | None) -> None:
    """Ensure that a cluster listens at an address, for which Ray itself would wait for minutes.

    Raises:
        LaneStartError: None does.
    """
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise LaneStartError(
            f"backend 'ray': no answer from {address!r} ({error}): is the cluster up, and is its port reachable?"
        ) from error


def warn_if_open() -> None:
    """Warn of a cluster that was started here, and that serves every process that can reach it."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":  # Ray sets it to that as it switches tokens on
        log.warning(
            "backend 'ray': any process that reaches this machine's ports may run code on the cluster that was started "
            "for workers. Set RAY_AUTH_MODE=token where others are in the same network."
        )


def _refuse_another(options: RayOptions, connected: str) -> None:
    if options.address in (None, "auto", connected):
        return
    raise ConfigError(
        f"ray.address = {options.address!r}: this process is connected to the cluster at {connected!r} already; leave "
        "the key out, or call ray.shutdown() before."
    )
