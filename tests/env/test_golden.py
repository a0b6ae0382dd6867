"""Seeds play what they have always played: digests of whole episodes, in ``tests/data/episodes.json``.

``python tests/env/test_golden.py`` writes the digests anew, after a change that is meant to change episodes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ragen.env import resolve_env
from ragen.errors import MissingExtraError, SandboxError
from support.episodes import freeze

FILE = Path(__file__).parents[1] / "data" / "episodes.json"
CASES = json.loads(FILE.read_text("utf-8"))
TEXTS = ("1", "", "(1 + 2) * 3", "search[red desk lamp]", "click[buy now]", "click[next >]", "2,3,5", "answer[x]")


def digest(env_type: str, steps: int, fields: dict[str, Any]) -> str:
    """A hash of all that six episodes show."""
    env_class, config_class = resolve_env(env_type)
    assert config_class is not None
    env, found = env_class(config_class(**fields)), hashlib.sha256()
    for seed in range(6):
        mode, rng = ("train", "val")[seed % 2], Random(seed)
        shown: list[Any] = [env.reset(1000 * seed, mode)]
        for _ in range(steps):
            lookup = getattr(env.config, "action_lookup", None)
            action = rng.choice([*lookup] if lookup else [*TEXTS, *3 * [env.example_action(rng)]])
            shown += [action, *env.step(action), env.render(), env.rollout_info()]
            if shown[-4]:  # rendered, and its info, stand behind it
                break
        found.update(repr(freeze(shown)).encode("utf-8", "surrogatepass"))
    env.close()
    return found.hexdigest()[:16]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.timeout(600)  # games are compiled
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['env_type']}{case['fields'] or ''}")
def test_a_seed_plays_what_it_has_always_played(case: dict[str, Any]) -> None:
    try:
        assert digest(case["env_type"], case["steps"], case["fields"]) == case["digest"]
    except (MissingExtraError, SandboxError) as lacks:
        pytest.skip(str(lacks))


if __name__ == "__main__":
    rows = [{**case, "digest": digest(case["env_type"], case["steps"], case["fields"])} for case in CASES]
    FILE.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n", "utf-8")
