"""The line at the end of a rollout: facts about the work of environments."""

import pytest

from envlanes import Engine, EnvSpec, Settings
from envlanes.ragen.turn import TEXT, Turn
from support.faulty_envs import Walk

ENVS = 4


@pytest.mark.parametrize(("mode", "workers"), [(True, 2), (False, 0), ("auto", 0)])
def test_an_engine_counts_what_it_plays(mode, workers):
    specs = [EnvSpec.of(Walk, None, env_id=n, game=TEXT) for n in range(ENVS)]
    with Engine(specs, Settings(use_lanes=mode, max_workers=2)) as engine:
        for _ in range(2):
            engine.reset(dict.fromkeys(range(ENVS), 1))
            for _ in range(3):
                engine.play({n: Turn(("go",), 1) for n in range(ENVS)})
        work = engine.work()
    assert (work.workers, work.homes) == (workers, {"Walk": "workers" if workers else "main"})
    turns, resets = work.costs["Walk"]
    assert (turns.number, resets.number) == (24, 8)
    assert 0 < work.inside_s == turns.seconds + resets.seconds
    assert (0 < work.start_s < work.seconds) if workers else (0 == work.start_s < work.seconds)
