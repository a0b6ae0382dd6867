"""Which nodes of a Ray cluster lanes live on, and what they claim there: ``es_manager.ray``."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ragen.errors import ConfigError

ALL, WORKERS = "all", "worker"
CURRENT = "current"
_CLIENT = "ray://"


@dataclass(frozen=True)
class RayOptions:
    """What is used of a cluster.

    Attributes:
        address: Of the cluster, as ``ray.init`` takes it; None for the one that this process is connected to, or that
            ``RAY_ADDRESS`` names, or else for a local one that lasts as long as its lanes.
        num_cpus: Processors that each lane claims of its node; 0 for none.
        resources: What else each lane claims of its node, by name.
        nodes: ``"all"`` of them, ``"worker"`` for all but the head, or the ones that are named: by id (or how it
            begins), address or host name.
        placement_group: Name of a placement group whose bundles the claims are made of, ``"current"`` for the one that
            this process is in; None for none.
        runtime_env: What Ray is to see to on the nodes before a lane starts there, such as code to be shipped: its
            ``runtime_env``, as JSON; "" for nothing beside what the job has.
    """

    address: str | None = None
    num_cpus: float = 1
    resources: tuple[tuple[str, float], ...] = ()
    nodes: str | tuple[str, ...] = ALL
    placement_group: str | None = None
    runtime_env: str = ""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: One cannot work; the message names it and what was expected.
        """
        for name in ("address", "placement_group"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"ray.{name} = {value!r}: expected a text, or null.")
        if self.address is not None and self.address.startswith(_CLIENT):
            raise ConfigError(
                f"ray.address = {self.address!r}: lanes cannot be had over Ray Client, since the driver is not in the "
                "cluster's network; run the program on a node of the cluster (`ray job submit` does), with address "
                "'auto'."
            )
        _expect_amount("ray.num_cpus", self.num_cpus)
        for name, amount in self.resources:
            _expect_amount(f"ray.resources.{name}", amount)
            if name in ("CPU", "memory", "object_store_memory"):
                raise ConfigError(f"ray.resources.{name} = {amount!r}: that is no custom resource; see ray.num_cpus.")
        if isinstance(self.nodes, str) and self.nodes not in (ALL, WORKERS):
            raise ConfigError(f"ray.nodes = {self.nodes!r}: expected 'all', 'worker', or a list of nodes.")
        if not self.nodes or not all(isinstance(name, str) and name for name in self.nodes):
            raise ConfigError(f"ray.nodes = {list(self.nodes)!r}: expected 'all', 'worker', or a list of nodes.")

    @classmethod
    def of(cls, values: Any, key: str = "ray") -> RayOptions:
        """Options from a mapping, or from nothing.

        Args:
            values: The mapping; None for the defaults.
            key: Where it stands, for messages.

        Raises:
            ConfigError: There is no such option, or a value cannot work.
        """
        if values is None:
            return cls()
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            raise ConfigError(f"{key} = {values!r}: expected a mapping such as {{num_cpus: 1, nodes: all}}.")
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                meant = f"{key + '.' + near[0]!r} was meant?" if near else f"there are {', '.join(known)}."
                raise ConfigError(f"{key}.{name} = {values[name]!r}: there is no such key; {meant}")
        try:
            return cls(**{**values, **_hashable(values, key)})
        except ConfigError as error:
            text = str(error)
            raise ConfigError(key + text.removeprefix("ray") if text.startswith("ray.") else text) from None

    def environment(self) -> dict[str, Any]:
        """``runtime_env`` as Ray takes it."""
        return json.loads(self.runtime_env) if self.runtime_env else {}

    def local_paths(self) -> list[str]:
        """What ``runtime_env`` ships from this machine, which Ray does for a whole job alone."""
        given = self.environment()
        listed = given.get("py_modules") or []
        paths = [given.get("working_dir"), *(listed if isinstance(listed, list) else [listed])]
        return [str(path) for path in paths if path and "://" not in str(path)]

    def claims(self) -> dict[str, float]:
        """What one lane claims, by Ray's names."""
        return {name: amount for name, amount in (("CPU", self.num_cpus), *self.resources) if amount}


def _hashable(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    resources, nodes = values.get("resources") or {}, values.get("nodes", ALL)
    if not isinstance(resources, Mapping):
        raise ConfigError(f"{key}.resources = {resources!r}: expected a mapping of names to amounts.")
    if isinstance(nodes, list | tuple):
        nodes = tuple(nodes)
    elif not isinstance(nodes, str):
        raise ConfigError(f"{key}.nodes = {nodes!r}: expected 'all', 'worker', or a list of nodes.")
    amounts = tuple(sorted((str(name), amount) for name, amount in resources.items()))
    return {"resources": amounts, "nodes": nodes, "runtime_env": _as_json(values.get("runtime_env"), key)}


def _as_json(given: Any, key: str) -> str:
    if not given:
        return ""
    try:
        if not isinstance(given, Mapping):
            raise TypeError
        return json.dumps(given, sort_keys=True)
    except (TypeError, ValueError):
        expected = "expected a mapping of plain values, such as {working_dir: .}"
        raise ConfigError(f"{key}.runtime_env = {given!r}: {expected}, which ray.init takes.") from None


def _expect_amount(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name} = {value!r}: expected a number of at least 0.")
