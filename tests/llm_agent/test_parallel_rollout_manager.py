"""Parallel rollouts by joblib: equal to the ordinary ones bit for bit, whatever is killed, breaks or is interrupted."""

import logging
import os
import signal
import threading
from functools import cache

import psutil
import pytest

from ragen.errors import ConfigError, EnvError, InputError, LimitReachedError
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Backend, Reply, create_backend
from ragen.llm_agent.rollout.shards import ParallelRolloutManager, SharedLLMInferenceManager
from ragen.llm_agent.testing.equivalence import Recording
from support.configurations import composed
from support.later import shipped
from support.rollouts import batch_of, no_prompts

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
    from omegaconf import OmegaConf

    config = OmegaConf.to_container(config, resolve=True)
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
    difference = one.first_difference(other)
    assert difference is None, str(difference)


class Wrapped(Backend):
    """The scripted backend, with something that happens before each batch is answered."""

    def __init__(self, config, before, thread_safe=True):
        self.scripted = create_backend(config)
        self.before, self.thread_safe = before, thread_safe
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


@pytest.mark.parametrize(("jobs", "backend"), [(1, "loky"), (2, "loky"), (-1, "loky"), (100, "loky"), (3, "threading")])
def test_rollouts_are_those_of_the_ordinary_loop(jobs, backend):
    for val in (False, True):
        proxy, parallel = played(config_of(jobs=jobs, backend=backend), episodes=2, val=val)
        assert_equal(lockstep(2, val), parallel)
        assert proxy.parallel.fallback_reason is None


def test_playing_alone_gives_the_states_of_a_rollout():
    config = config_of()
    proxy, _ = played(config, val=True)
    with LLMAgentProxy(config, create_backend(config), shipped()) as alone:
        one, other = Recording(), Recording()
        one.note("states", proxy.rollout_states)
        other.note("states", alone.play({"validate": True}, val=True))
        assert_equal(one, other)
        assert alone.rollout_states and set(alone.seconds) == {"generation", "environments", "tokenizing"}


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_each_rollout_makes_its_environments_in_workers_and_closes_them(backend, tmp_path, caplog):
    caplog.set_level(logging.INFO, "ragen.llm_agent.rollout.shards")
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
    assert sum("environments of Dice" in record.message for record in caplog.records) == 6
    assert sum("episodes in" in record.message for record in caplog.records) == 6


def test_one_caller_at_a_time_reaches_a_shared_actor():
    together, most, lock = 0, 0, threading.Lock()

    class Actor:
        def generate_sequences(self, lm_inputs):
            nonlocal together, most
            with lock:
                together += 1
                most = max(most, together)
            with lock:
                together -= 1
            return lm_inputs

    shared, answers = SharedLLMInferenceManager(Actor()), []
    threads = [threading.Thread(target=lambda n=n: answers.append(shared.generate_sequences(n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(8)) and most == 1


def test_the_actor_is_asked_in_the_main_thread_alone():
    callers = set()
    _, parallel = played(config_of(), Wrapped(config_of(), lambda _: callers.add(threading.current_thread())))
    assert_equal(lockstep(), parallel)
    assert callers == {threading.main_thread()}


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


def test_what_failed_is_played_by_the_ordinary_loop():
    failed = []

    def fail_once(requests):
        if requests[0].turn == 1 and not failed:
            failed.append(1)
            raise RuntimeError("the model fell over")

    proxy, parallel = played(config_of(), Wrapped(config_of(), fail_once))
    assert_equal(lockstep(), parallel)
    assert "RuntimeError: the model fell over" in proxy.parallel.fallback_reason


@pytest.mark.parametrize("jobs", [0, 3])
def test_too_few_replies_are_an_error(jobs):
    class Short:
        def generate_sequences(self, lm_inputs):
            columns = {"env_ids": lm_inputs.non_tensor_batch["env_ids"][:1], "response_texts": ["x"]}
            return batch_of(**columns)

    with pytest.raises(InputError):
        played(config_of(jobs=jobs), Short())


def test_with_callbacks_the_ordinary_loop_plays():
    def stop(turn, active):
        if turn >= 1:
            raise LimitReachedError("enough")

    proxy = LLMAgentProxy(config_of(), create_backend(config_of()), shipped())
    with proxy, pytest.raises(LimitReachedError):
        proxy.play({}, on_turn=stop)


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


def test_an_environment_s_error_is_raised_where_that_is_asked_for():
    class Breaker(Backend):
        def generate(self, requests, sampling):
            return [Reply("<think>x</think><answer>break</answer>") for _ in requests]

    config = with_dice(config_of())
    config["es_manager"] |= {"on_env_failure": "raise", "crash_report_dir": None}
    with pytest.raises(EnvError, match="broken dice"):
        played(config, Breaker())


def test_a_failed_environment_is_truncated_as_in_the_ordinary_loop():
    class Breaker(Backend):
        def generate(self, requests, sampling):
            return [Reply(f"<think>x</think><answer>{'break' if r.env_id == 1 else 'roll'}</answer>") for r in requests]

    configs = [with_dice(config_of(jobs=jobs)) for jobs in (0, 3)]
    (_, ordinary), (proxy, parallel) = (played(config, Breaker()) for config in configs)
    assert_equal(ordinary, parallel)
    assert proxy.parallel.fallback_reason is None
    assert [state["env_id"] for state in proxy.rollout_states if "env_error" in state] == [1]


def test_a_request_without_a_reply_ends_its_own_trajectory_alone():
    class Losing(Wrapped):
        def generate(self, requests, sampling):
            replies = super().generate(requests, sampling)
            return [Reply("", error="lost") if r.env_id == 1 else a for r, a in zip(requests, replies, strict=True)]

    _, ordinary = played(config_of(jobs=0), Losing(config_of(), lambda requests: None))
    proxy, parallel = played(config_of(), Losing(config_of(), lambda requests: None))
    assert_equal(ordinary, parallel)
    assert proxy.failures == {1: "lost"} and proxy.parallel.fallback_reason is None


def test_ctrl_c_ends_the_workers():
    def interrupt(requests):
        if requests[0].turn == 1:
            os.kill(os.getpid(), signal.SIGINT)

    proxy = LLMAgentProxy(config_of(), Wrapped(config_of(), interrupt), shipped())
    with proxy, pytest.raises(KeyboardInterrupt):
        proxy.rollout(no_prompts())
    assert not loky_processes()


@pytest.mark.parametrize(("key", "value"), [("parallel_n_jobs", 0), ("parallel_backend", "dask")])
def test_a_key_with_an_invalid_value_is_refused(key, value):
    config = config_of()
    config.agent_proxy[key] = value
    with pytest.raises(ConfigError, match=key):
        LLMAgentProxy(config, create_backend(config_of()), shipped())


def test_the_manager_of_this_name_plays_as_the_proxy_does():
    config = config_of(jobs=0)
    with ParallelRolloutManager(config, create_backend(config), shipped(), n_jobs=2) as manager:
        manager.parallel_rollout(no_prompts())
        assert (manager.n_jobs, manager.fallback_reason, manager.proxy) == (2, None, manager)
        with LLMAgentProxy(config, create_backend(config), shipped()) as proxy:
            proxy.rollout(no_prompts())
        assert [state["history"] for state in manager.rollout_states] == [s["history"] for s in proxy.rollout_states]
