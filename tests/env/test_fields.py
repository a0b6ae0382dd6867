"""Values of ``env_config`` that plainly are not what their fields are declared to be: refused before any start."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pytest

from ragen.env.fields import check_kinds
from ragen.errors import ConfigError
from ragen.llm_agent.environments import read_config
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.tools.check import check_parallel
from ragen.turns.container import MultiProcessEnvironmentContainer

if TYPE_CHECKING:
    from nowhere import Nothing


@dataclasses.dataclass
class Config:
    count: int = 3
    share: float | None = 0.5
    is_hard: bool = False
    room: tuple[int, int] = (6, 6)
    words: list[str] = dataclasses.field(default_factory=list)
    steps: Sequence[int] = (1,)
    table: dict[int, str] = dataclasses.field(default_factory=dict)
    level: Literal["easy", "hard"] = "easy"
    anything: Any = None
    careless: int = "none"  # type: ignore[assignment]
    halved: int = 4
    name: str = "x"

    def __post_init__(self) -> None:
        self.halved = int(self.halved) // 2


@dataclasses.dataclass
class Unreadable:
    count: int = 3
    other: Nothing | None = None


class Game:
    config_class = Config


def check(**given: Any) -> None:
    check_kinds("", "it", Config(**given), given)


@pytest.mark.parametrize(
    "given",
    [
        *({"count": value} for value in ("3", "three", [3], {"a": 1}, 8.5, float("inf"))),
        *({"share": value} for value in ("0.5", [])),
        {"is_hard": "false"},
        *({"room": value} for value in ("6", 6, [6, "6"])),
        {"words": 3},
        {"steps": "12"},
        *({"table": value} for value in ("a", 1)),
        {"level": ["easy"]},
        {"name": ["a"]},
    ],
)
def test_a_value_of_another_kind_is_found(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(given))} = "):
        check(**given)


def test_what_may_work_passes() -> None:
    works = {"count": 3.0, "share": 1, "is_hard": 1, "room": [6, 6], "words": "UDLR", "steps": [1, 2], "name": 5}
    check(**works)
    check(count=None, share=None, room=[1, 2, 3], table=["a", "b"], level="middling", anything="x")
    check(careless="some", halved="8")  # declared otherwise than meant; made a number by the class
    given = {"count": "3"}
    for config in (Unreadable(**given), None, object()):  # type: ignore[arg-type]
        check_kinds("", "it", config, given)


def config(env_type: str, **fields: Any) -> dict[str, Any]:
    part = {"env_groups": 1, "group_size": 2, "env_configs": {"tags": ["It"], "n_groups": [1]}}
    entry = {"env_type": env_type, "max_actions_per_traj": 8, "env_config": fields}
    return {"custom_envs": {"It": entry}, "es_manager": {"train": part}}


def test_managers_containers_and_checks_refuse_it_before_anything_starts() -> None:
    game, said = f"{__name__}:Game", "'3': .*Game.* expects int"
    with pytest.raises(ConfigError, match=rf"^custom_envs\.It\.env_config: count = {said}\.$"):
        EnvStateManager(config(game, count="3"))
    with pytest.raises(ConfigError, match=rf"env_config: count = {said}\.$"):
        MultiProcessEnvironmentContainer(game, 1, 1, 0, {"count": "3"})
    with pytest.raises(ConfigError, match=rf"^count = {said}\.$"):
        check_parallel(game, {"count": "3"})
    assert len(read_config(config(game, count=4), "train").entries) == 2
