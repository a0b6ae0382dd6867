"""``es_manager.env_state_hash``: equal observations have equal hashes, wherever their environments live."""

from __future__ import annotations

from typing import Any

from support.episodes import EnvStateManager, config, freeze, play

TAGS = {
    "Counter": {"env_type": "support.toy_envs:Counter", "env_config": {"goal": 50, "tells": {"extra": 2}}},
    "Pictures": {"env_type": "support.toy_envs:Counter", "env_config": {"goal": 50, "images": 2}},
    "Draws": {"env_type": "support.faulty_envs:GlobalDraws"},
}


def configuration(**es_manager):
    return config(TAGS, [(tag, 1) for tag in TAGS], **{"group_size": 2, **es_manager})


def test_states_have_hashes_where_they_are_asked_for(backend):
    def hashes(mode):
        with EnvStateManager(configuration(use_multiprocessing=mode, env_state_hash=True)) as manager:
            caches = play(manager)
            return [[turn["env_state_hash"] for turn in cache["history"]] for cache in caches]

    here = hashes(False)
    assert here == hashes(True)
    assert here[0] == here[1] and all(len(each) == 32 for row in here for each in row)
    with EnvStateManager(configuration(use_multiprocessing=False)) as manager:
        shown: dict[Any, set[str]] = {}
        for cache, row in zip(play(manager), here, strict=True):
            assert not any("env_state_hash" in turn for turn in cache["history"])
            for turn, given in zip(cache["history"], row, strict=True):
                shown.setdefault(repr(freeze([turn["state"], turn.get("images")])), set()).add(given)
    assert all(len(each) == 1 for each in shown.values()), "equal where environments show the same"
    assert len(set.union(*shown.values())) == len(shown), "and only there"
