"""``es_manager.ray``: the part of a Ray cluster to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envlanes.errors import ConfigError
from envlanes.settings import Expected, check, is_amount, or_none, refuse_unknown

ALL, WORKERS = "all", "worker"


@dataclass(frozen=True)
class RayOptions:
    """The part of a cluster to use.

    Attributes:
        address: Address of the cluster, as ``ray.init`` takes it; None for the one that this process is connected to,
            or that ``RAY_ADDRESS`` names, or else for a local one that lasts as long as its workers.
        num_cpus: Processors that each worker claims on its node; 0 for none.
        resources: Custom resources that each worker claims on its node, by name.
        nodes: ``"all"`` of them, ``"worker"`` for all but the head, or the ones that are named: by id (or how it
            begins), address or host name.
    """

    address: str | None = None
    num_cpus: float = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    nodes: str | Sequence[str] = ALL

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid; the message names it and what was expected.
        """
        check(self, _FIELDS, "ray.")
        if reserved := {"CPU", "GPU", "memory", "object_store_memory"}.intersection(self.resources):
            raise ConfigError(f"ray.resources.{min(reserved)}: that is not a custom resource; see ray.num_cpus.")
        if (self.address or "").startswith("ray://"):
            raise ConfigError(
                f"ray.address = {self.address!r}: workers cannot be started over Ray Client, as the driver is not in "
                "the cluster's network; run the program on a node of the cluster (`ray job submit` does), with address "
                "'auto'."
            )

    @classmethod
    def of(cls, values: Any) -> RayOptions:
        """Options from a mapping; None for the defaults.

        Raises:
            ConfigError: There is no such option, or a value is invalid.
        """
        if values is None or isinstance(values, cls):
            return values or cls()
        if not isinstance(values, Mapping):
            raise ConfigError(f"ray = {values!r}: expected a mapping such as {{num_cpus: 1, nodes: all}}.")
        refuse_unknown(cls, values, "ray.")
        return cls(**{name: value for name, value in values.items() if value is not None})

    def claims(self) -> dict[str, float]:
        """The claims of one worker, by Ray's names."""
        return {name: amount for name, amount in (("CPU", self.num_cpus), *self.resources.items()) if amount}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


_TEXT = or_none(_is_text, "a text")
_FIELDS: dict[str, Expected] = {
    "address": _TEXT,
    "num_cpus": (is_amount, "a number of at least 0"),
    "resources": (
        lambda value: isinstance(value, Mapping) and all(map(is_amount, value.values())),
        "a mapping of names to amounts",
    ),
    "nodes": (
        lambda value: value in (ALL, WORKERS) or (type(value) is not str and bool(value) and all(map(_is_text, value))),
        "'all', 'worker', or a list of nodes",
    ),
}
