"""``es_manager.journal``: the same inputs get the same answers in the next process, which plays only what is new."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context

import pytest

from envlanes.errors import ConfigError
from support.episodes import EnvStateManager, config, freeze

TAGS = {
    "Counter": {"env_type": "support.toy_envs:Counter", "env_config": {"goal": 50, "tells": {"extra": (2, None)}}},
    "Pictures": {"env_type": "support.toy_envs:Counter", "env_config": {"goal": 50, "images": 2}},
    "Echo": {"env_type": "support.toy_envs:Echo"},
}
TURNS = 5


def played(journal, mode=False, turns=TURNS, third="Two", seed=3):
    """The results of an episode of so many turns."""
    key = {} if journal is None else {"journal": str(journal)}
    settings = config(TAGS, [(tag, 1) for tag in TAGS], group_size=2, use_multiprocessing=mode, max_workers=2, **key)
    with EnvStateManager(settings, mode="val") as manager:
        states = manager.reset(seed=seed)
        for turn in range(turns):
            action = third if turn == 2 else "One"
            states = manager.step(
                [
                    {"env_id": s["env_id"], "actions": [action], "llm_response": "", "llm_raw_response": ""}
                    for s in states
                ]
            )
        return freeze(manager.get_rollout_states())


def turns_in(journal):
    return len((journal / "val.jsonl").read_text().splitlines()) - 1


@pytest.mark.parametrize("mode", [False, True, "auto"])
@pytest.mark.parametrize("before", range(TURNS + 1))
def test_a_later_process_goes_on(tmp_path, mode, before):
    played(tmp_path, mode, turns=before)
    assert turns_in(tmp_path) == 6 * (before + 1)
    assert played(tmp_path, mode) == played(None)
    assert turns_in(tmp_path) == 6 * (TURNS + 1), "no turn is written twice"


@pytest.mark.parametrize("change", [{"third": "One"}, {"seed": 4}, {"third": "none"}])
def test_what_is_new_is_played(tmp_path, change):
    played(tmp_path)
    assert played(tmp_path, **change) == played(None, **change)
    assert played(tmp_path, **change) == played(None, **change), "now from the journal"
    assert played(tmp_path) == played(None)


def test_known_turns_are_not_played_again(tmp_path):
    from support import toy_envs

    played(tmp_path)
    built = toy_envs.built
    with EnvStateManager(
        config(TAGS, [(tag, 1) for tag in TAGS], group_size=2, use_multiprocessing=False, journal=str(tmp_path)), "val"
    ) as manager:
        manager.reset(seed=3)
        assert toy_envs.built == built


def test_an_episode_of_the_same_process_is_played_again(tmp_path):
    settings = config(TAGS, [("Counter", 1)], group_size=1, use_multiprocessing=False, journal=str(tmp_path))
    with EnvStateManager(settings, "val") as manager:
        for _ in range(2):
            manager.reset(seed=3)
            manager.step([{"env_id": 0, "actions": ["One"], "llm_response": "", "llm_raw_response": ""}])
    assert turns_in(tmp_path) == 2, "the last episode"


def test_another_configuration_is_refused(tmp_path):
    played(tmp_path)
    other = {**TAGS, "Counter": {"env_type": "support.toy_envs:Counter", "env_config": {"goal": 7}}}
    settings = config(other, [(tag, 1) for tag in other], use_multiprocessing=False, journal=str(tmp_path))
    with pytest.raises(ConfigError, match="Counter"):
        EnvStateManager(settings, "val")


def _killed(path, mode, turn):
    os.setpgid(0, 0)
    played(path, mode, turn)
    os.killpg(0, signal.SIGKILL)


@pytest.mark.parametrize("mode", [False, True])
def test_a_killed_process_group_loses_nothing(tmp_path, mode):
    for turn in (1, 2, 4):
        child = get_context("spawn").Process(target=_killed, args=(tmp_path, mode, turn))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL and turns_in(tmp_path) == 6 * (turn + 1)
    assert played(tmp_path, mode) == played(None)
