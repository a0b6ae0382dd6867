"""A YAML file with the keys of pomdp-baselines trains as it is, and `del` ends workers at once."""

import gc

import psutil
import pytest

from ragen.errors import ConfigError
from ragen.meta import make_parallel_env
from support.later import meta

YAML = """
env:
  env_type: meta
  env_name: AntDir-v0
  max_rollouts_per_task: 2
  num_train_tasks: 50
  num_eval_tasks: 20
  num_parallel_workers: 6  # NEW: Number of parallel environment workers

train:
  num_rollouts_per_iter: 12  # Will be distributed across 6 workers (2 each)
"""


def test_the_keys_of_pomdp_baselines_are_read(tmp_path):
    from ragen.meta.rl2.settings import load_settings

    path = tmp_path / "ant.yaml"
    path.write_text(YAML)
    read = load_settings(str(path), ["iterations=1", "agent.hidden=8", f"output_dir={tmp_path / 'run'}"])
    assert (read.env.id, read.env.episodes_per_task, read.env.n_tasks) == ("AntDir-v0", 2, 50)
    assert (read.eval_tasks, read.engine.num_envs, read.rollouts) == (20, 6, 12)
    with meta.Trainer(read) as trainer:
        assert trainer.run(lambda *_: None, lambda: False)
        assert trainer.history[-1]["failed"] == 0


def test_a_key_that_is_given_twice_or_misspelled_is_refused(tmp_path):
    from ragen.meta.rl2.settings import load_settings

    path = tmp_path / "ant.yaml"
    path.write_text(YAML)
    for override, named in (("env.id=ragen/AntDir-v0", "env.id"), ("env.env_nmae=x", "env_nmae")):
        with pytest.raises(ConfigError, match=named):
            load_settings(str(path), [override])


def test_del_ends_the_workers_without_a_garbage_collection():
    gc.disable()
    try:
        settings = {"use_lanes": True, "max_workers": 2}
        manager = make_parallel_env("ragen/PointRobot-v0", 2, num_workers=4, seed=1, n_tasks=10, settings=settings)
        manager.reset_all()
        workers = [psutil.Process(each.pid) for each in manager.workers if each.lane != "main"]
        assert workers
        del manager
        assert not psutil.wait_procs(workers, timeout=30)[1]
    finally:
        gc.enable()
