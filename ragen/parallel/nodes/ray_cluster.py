"""All that is asked of Ray: to connect, which nodes there are, to place an agent, and whether a node is dead."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from ragen.errors import ConfigError, LaneStartError
from ragen.parallel.nodes import connection
from ragen.parallel.nodes.actor import NodeAgent, versions
from ragen.parallel.nodes.link import Node
from ragen.parallel.nodes.options import CURRENT, WORKERS, RayOptions
from ragen.parallel.nodes.wire import Contact

_PATIENCE = 0.5  # seconds between looks whether an agent is still wanted
_HEAD = "node:__internal_head__"

_lock = threading.RLock()


class RayCluster:
    """The cluster that this process is connected to, as far as lanes need it.

    Attributes:
        installed: What is installed on nodes on which an agent was placed, by node id and name.
    """

    def __init__(self, options: RayOptions, start_method: str, preload: Sequence[str], startup_timeout: float) -> None:
        """Connect, or start a local cluster, unless this process is connected already.

        Args:
            options: What is used of the cluster.
            start_method: How workers start.
            preload: Modules that workers will need.
            startup_timeout: Seconds for an agent to be placed and to start.

        Raises:
            ConfigError: The process is connected in a way, or to a cluster, that does not fit the options.
            LaneStartError: There is no Ray, or no such cluster.
        """
        self._options, self._how, self._startup_timeout = options, (start_method, list(preload)), startup_timeout
        self.installed: dict[str, dict[str, str]] = {}
        self._actors: dict[str, Any] = {}
        self._is_ours = connection.connect(options)
        try:
            self._group = _placement_group(options.placement_group)
        except BaseException:
            self.close()
            raise

    # Nodes

    def nodes(self) -> list[Node]:
        """The nodes that live and are asked for, the head last: it has other things to do."""
        import ray

        found = [_node_of(entry) for entry in ray.nodes() if entry["Alive"]]
        bundles = self._bundles()
        wanted = [
            node for node in found if _is_wanted(node, self._options) and (bundles is None or node.node_id in bundles)
        ]
        return sorted(wanted, key=lambda node: (node.is_head, node.node_id))

    def may_have_room(self) -> bool:
        """See :class:`ragen.parallel.nodes.kind.Cluster`."""
        claims = self._options.claims()
        return any(all(node.amounts.get(name, 0.0) >= claims[name] for name in claims) for node in self.nodes())

    def why_none(self) -> str:
        """See :class:`ragen.parallel.nodes.kind.Cluster`."""
        import ray

        if not self.nodes():
            there = ", ".join(sorted(_node_of(entry).name for entry in ray.nodes() if entry["Alive"])) or "none"
            named = list(self._options.nodes) if isinstance(self._options.nodes, tuple) else self._options.nodes
            return f"ray.nodes = {named!r}: no such node lives; there are {there}."
        return (
            f"no node of the cluster has {self._options.claims()} free, which a lane claims (es_manager.ray.num_cpus "
            "and .resources): claim less, such as num_cpus: 0, or free some."
        )

    def seats(self, node: Node, most: int | None) -> int:
        """How many lanes can claim a place on a node now, of those that are wanted there.

        Args:
            node: The node.
            most: How many are wanted; None for as many as it has processors, or claims, for.
        """
        claims = self._options.claims()
        bundles = self._bundles()
        if bundles is not None:
            free = max((amounts for _, amounts in bundles[node.node_id]), key=lambda amounts: amounts.get("CPU", 0.0))
        else:
            free = _free().get(node.node_id, node.amounts) if claims else node.amounts
        room = [int(free.get(name, 0.0) / amount + 1e-9) for name, amount in claims.items()]
        if not claims or not self._options.num_cpus:
            room.append(max(1, int(node.amounts.get("CPU", 1.0))) if most is None else most)
        return min(room if most is None else [*room, most])

    def _bundles(self) -> dict[str, list[tuple[int, dict[str, float]]]] | None:
        """The bundles of the placement group by node; None without a group."""
        if self._group is None:
            return None
        from ray.util import placement_group_table

        table = placement_group_table(self._group)
        found: dict[str, list[tuple[int, dict[str, float]]]] = {}
        for index, node_id in table.get("bundles_to_node_id", {}).items():
            found.setdefault(node_id, []).append((int(index), table["bundles"][index]))
        return found

    # Agents

    def contact(self, node: Node, seats: int, given_up: threading.Event) -> Contact:
        """Place an agent on a node, with what its lanes claim, and wait until it is there.

        Args:
            node: Where.
            seats: For how many lanes.
            given_up: Set when it is not wanted any more.

        Raises:
            LaneStartError: It cannot be placed, or cannot work there.
        """
        import ray

        self.release(node)
        claims = {name: amount * seats for name, amount in self._options.claims().items()}
        actor = self._placed(node, claims)
        with _lock:
            self._actors[node.node_id] = actor
        opened = actor.open.remote(node.name, *self._how)
        deadline = time.monotonic() + self._startup_timeout
        while not ray.wait([opened], timeout=_PATIENCE)[0]:
            if given_up.is_set():
                raise LaneStartError("was closed")
            if time.monotonic() > deadline:
                asked = f"it claims {claims}" if claims else "it claims nothing"
                raise LaneStartError(f"did not start an agent within {self._startup_timeout:g} s ({asked})")
        try:
            told = ray.get(opened)
        except ray.exceptions.RayError as error:
            raise LaneStartError(_failure(error)) from error
        here = versions()
        self.installed[node.node_id] = {**told["versions"], **told.get("installed", {})}
        if different := [
            f"{name} {there} (here {here[name]})" for name, there in told["versions"].items() if there != here[name]
        ]:
            raise LaneStartError(f"cannot be used: it has {', '.join(different)}; install the same version there")
        return told["contact"]

    def _placed(self, node: Node, claims: dict[str, float]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        strategy: Any = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        if (bundles := self._bundles()) is not None:
            index, _ = max(bundles[node.node_id], key=lambda bundle: bundle[1].get("CPU", 0.0))
            strategy = PlacementGroupSchedulingStrategy(self._group, index, placement_group_capture_child_tasks=False)
        own = {name: amount for name, amount in claims.items() if name not in ("CPU", "GPU")}
        shipped = connection.to_ship(self._options)
        return (
            _agent_class()
            .options(
                num_cpus=claims.get("CPU", 0),
                num_gpus=claims.get("GPU", 0),
                resources=own,
                max_restarts=0,
                scheduling_strategy=strategy,
                runtime_env=shipped or None,
            )
            .remote()
        )

    def verdict(self, node: Node) -> str:
        """Why a node, or its agent, is dead, in words that follow the node's name; "" if Ray does not say so."""
        import ray

        try:
            entry = next((each for each in ray.nodes() if each["NodeID"] == node.node_id), None)
        except Exception as error:  # whatever Ray raises when its head is gone
            return f"cannot be asked about: {type(error).__name__}: {error}" if not ray.is_initialized() else ""
        if entry is None or not entry["Alive"]:
            reason = (entry or {}).get("DeathReasonMessage") or "it is not in the cluster any more"
            return f"is dead, says Ray: {' '.join(str(reason).split())}"
        return ""

    def release(self, node: Node) -> None:
        """End the agent's actor, if there is one."""
        import ray

        with _lock:
            actor = self._actors.pop(node.node_id, None)
        if actor is not None and ray.is_initialized():
            with contextlib.suppress(Exception):  # it has ended, or Ray has
                ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Let go of the connection, if it was made for lanes; a local cluster ends with it."""
        if self._is_ours:
            self._is_ours = False
            connection.disconnect()


@cache
def _agent_class() -> Any:
    """The actor's class, made once: Ray keeps each one that it was ever given."""
    import ray

    return ray.remote(NodeAgent)


def _placement_group(name: str | None) -> Any:
    if name is None:
        return None
    from ray.util import get_current_placement_group, get_placement_group

    if name == CURRENT:
        if (group := get_current_placement_group()) is None:
            raise ConfigError("ray.placement_group = 'current': this process is in no placement group.")
        return group
    try:
        return get_placement_group(name)
    except ValueError as error:
        raise ConfigError(f"ray.placement_group = {name!r}: {error}") from error


def _node_of(entry: dict[str, Any]) -> Node:
    name = f"{entry['NodeManagerHostname']}/{entry['NodeID'][:6]}"
    amounts = dict(entry["Resources"])
    return Node(entry["NodeID"], name, entry["NodeManagerAddress"], amounts, _HEAD in amounts)


def _is_wanted(node: Node, options: RayOptions) -> bool:
    if isinstance(options.nodes, tuple):
        known = (node.address, node.name, node.name.partition("/")[0])
        return any(name in known or (len(name) > 3 and node.node_id.startswith(name)) for name in options.nodes)
    return options.nodes != WORKERS or not node.is_head


def _free() -> dict[str, dict[str, float]]:
    """What is free on each node, as far as Ray tells."""
    try:
        from ray._private.state import available_resources_per_node

        return available_resources_per_node()
    except (ImportError, AttributeError):  # it is none of Ray's public functions
        return {}


def _failure(error: Exception) -> str:
    """Why an agent did not start, in words that follow its node's name."""
    text = str(error)
    if "ModuleNotFoundError: No module named 'ragen" in text:
        return "has no package ragen: install it there as it is installed here"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"could not start an agent: {type(error).__name__}: {lines[-1] if lines else ''}"
