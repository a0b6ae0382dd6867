"""What tests of text adventures share: environments that are closed again, and what a player might say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def building(env_class: Any, config_class: Any, usual: Mapping[str, Any]) -> Iterator[Callable[..., Any]]:
    """What builds environments with these settings and those that it is given; they are closed with the block."""
    made: list[Any] = []

    def build(**settings: Any) -> Any:
        made.append(env_class(config_class(**{**usual, **settings})))
        return made[-1]

    yield build
    for env in made:
        env.close()
