"""The embedded simulator: its episodes by seed, and its returns beside the original's."""

import hashlib
import math
import random

import numpy as np
import pytest

from ragen.cage2.layout import ACCESS_LEVELS, HOSTS
from ragen.cage2.simulator import EmbeddedGame

EPISODES = {"b_line": "c25f3fb1990f93b9", "meander": "139ce474b27a0103", "sleep": "ba75aa42cca0f23f"}


@pytest.mark.parametrize("agent", EPISODES)
def test_a_seed_and_actions_give_the_same_episodes_in_every_version(agent):
    game, found = EmbeddedGame(agent), hashlib.sha256()
    for seed in range(40):
        draws = random.Random(seed)
        game.reset(seed)
        for _ in range(60):
            action = draws.randrange(145) if draws.random() < 0.3 else 0
            stepped = game.step(action)
            levels = {name: ACCESS_LEVELS[level] for name, level in zip(HOSTS, game.levels(), strict=True)}
            found.update(repr((stepped, levels)).encode())
    assert found.hexdigest().startswith(EPISODES[agent])


SCORES = [
    ("Sleep", "sleep", 30, 0.0, 0.1),  # mean returns that were published, or measured with the original
    ("Sleep", "b_line", 30, -216.7, 4),
    ("Sleep", "b_line", 100, -1131.0, 12),
    ("Sleep", "meander", 30, -40.0, 8),
    ("Sleep", "meander", 100, -980.0, 25),
    ("random", "b_line", 100, -708.0, 60),
    ("random", "meander", 100, -525.0, 90),
]


@pytest.mark.parametrize(("policy", "agent", "steps", "score", "off"), SCORES)
def test_returns_are_those_of_the_original(policy, agent, steps, score, off):
    game, totals = EmbeddedGame(agent), []
    for seed in range(80):
        draws = random.Random(seed)
        game.reset(seed)
        totals.append(sum(game.step(draws.randrange(145) if policy == "random" else 0)[1] for _ in range(steps)))
    assert abs(np.mean(totals) - score) < off + 1.96 * np.std(totals) / math.sqrt(80)
