"""Parallel rollouts by joblib: equal to the ordinary ones bit for bit, whatever is killed, breaks or is interrupted."""

import os
import signal
from functools import cache

import psutil
import pytest

from ragen.config.loading import plain_sections
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Backend, Reply, create_backend
from ragen.llm_agent.rollout.shards import ParallelRolloutManager
from ragen.llm_agent.testing.equivalence import Recording
from support.configurations import composed
from support.later import shipped
from support.rollouts import no_prompts

TAGS = "[SimpleSokoban,Countdown,Bandit,MetamathQA]"
SMALL = [
    f"es_manager.{mode}.{key}"
    for mode in ("train", "val")
    for key in (f"env_configs.tags={TAGS}", "env_configs.n_groups=[2,1,2,1]", "env_groups=6", "group_size=3")
]
DICE = "support.dice_env:Dice"


def config_of(*overrides, jobs=3, backend="loky"):
    keys = ["es_manager.use_multiprocessing=false", f"agent_proxy.use_parallel_rollout={str(jobs != 0).lower()}"]
    keys += [f"agent_proxy.parallel_n_jobs={jobs or 1}", f"agent_proxy.parallel_backend={backend}"]
    return composed("base", [*SMALL, "agent_proxy.max_turn=4", *keys, *overrides])


def with_dice(config):
    config = plain_sections(config)
    config["custom_envs"]["Dice"] = {"env_type": DICE, "max_actions_per_traj": 9}
    for mode in ("train", "val"):
        config["es_manager"][mode] = {
            "env_groups": 4,
            "group_size": 1,
            "env_configs": {"tags": ["Dice"], "n_groups": [4]},
        }
    return config


def played(config, backend=None, episodes=1, val=False, meet=lambda proxy: None, **options):
    """The proxy after its last rollout, and all that could be seen of the rollouts."""
    seen = Recording()
    with LLMAgentProxy(config, backend or create_backend(config), shipped()) as proxy:
        meet(proxy)
        for _ in range(episodes):
            rollouts = proxy.rollout(no_prompts(validate=val), val=val, **options)
            seen.note("states", proxy.rollout_states)
            seen.note("meta_info", rollouts.meta_info)
            seen.note("objects", rollouts.non_tensor_batch)
            for name in sorted(rollouts.batch.keys()):
                seen.note(name, rollouts.batch[name].numpy())
            seen.note("failures", dict(sorted(proxy.failures.items())))
    return proxy, seen


@cache
def lockstep(episodes=1, val=False):
    """What could be seen of ordinary rollouts, to which others have to be equal."""
    return played(config_of(jobs=0), episodes=episodes, val=val)[1]


def assert_equal(one, other):
    assert one.first_difference(other) == ""


class Wrapped(Backend):
    """The scripted backend, with something that happens before each batch is answered."""

    def __init__(self, config, before):
        self.scripted = create_backend(config)
        self.before = before
        self.asked = []

    def generate(self, requests, sampling):
        self.asked += [(request.env_id, request.turn) for request in requests]
        self.before(requests)
        return self.scripted.generate(requests, sampling)

    def close(self):
        pass


def loky_processes():
    return [each for each in psutil.Process().children(recursive=True) if "popen_loky" in " ".join(each.cmdline())]


# Equal to the ordinary loop


@pytest.mark.parametrize(("jobs", "backend"), [(2, "loky"), (100, "threading")])
def test_rollouts_are_those_of_the_ordinary_loop(jobs, backend):
    for val in (False, True):
        proxy, parallel = played(config_of(jobs=jobs, backend=backend), episodes=2, val=val)
        assert_equal(lockstep(2, val), parallel)
        assert proxy.parallel.fallback_reason is None


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_each_rollout_makes_its_environments_in_workers_and_closes_them(backend, tmp_path):
    config = with_dice(config_of(jobs=2, backend=backend))
    config["es_manager"]["use_multiprocessing"] = backend == "threading"
    logged = {"env_type": "support.dice_env:Logged", "env_config": {"file": str(tmp_path / "log")}}
    config["custom_envs"]["Dice"] |= logged
    with LLMAgentProxy(config, create_backend(config), shipped()) as proxy:
        for rollout in range(1, 4):
            proxy.play({})
            assert proxy.parallel.fallback_reason is None
            lines = (tmp_path / "log").read_text().splitlines()
            assert (lines.count("built"), lines.count("closed")) == (4 * rollout, 4 * rollout)


# Failures


def test_a_killed_worker_changes_nothing_and_none_is_left(caplog):
    killed = []

    def kill(requests):
        if not killed:  # before the first reply: no shard is over
            killed.append(loky_processes()[0])
            killed[0].kill()

    proxy, parallel = played(config_of(), Wrapped(config_of(), kill), episodes=2)
    assert_equal(lockstep(2), parallel)
    assert killed and "ordinary loop" in caplog.text
    assert proxy.parallel.fallback_reason is None  # of the second rollout
    assert not loky_processes()


def test_environments_that_draw_from_global_generators_are_not_played_in_threads_of_the_main_process():
    _, ordinary = played(with_dice(config_of(jobs=0)), episodes=2)
    proxy, parallel = played(with_dice(config_of()), episodes=2)
    assert proxy.parallel.fallback_reason is None
    assert_equal(ordinary, parallel)
    for use_multiprocessing, falls_back in ((False, True), (True, False)):
        config = with_dice(config_of(backend="threading"))
        config["es_manager"] |= {"use_multiprocessing": use_multiprocessing, "max_workers": 2}
        proxy, parallel = played(config, episodes=2)
        assert (proxy.parallel.fallback_reason is not None) == falls_back
        assert_equal(ordinary, parallel)


def test_a_failed_environment_is_truncated_as_in_the_ordinary_loop():
    class Breaker(Backend):
        def generate(self, requests, sampling):
            return [Reply(f"<think>x</think><answer>{'break' if r.env_id == 1 else 'roll'}</answer>") for r in requests]

    configs = [with_dice(config_of(jobs=jobs)) for jobs in (0, 3)]
    (_, ordinary), (proxy, parallel) = (played(config, Breaker()) for config in configs)
    assert_equal(ordinary, parallel)
    assert proxy.parallel.fallback_reason is None
    assert [state["env_id"] for state in proxy.rollout_states if "env_error" in state] == [1]


def test_ctrl_c_ends_the_workers():
    def interrupt(requests):
        if requests[0].turn == 1:
            os.kill(os.getpid(), signal.SIGINT)

    proxy = LLMAgentProxy(config_of(), Wrapped(config_of(), interrupt), shipped())
    with proxy, pytest.raises(KeyboardInterrupt):
        proxy.rollout(no_prompts())
    assert not loky_processes()


def test_the_manager_of_this_name_plays_as_the_proxy_does():
    config = config_of(jobs=0)
    with ParallelRolloutManager(config, create_backend(config), shipped(), n_jobs=2) as manager:
        manager.parallel_rollout(no_prompts())
        assert (manager.n_jobs, manager.fallback_reason, manager.proxy) == (2, None, manager)
        with LLMAgentProxy(config, create_backend(config), shipped()) as proxy:
            proxy.rollout(no_prompts())
        assert [state["history"] for state in manager.rollout_states] == [s["history"] for s in proxy.rollout_states]
