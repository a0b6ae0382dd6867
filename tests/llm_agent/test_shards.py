"""Managers by shard: several with a part of the groups each play what one plays with all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config, freeze

PAGE = Path(__file__).resolve().parents[2] / "docs" / "several_machines.md"
GROUPS, SHARDS, SIZE, TURNS = 6, 3, 2, 4


def rollout(configuration: dict[str, Any], seed: int) -> list[list[Any]]:
    """Histories and metrics of an episode; what is asked depends on what is shown alone."""
    with EnvStateManager(configuration) as manager:
        active = manager.reset(seed)
        for turn in range(TURNS):
            asked = [(cache["env_id"], f"{cache['history'][-1]['state']} {cache['env_id'] % SIZE}") for cache in active]
            replies = {"llm_response": "", "llm_raw_response": f"raw {turn}"}
            active = manager.step([{"env_id": env_id, "actions": [text], **replies} for env_id, text in asked])
        return [
            [freeze(cache["history"]), cache["metrics"], cache["penalty"]] for cache in manager.get_rollout_states()
        ]


def test_shards_as_the_page_makes_them_play_what_one_manager_plays() -> None:
    shown: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0], shown)
    tags = {"Walk": {"env_type": "support.faulty_envs:Walk"}}
    one = config(tags, [("Walk", GROUPS)], group_size=SIZE, use_multiprocessing=False)
    shards = [rollout(*shown["shard"](one, index, SHARDS)) for index in range(SHARDS)]
    whole = rollout(one, one["seed"]["train"])
    assert len({str(history) for history, _, _ in whole}) == GROUPS * SIZE
    assert [each for shard in shards for each in shard] == whole
