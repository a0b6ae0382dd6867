"""What tests of text adventures share: environments that are closed again, and what a player might say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ragen.env.textworld.text import admissible_in

Solve = Callable[[Sequence[str], Sequence[str]], str | None]


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


def mostly_sensible(solve: Solve, share: float, others: Sequence[str]) -> Callable[[dict[str, Any], int], list[str]]:
    """What a player might say, by a rollout cache and a turn: this share of the time what the scripted player would."""

    def answers(cache: dict[str, Any], turn: int) -> list[str]:
        shown = [each["state"] for each in cache["history"]]
        said = [(each["actions"] or [""])[0] for each in cache["history"] if "actions" in each]
        rng = random.Random(f"{cache['env_id']}/{turn}")
        return [(rng.random() < share and solve(shown, said)) or rng.choice([*admissible_in(shown[-1]), *others])]

    return answers
