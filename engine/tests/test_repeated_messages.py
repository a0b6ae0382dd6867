"""When many environments fail alike, the first is a warning, and the others are at the level INFO."""

from __future__ import annotations

import logging

import pytest

from support.episodes import EnvStateManager, config, errors, play

MANY = 12
FAULTY = "support.faulty_envs:Faulty"


def warnings(caplog):
    return [record for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(("fault", "place"), [("raises", "reset"), ("raises", "turn 0"), ("exits", "turn 0")])
def test_many_that_fail_alike_are_few_warnings_and_each_has_its_error(fault, place, parallel, caplog):
    if fault == "exits" and not parallel:
        pytest.skip("it would end this process")
    tags = {
        "Good": {"env_type": "support.faulty_envs:Walk"},
        "Faulty": {"env_type": FAULTY, "env_config": {"fault": fault, "place": place}},
    }
    settings = config(tags, [("Good", 2), ("Faulty", MANY)], use_multiprocessing=parallel)
    with caplog.at_level(logging.INFO), EnvStateManager(settings) as manager:
        rollouts = play(manager, 3)
        assert 1 <= len(warnings(caplog)) <= 5 and sum(bool(record.exc_info) for record in caplog.records) <= 1
    assert [errors(rollout)[-1] is None for rollout in rollouts] == [True] * 2 + [False] * MANY
