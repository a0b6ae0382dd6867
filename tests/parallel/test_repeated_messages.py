"""What the log says when many environments fail at once: little, and none is left out."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from envlanes import EnvSpec
from envlanes.repeated_messages import RepeatedMessageFilter
from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config, errors, play

MANY = 12
FAULTY = "support.faulty_envs:Faulty"


def numbers_of(caplog: pytest.LogCaptureFixture, tag: str) -> list[int]:
    """How many further environments of a tag each line counts."""
    lines = [record.getMessage() for record in caplog.records]
    return [int(found[1]) for line in lines if (found := re.match(rf"(\d+) more environments? of tag '{tag}'", line))]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(("fault", "place"), [("raises", "reset"), ("raises", "turn 0"), ("exits", "turn 0")])
def test_many_that_fail_alike_are_told_in_few_lines_and_counted(
    fault: str, place: str, parallel: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if fault == "exits" and not parallel:
        pytest.skip("it would end this process")
    tags = {
        "Good": {"env_type": "support.faulty_envs:Walk"},
        "Faulty": {"env_type": FAULTY, "env_config": {"fault": fault, "place": place}},
    }
    settings = config(tags, [("Good", 2), ("Faulty", MANY)], use_multiprocessing=parallel)
    with caplog.at_level(logging.WARNING), EnvStateManager(settings) as manager:
        rollouts = play(manager, 3)
        assert set(numbers_of(caplog, "Faulty")) == {MANY - 1}
        assert len(caplog.records) <= 5 and sum(bool(record.exc_info) for record in caplog.records) <= 1
    assert [errors(rollout)[-1] is None for rollout in rollouts] == [True] * 2 + [False] * MANY


@pytest.mark.usefixtures("backend")
def test_many_that_do_not_replay_are_told_once(caplog: pytest.LogCaptureFixture, kill_lanes: Any) -> None:
    settings = config({"Clock": {"env_type": "support.faulty_envs:Clock"}}, [("Clock", MANY)], use_multiprocessing=True)
    with EnvStateManager(settings) as manager:
        assert manager.not_deterministic() == {}
        play(manager, 1, lambda turn: kill_lanes(manager))
        assert manager.not_deterministic() == {"Clock": "support.faulty_envs:Clock"}
    assert sum(numbers_of(caplog, "Clock")) == MANY - 1


@pytest.mark.parametrize("what", ["no door in {!r}", "at <Corridor at 0x{}>", "seed {}"])
def test_failures_that_differ_in_what_was_seen_alone_are_counted_together_and_ever_more_rarely(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = RepeatedMessageFilter(logging.getLogger("one by one"))
    for env_id in range(100):
        text = what.format(1000 + env_id)
        messages.warn(EnvSpec.of(object, None, env_id, tag="T"), text, "It is over.", text)
        messages.sum_up()
    messages.forget()
    assert len(caplog.records) < 10 and sum(numbers_of(caplog, "T")) == 99
