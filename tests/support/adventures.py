"""What tests of text adventures share: environments that are closed again, and what a player might say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ragen.env.textworld.text import admissible_in


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


def admissible_or(others: Sequence[str]) -> Callable[[dict[str, Any], int], list[str]]:
    """What a player might say, by a rollout cache and a turn: an admissible command, or one of others."""

    def answers(cache: dict[str, Any], turn: int) -> list[str]:
        rng = random.Random(f"{cache['env_id']}/{turn}")
        return [rng.choice([*admissible_in(cache["history"][-1]["state"]), *others])]

    return answers
