"""Managers by shard: several with a part of the groups each play what one plays with all of them."""

from __future__ import annotations

from typing import Any

from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import SEED, config, freeze

GROUPS, SHARDS, SIZE, TURNS = 6, 3, 2, 4


def rollout(groups: int, seed: int) -> list[list[Any]]:
    """Histories and metrics of so many groups, counted from a seed; what is asked depends on what is shown alone."""
    tags = {"Walk": {"env_type": "support.faulty_envs:Walk"}}
    with EnvStateManager(config(tags, [("Walk", groups)], group_size=SIZE, use_multiprocessing=False)) as manager:
        active = manager.reset(seed)
        for turn in range(TURNS):
            asked = [(cache["env_id"], f"{cache['history'][-1]['state']} {cache['env_id'] % SIZE}") for cache in active]
            replies = {"llm_response": "", "llm_raw_response": f"raw {turn}"}
            active = manager.step([{"env_id": env_id, "actions": [text], **replies} for env_id, text in asked])
        return [
            [freeze(cache["history"]), cache["metrics"], cache["penalty"]] for cache in manager.get_rollout_states()
        ]


def test_shards_with_consecutive_seeds_play_what_one_manager_plays() -> None:
    part = GROUPS // SHARDS
    shards = [rollout(part, SEED + shard * part) for shard in range(SHARDS)]
    whole = rollout(GROUPS, SEED)
    assert len({str(history) for history, _, _ in whole}) == GROUPS * SIZE
    assert [each for shard in shards for each in shard] == whole
