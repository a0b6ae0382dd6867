"""Branches of a manager: rollouts that go on from a turn of another, equal to what plays the same from the start."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ragen.errors import ConfigError, ForkError, InputError, StateError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.random_player import RandomPlayer
from support.episodes import config, freeze, play

COUNTER = {"env_type": "support.toy_envs:Counter", "env_config": {"goal": 50, "tells": {"extra": 2}}}
PICTURES = {"env_type": "support.toy_envs:Counter", "env_config": {"goal": 50, "images": 2}}
ECHO = {"env_type": "support.toy_envs:Echo"}
DRAWS = {"env_type": "support.faulty_envs:GlobalDraws"}
TAGS = {"Counter": COUNTER, "Pictures": PICTURES, "Echo": ECHO, "Draws": DRAWS}
WORDS = (["One"], ["Two", "nonsense"], ["One", "Two"], [], ["Two", "Two"], ["One", "One", "One"])
Kill = Callable[[object], None]


def configuration(**es_manager: Any) -> dict[str, Any]:
    return config(TAGS, [(tag, 1) for tag in TAGS], **{"group_size": 2, **es_manager})


def counters(**es_manager: Any) -> dict[str, Any]:
    return config({"Counter": COUNTER}, [("Counter", 1)], **{"group_size": 2, **es_manager})


def asked(env_ids: Sequence[int], turns: Sequence[int]) -> list[dict[str, Any]]:
    """An input for each environment; of turn -1 one that ends a Counter's game."""
    return [
        {
            "env_id": env_id,
            "actions": WORDS[turn % len(WORDS)] if turn >= 0 else ["Stop"],
            "llm_response": f"response {turn}",
            "llm_raw_response": f"raw {turn}",
        }
        for env_id, turn in zip(env_ids, turns, strict=True)
    ]


def cache_of(manager: EnvStateManager, env_id: int) -> dict[str, Any]:
    return next(cache for cache in manager.rollout_cache or [] if cache["env_id"] == env_id)


def alike(cache: dict[str, Any]) -> Any:
    """A cache without what names it, and what it has as a branch or as a member of a group alone."""
    kept = {key: value for key, value in cache.items() if key not in ("env_id", "parent", "turn")}
    kept["metrics"] = {key: value for key, value in cache.get("metrics", {}).items() if "/pass@" not in key}
    return freeze(kept)


def straight(turns: Sequence[int], **es_manager: Any) -> list[Any]:
    """Caches and statuses of all environments after these turns, played in this process from the start."""
    with EnvStateManager(configuration(**es_manager, use_multiprocessing=False)) as manager:
        manager.reset()
        for turn in turns:
            manager.step(asked(range(8), [turn] * 8))
        caches = manager.get_rollout_states()
        return [(alike(cache), entry["status"]) for cache, entry in zip(caches, manager.envs, strict=True)]


# What a branch is


@pytest.mark.parametrize(
    ("backend", "mode", "killed"),
    [
        ("process", True, False),
        ("process", True, True),
        ("executor", True, True),
        ("process", False, False),
        ("process", "auto", False),
    ],
    indirect=["backend"],
)
def test_branches_play_on_as_if_they_had_played_from_the_start(
    backend: str, mode: Any, killed: bool, kill_lanes: Kill
) -> None:
    first, later = [0, 1, 2, 3, 4], [5, 2, 0]
    with EnvStateManager(configuration(use_multiprocessing=mode)) as manager:
        manager.reset()
        for turn in first:
            manager.step(asked(range(8), [turn] * 8))
        ids = {(env_id, turn): manager.branch(env_id, 1, turn)[0] for env_id in range(8) for turn in (0, 2, 5, None)}
        if killed:
            kill_lanes(manager)
        for turn in later:
            manager.step(asked(list(ids.values()), [turn] * len(ids)))
        caches = {cache["env_id"]: cache for cache in manager.get_rollout_states()}
        for after in (0, 2, 5):
            expected = straight([*first[:after], *later])
            for env_id in range(8):
                for turn in (after, None) if after == 5 else (after,):
                    new_id = ids[env_id, turn]
                    assert (alike(caches[new_id]), manager.branches[new_id].entry["status"]) == expected[env_id]
                    assert (caches[new_id]["parent"], caches[new_id]["turn"]) == (env_id, after)
                    assert caches[new_id]["group_id"] == caches[env_id]["group_id"]
        assert [alike(caches[env_id]) for env_id in range(8)] == [cache for cache, _ in straight(first)]


def test_a_branch_begins_with_what_its_parent_had_then() -> None:
    given = configuration(use_multiprocessing=False)
    with EnvStateManager(given) as manager, EnvStateManager(given) as other:
        manager.reset()
        other.reset()
        before = []
        for turn in range(5):
            caches = map(alike, other.rollout_cache or [])
            before.append([(cache, copy.deepcopy(e["status"])) for cache, e in zip(caches, other.envs, strict=True)])
            for each in (manager, other):
                each.step(asked(range(8), [turn] * 8))
            manager.get_rollout_states()  # which writes metrics into histories
        for turn in range(5):
            for env_id in range(8):
                (new_id,) = manager.branch(env_id, 1, turn)
                branch = manager.branches[new_id]
                assert (alike(branch.cache), branch.entry["status"]) == before[turn][env_id]


def test_branches_share_nothing_with_each_other_nor_with_their_parent() -> None:
    with EnvStateManager(counters(use_multiprocessing=False)) as manager:
        manager.reset()
        manager.step(asked([0], [0]))
        one, two = manager.branch(0, 2)
        for cache in (cache_of(manager, one), manager.rollout_cache[0]):
            cache["history"][0]["info"]["count"] = 99
            cache["history"][0]["actions"].append("more")
        assert cache_of(manager, two)["history"][0] == {
            **manager.rollout_cache[1]["history"][0],
            "actions": [1],
            "reward": 0.1,
            "info": {"count": 1, "odd": True, "success": False, "extra": 2},
            "llm_response": "response 0",
            "llm_raw_response": "raw 0",
        }
        entries = [manager.branches[new_id].entry for new_id in (one, two)]
        assert entries[0]["config"] is not entries[1]["config"] is not manager.envs[0]["config"]
        assert entries[0]["env"].plus(0) == entries[1]["env"].plus(0) == 1
        manager.step(asked([one], [4]))
        assert [entry["env"].plus(0) for entry in (*entries, manager.envs[0])] == [5, 1, 1]


def test_a_branch_of_a_branch_tells_its_parent(backend: str) -> None:
    with EnvStateManager(counters(use_multiprocessing=True)) as manager:
        manager.reset()
        for turn in (0, 2):
            manager.step(asked([0], [turn]))
        (first,) = manager.branch(0, 1, 1)
        manager.step(asked([first], [4]))
        (second,) = manager.branch(first, 1)
        assert [cache_of(manager, second)[key] for key in ("parent", "turn", "group_id")] == [first, 2, 0]
        assert manager.branches[second].entry["status"].num_actions == 3
        assert cache_of(manager, second)["history"][-1]["state"] == "train seed 1000 count 5"
        assert manager.branches[second].entry["env"].plus(0) == 5


def test_branches_may_be_switched_between_main_and_lanes(backend: str) -> None:
    with EnvStateManager(counters(use_multiprocessing=True)) as manager:
        manager.reset()
        manager.step(asked([0, 1], [0, 0]))
        ids = manager.branch(0, 3)
        for mode in (False, True, False):
            manager.use_multiprocessing = mode
            assert {manager.home(new_id) == "main" for new_id in ids} == {not mode}
            manager.step(asked([0, *ids], [2] * 4))
        manager._step_sequential(asked([0, *ids], [4] * 4))
        assert [alike(cache_of(manager, new_id)) for new_id in ids] == [alike(manager.rollout_cache[0])] * 3


def test_a_player_without_a_model_plays_branches_too() -> None:
    player = RandomPlayer(seed=3)
    with EnvStateManager(counters(use_multiprocessing=False)) as manager:
        manager.reset()
        ids = manager.branch(0, 2)
        given = player.inputs(manager, [manager.branches[new_id].cache for new_id in ids], 0)
        manager.step(given)
        assert {each["env_id"] for each in given} == set(ids)
        assert all(len(manager.branches[new_id].cache["history"]) == 2 for new_id in ids)


# What counts what


def test_branches_come_last_and_change_no_metric_of_others() -> None:
    with EnvStateManager(counters(use_multiprocessing=False)) as manager:
        manager.reset()
        for turn in (2, 0):
            manager.step(asked([0, 1], [turn] * 2))
        alone = freeze(copy.deepcopy(manager.get_rollout_states()))
        ids = manager.branch(1, 2, 1)
        for _ in range(4):
            manager.step(asked(ids[:1], [5]))
        manager.step(asked(ids[1:], [-1]))
        told = manager.get_rollout_states()
        assert [cache["env_id"] for cache in told] == [0, 1, *ids]
        assert freeze(told[:2]) == alone
        assert told[2]["metrics"] == {
            "Counter/success": 0.0,
            "Counter/num_actions": 2 + 4 * 3,
            "Counter/count": (3 + 6 + 9 + 12 + 15) / 5,
            "Counter/odd": 3 / 5,
            "Counter/extra": 2.0,
        }
        assert told[3]["metrics"]["Counter/num_actions"] == 3 and told[3]["goal"] == 50
        assert manager.episode_states([ids[1]])[0]["metrics"] == told[3]["metrics"]
        assert manager.render() == [cache["history"][-1]["state"] for cache in told]


def test_a_reset_begins_without_branches_and_with_the_same_ids() -> None:
    with EnvStateManager(counters(use_multiprocessing=False)) as manager, EnvStateManager(counters()) as other:
        manager.reset()
        ids = manager.branch(0, 2)
        manager.step(asked(ids, [0, 0]))
        assert freeze(play(manager)) == freeze((other.reset(), play(other))[1])
        assert manager.branches == {}
        assert manager.branch(0, 2) == ids


def test_released_branches_are_gone_and_their_ids_are_not_given_again() -> None:
    with EnvStateManager(counters(use_multiprocessing=False)) as manager:
        manager.reset()
        ids = manager.branch(0, 3)
        manager.release([ids[0], ids[2]])
        assert [cache["env_id"] for cache in manager.get_rollout_states()] == [0, 1, ids[1]]
        assert [cache["env_id"] for cache in manager.step(asked([ids[1]], [0]))] == [ids[1]]
        with pytest.raises(
            InputError, match=f"env_id = {ids[0]}; expected an integer from 0 to 1, or the id of a branch"
        ):
            manager.step(asked([ids[1], ids[0]], [0, 0]))
        assert manager.branches[ids[1]].entry["status"].num_actions == 1
        assert manager.branch(0, 1) == [ids[2] + 2], "of two environments: every second id goes back to the first"
        assert manager.branch(ids[1], 1) == [ids[2] + 4] and manager.branch(1, 1) == [3]
        for env_id, why in (
            (ids[0], "already released, or never created"),
            (1, "an environment of the configuration"),
            ("x", "never"),
        ):
            with pytest.raises(InputError, match=f"which is not a branch: it is .*{why}"):
                manager.release([ids[1], env_id])
        with pytest.raises(InputError, match="expected a list of ids"):
            manager.release(ids[1])  # type: ignore[arg-type]
        assert ids[1] in manager.branches


# What is refused


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((2, 1, None), "env_id = 2; expected an integer from 0 to 1, or the id of a branch"),
        ((True, 1, None), "env_id = True"),
        (([0], 1, None), r"env_id = \[0\]"),
        ((0, 0, None), "copies = 0; expected an integer of at least 1"),
        ((0, True, None), "copies = True"),
        ((0, 1, 3), r"turn = 3; env_id = 0 has 0 \(its reset\) to 2, or None for now"),
        ((0, 1, -1), "turn = -1"),
        ((0, 1, 1.0), "turn = 1.0"),
        ((1, 1, None), r"the episode of env_id = 1 is over: branch .* earlier turns, 0 \(its reset\) to 0"),
        ((1, 1, 1), r"turn = 1; env_id = 1 has 0 \(its reset\) to 0, since its episode is over"),
    ],
)
def test_what_cannot_be_branched_is_refused_and_nothing_is_added(given: tuple[Any, ...], text: str) -> None:
    with EnvStateManager(counters(use_multiprocessing=False)) as manager:
        manager.reset()
        manager.step(asked([0, 1], [0, -1]))
        manager.step(asked([0], [0]))
        with pytest.raises(InputError, match=text):
            manager.branch(*given)
        assert len(manager.rollout_cache or []) == 2 and manager.branches == {}


def test_branching_needs_a_reset_and_an_environment_that_replays() -> None:
    clock = {"env_type": "support.faulty_envs:Clock"}
    with EnvStateManager(config({"Clock": clock}, [("Clock", 1)], use_multiprocessing=False)) as manager:
        with pytest.raises(StateError, match="call reset"):
            manager.branch(0, 1)
        manager.reset()
        with pytest.raises(ForkError, match="does not replay"):
            manager.branch(0, 1)
        assert manager.branches == {}
        assert len(manager.step(asked([0], [0]))) + sum(e["status"].terminated for e in manager.envs) == 1


def test_what_has_failed_is_branched_from_a_turn_before(backend: str) -> None:
    fault = {"fault": "raises", "place": "turn 2"}
    faulty = {"env_type": "support.faulty_envs:Faulty", "env_config": fault}
    with EnvStateManager(config({"Faulty": faulty}, [("Faulty", 1)], use_multiprocessing=True)) as manager:
        manager.reset()
        for turn in (0, 2, 0):
            manager.step(asked([0], [turn]))
        assert "boom" in manager.get_rollout_states()[0]["env_error"]
        (new_id,) = manager.branch(0, 1, 2)
        assert alike(cache_of(manager, new_id))["history"][-1] == {
            key: value
            for key, value in manager.rollout_cache[0]["history"][2].items()
            if key in ("state", "actions_left")
        }


# What stands for a state


def test_states_have_hashes_where_they_are_asked_for(backend: str) -> None:
    def hashes(mode: Any) -> list[list[str]]:
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


def test_a_branch_keeps_the_hashes_of_its_parent() -> None:
    with EnvStateManager(counters(use_multiprocessing=False, env_state_hash=True)) as manager:
        manager.reset()
        manager.step(asked([0], [0]))
        (new_id,) = manager.branch(0, 1)
        mine, its = cache_of(manager, new_id)["history"], manager.rollout_cache[0]["history"]
        assert [turn["env_state_hash"] for turn in mine] == [turn["env_state_hash"] for turn in its]


def test_a_misspelt_hash_is_refused() -> None:
    with pytest.raises(ConfigError, match="env_state_hash"):
        EnvStateManager(counters(env_state_hsh=True))
    with pytest.raises(ConfigError, match="expected true or false"):
        EnvStateManager(counters(env_state_hash="yes"))
