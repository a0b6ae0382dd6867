"""What the log says when many environments fail at once."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from envlanes import EnvSpec
from envlanes.repeated_messages import RepeatedMessageFilter
from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config, errors, play

each_kind = pytest.mark.usefixtures("backend")

MANY = 12


def many(fault: str, place: str, **settings: Any) -> dict[str, Any]:
    """Many environments that do the same wrong, after two good ones."""
    tags = {
        "Good": {"env_type": "support.faulty_envs:Walk"},
        "Faulty": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": fault, "place": place}},
    }
    return config(tags, [("Good", 2), ("Faulty", MANY)], **{"use_multiprocessing": True, **settings})


@pytest.mark.parametrize(
    "what",
    [
        "ValueError: no door in {!r}",
        'ReturnError: Corridor.step() returned 3 values, ("{}", 0.0, True; expected 4 values',
        "ValueError: no door in <Corridor at 0x{1}>",
    ],
)
def test_failures_that_differ_in_what_was_seen_alone_are_counted_together(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = RepeatedMessageFilter(logging.getLogger("ragen.test"))
    for env_id, seen in enumerate((("_P_D", "7fa0"), ("PD'_", "7fcc"), ("__DP", "7b11"))):
        spec = EnvSpec.of(object, None, env_id=env_id, tag="Corridor")
        messages.warn(spec, what.format(*seen), "This ends the episode.", what.format(*seen))
    messages.forget()
    assert [record.getMessage()[:37] for record in caplog.records][1:] == ["2 more environments of tag 'Corridor'"]


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
    first, *more, others = said
    name = r"env \d+ \(tag 'Faulty', type 'support.faulty_envs:Faulty'\)"
    assert re.match(rf"{name} at .* raised ValueError: boom \(while: \w+\)\..* Retrying", first)
    again = [rf"{name} (failed again in the same way|at .*boom \(while: \w+\))\. "] * (1 + parallel)
    then = ["The main process plays it once more.*", r"This ends the episode\."][not parallel :]
    assert len(more) == len(then) and all(map(re.fullmatch, map("".join, zip(again, then, strict=True)), more))
    pattern = rf"{MANY - 1} more environments of tag 'Faulty' \(env [0-9, -]+\): ValueError: boom \(while: \w+\)\. This"
    assert re.match(pattern, others)


def test_all_failures_are_counted_when_a_rollout_is_over_and_none_is_left_for_the_end(caplog: Any) -> None:
    with EnvStateManager(many("raises", "turn 0", use_multiprocessing=False)) as manager:
        manager.reset(seed=1)
        for env_id in range(2, MANY + 2):  # one by one, as replies arrive
            manager.step([{"env_id": env_id, "actions": ["Right"], "llm_response": "", "llm_raw_response": ""}])
        manager.get_rollout_states()
        said = [record.getMessage() for record in caplog.records]
    assert len(caplog.records) == len(said)
    counts = [int(found[1]) for line in said if (found := re.match(r"(\d+) more environments? of tag 'Faulty'", line))]
    assert len(counts) > 1 and sum(counts) == MANY - 1


def test_each_episode_tells_its_failures_anew(caplog: pytest.LogCaptureFixture) -> None:
    with EnvStateManager(many("raises", "turn 0", on_env_failure="truncate")) as manager:
        for episode in (1, 2):
            play(manager, 1)
            assert len(caplog.records) == 2 * episode


@each_kind
def test_many_whose_workers_end_are_told_once_with_the_lane_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), EnvStateManager(many("exits", "turn 0")) as manager:
        rollouts = play(manager, 1)
    assert [errors(rollout)[-1] for rollout in rollouts[2:]] == ["its process exited with code 3"] * MANY
    assert len(caplog.records) == 5
    assert f"{MANY - 1} more environments of tag 'Faulty' (env " in caplog.text


@each_kind
def test_many_that_do_not_replay_are_told_once(caplog: pytest.LogCaptureFixture, kill_lanes: Any) -> None:
    settings = config({"Clock": {"env_type": "support.faulty_envs:Clock"}}, [("Clock", MANY)], use_multiprocessing=True)
    with EnvStateManager(settings) as manager:
        assert manager.not_deterministic() == {}
        rollouts = play(manager, 1, lambda turn: kill_lanes(manager))
        assert manager.not_deterministic() == {"Clock": "support.faulty_envs:Clock"}
    assert all("does not replay: at the reset" in str(errors(rollout)[0]) for rollout in rollouts)
    assert caplog.text.count("is not deterministic") == 1
    assert caplog.text.count("was killed by SIGKILL") == 2  # the lanes
    assert f"{MANY - 1} more environments of tag 'Clock' (env " in caplog.text


def spec(env_id: int) -> EnvSpec:
    return EnvSpec.of(object, None, env_id, tag="T")


def test_the_counted_are_listed_in_short(caplog: pytest.LogCaptureFixture) -> None:
    messages = RepeatedMessageFilter(logging.getLogger("listed"))
    for env_id in (4, 9, 2, 3, 3, 7, 1):
        messages.warn(spec(env_id), "it broke", "It is over.", f"env {env_id} broke.")
    messages.sum_up()
    messages.sum_up()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["env 4 broke. It is over.", "5 more environments of tag 'T' (env 1-3, 7, 9): it broke. It is over."]


def test_the_first_that_fails_again_is_not_counted_with_the_others(caplog: pytest.LogCaptureFixture) -> None:
    messages = RepeatedMessageFilter(logging.getLogger("again"))
    for fails in ([4, 2, 4, 3], [4]):
        for env_id in fails:
            messages.warn(spec(env_id), "it broke", "It is over.", f"env {env_id} broke.")
        messages.sum_up(is_end=True)
    assert [record.getMessage() for record in caplog.records] == [
        "env 4 broke. It is over.",
        "2 more environments of tag 'T' (env 2-3), and env 4 again: it broke. It is over.",
        "env 4 of tag 'T' again: it broke. It is over.",
    ]


@each_kind
def test_a_killed_worker_is_told_with_what_follows(caplog: pytest.LogCaptureFixture, kill_lanes: Any) -> None:
    with caplog.at_level(logging.WARNING), EnvStateManager(many("is killed", "turn 0", max_restarts=1)) as manager:
        play(manager, 1)
    at_work = [record.getMessage() for record in caplog.records if "was killed by SIGKILL at env" in record.message]
    assert at_work and at_work[0].endswith("'). Retrying on a rebuilt environment.")
    caplog.clear()
    settings = config({"Walk": {"env_type": "support.faulty_envs:Walk"}}, [("Walk", 2)], use_multiprocessing=True)
    with caplog.at_level(logging.WARNING), EnvStateManager(settings) as manager:
        play(manager, 2, lambda turn: turn == 1 and kill_lanes(manager))
    idle = [record.getMessage() for record in caplog.records]
    assert idle and all(line.endswith(" was killed by SIGKILL. A new worker takes over.") for line in idle)


def test_what_lasts_is_a_warning_once_and_then_information(caplog: pytest.LogCaptureFixture) -> None:
    messages = RepeatedMessageFilter(logging.getLogger("once"))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            messages.say("it stays so", "key")
            messages.say("its workers do not start", "lane")
            messages.say("its worker was killed")
    levels: dict[str, list[str]] = {record.getMessage(): [] for record in caplog.records}
    for record in caplog.records:
        levels[record.getMessage()].append(record.levelname)
    assert levels == {
        "it stays so": ["WARNING", "INFO"],
        "its workers do not start": ["WARNING", "INFO"],
        "its worker was killed": ["WARNING", "WARNING"],
    }


def test_failures_that_come_one_by_one_are_told_ever_more_rarely_and_all_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = RepeatedMessageFilter(logging.getLogger("one by one"))
    for env_id in range(100):
        messages.warn(spec(env_id), f"seed {1000 + env_id} broke", "It is over.", f"env {env_id} broke.")
        messages.sum_up()
    messages.forget()
    first, *others = [record.getMessage() for record in caplog.records]
    assert first == "env 0 broke. It is over." and len(others) < 9
    assert sum(int(re.match(r"(\d+) more environments? of tag 'T'", line)[1]) for line in others) == 99  # type: ignore[index]
    assert others[0].endswith("seed 1001 broke. It is over.") and others[-1].endswith("seed .. broke. It is over.")
