"""The specification of an environment: everything needed to build it in another process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envlanes.episode.game import Game
from envlanes.errors import ConfigError

HINTS = ("cheap", "heavy", "io")  # costs that a class may declare, which decide between main and workers


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Everything needed to build one environment in any process.

    Attributes:
        env_id: Index of the environment within its engine.
        group_id: Group of environments that share type, configuration and seed.
        tag: Environments with the same tag are built alike, and measured, placed and named together.
        env_type: Registered name or ``"package.module:Class"`` path.
        game: The kind of game.
        env_class: The class itself, or a callable that builds one.
        config: The environment's configuration object, if it has one.
        env_config: The mapping from which ``config`` was made, if there was one.
    """

    env_id: int
    group_id: int
    tag: str
    env_type: str
    game: Game  # before the class: its module is the first that a worker imports of all that it needs
    env_class: Any
    config: Any
    env_config: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse an unknown ``cost_hint``.

        Raises:
            ConfigError: ``cost_hint`` is not one of those.
        """
        hint = getattr(self.env_class, "cost_hint", None)
        if hint not in (None, *HINTS):
            raise ConfigError(f"cost_hint = {hint!r} in {self.env_type!r}: expected one of {HINTS}, or None.")

    @classmethod
    def of(
        cls,
        env_class: Any,
        config: Any = None,
        env_id: int = 0,
        *,
        game: Game,
        group_id: int | None = None,
        tag: str | None = None,
    ) -> EnvSpec:
        """A spec from a class.

        Args:
            env_class: The environment's class, or a function that builds one.
            config: Its configuration object, which it is built with; None to build it without arguments.
            env_id: Its index.
            game: The kind of game.
            group_id: Its group; a group of its own by default.
            tag: Its tag; the name of the class by default.
        """
        # A builder is often an instance, which has no name of its own.
        name = getattr(env_class, "__qualname__", type(env_class).__qualname__)
        path = f"{getattr(env_class, '__module__', '')}:{name}"
        group = env_id if group_id is None else group_id
        return cls(env_id, group, tag or name, path, game, env_class, config)

    def describe(self) -> str:
        """The environment, for messages."""
        return f"env {self.env_id} (tag {self.tag!r}, type {self.env_type!r})"

    @property
    def is_replayable(self) -> bool:
        """Whether it can be rebuilt from its journal; its class or configuration says ``replayable = False`` if not."""
        declared = getattr(self.config, "replayable", True)
        return declared is not False and getattr(self.env_class, "replayable", True)

    @property
    def uses_global_rng(self) -> bool:
        """Whether it may draw from the global generators; it declares ``uses_global_rng = False`` if not."""
        return getattr(self.env_class, "uses_global_rng", True)


def by_tag(specs: Iterable[EnvSpec]) -> dict[str, list[EnvSpec]]:
    """The environments of each tag."""
    members: dict[str, list[EnvSpec]] = defaultdict(list)
    for spec in specs:
        members[spec.tag].append(spec)
    return members
