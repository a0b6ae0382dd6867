"""What the log says when many environments fail at once."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel.repeats import Repeats
from ragen.parallel.turn import EnvSpec
from support.episodes import config, errors, play

MANY = 12


def many(misdeed: str, place: str, **settings: Any) -> dict[str, Any]:
    """Many environments that do the same wrong, after two good ones."""
    tags = {
        "Good": {"env_type": "support.faulty_envs:Walk"},
        "Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": misdeed, "place": place}},
    }
    return config(tags, [("Good", 2), ("Evil", MANY)], **{"use_multiprocessing": True, **settings})


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("place", ["reset", "turn 0"])
def test_many_that_fail_alike_have_one_traceback_and_are_counted(
    place: str, parallel: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with EnvStateManager(many("raises", place, use_multiprocessing=parallel)) as manager:
        rollouts = play(manager, 3)
    assert [errors(rollout)[-1] for rollout in rollouts] == [None] * 2 + ["ValueError: boom"] * MANY
    said = [record.getMessage() for record in caplog.records]
    assert len([record for record in caplog.records if record.exc_info]) == 1
    pattern = rf"and {MANY - 1} more of tag 'Evil' \(env [0-9, -]+\): ValueError: boom \(while: \w+\)\. "
    assert [bool(re.match(pattern, line)) for line in said] == [False, False, True, True]
    assert all(re.match(r"env \d+ \(tag 'Evil', type 'support.faulty_envs:Faulty'\) at ", line) for line in said[:2])
    assert all("Trying once more" in line for line in said[::2])
    assert all("Its episode is over" in line for line in said[1::2])


def test_each_episode_tells_its_failures_anew(caplog: pytest.LogCaptureFixture) -> None:
    with EnvStateManager(many("raises", "turn 0", on_env_failure="truncate")) as manager:
        for episode in (1, 2):
            play(manager, 1)
            assert len(caplog.records) == 2 * episode


def test_many_whose_workers_end_are_told_once_with_the_lane_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), EnvStateManager(many("exits", "turn 0")) as manager:
        rollouts = play(manager, 1)
    assert [errors(rollout)[-1] for rollout in rollouts[2:]] == ["its process exited with code 3"] * MANY
    assert len(caplog.records) == 6
    assert f"and {MANY - 1} more of tag 'Evil' (env " in caplog.text


def test_many_that_do_not_replay_are_told_once(caplog: pytest.LogCaptureFixture, kill_lanes: Any) -> None:
    settings = config({"Clock": {"env_type": "support.faulty_envs:Clock"}}, [("Clock", MANY)], use_multiprocessing=True)
    with EnvStateManager(settings) as manager:
        rollouts = play(manager, 1, lambda turn: kill_lanes(manager))
    assert all("does not replay: at the reset" in str(errors(rollout)[0]) for rollout in rollouts)
    assert caplog.text.count("is not deterministic") == 1
    assert caplog.text.count("was killed by SIGKILL") == 2  # the lanes
    assert f"and {MANY - 1} more of tag 'Clock' (env " in caplog.text


def test_the_counted_are_listed_in_short(caplog: pytest.LogCaptureFixture) -> None:
    repeats = Repeats(logging.getLogger("listed"))
    for env_id in (4, 9, 2, 3, 3, 7, 1):
        repeats.warn(EnvSpec(env_id, 0, "T", "type", object, None), "it broke", "It is over.", f"env {env_id} broke.")
    repeats.sum_up()
    repeats.sum_up()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["env 4 broke. It is over.", "and 5 more of tag 'T' (env 1-3, 7, 9): it broke. It is over."]
