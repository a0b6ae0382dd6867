"""Rollouts in shards: equal to the ordinary ones bit for bit, whatever is slow, breaks or is interrupted."""

import os
import signal
import threading
from functools import cache

import pytest

from ragen.errors import ConfigError, EnvError, InputError, LimitReachedError
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Backend, Reply, create_backend
from ragen.llm_agent.rollout.metrics import mean_metrics
from ragen.llm_agent.rollout.shards import ParallelRolloutManager, ShardedEnvManager
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


def config_of(*overrides, shards=3, workers=0):
    workers = [f"es_manager.use_multiprocessing={str(workers > 0).lower()}", f"es_manager.max_workers={workers or 1}"]
    parallel = ["agent_proxy.use_parallel_rollout=true", f"agent_proxy.parallel_n_jobs={shards}"] if shards else []
    return composed("base", [*SMALL, "agent_proxy.max_turn=4", *workers, *parallel, *overrides])


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
    return played(config_of(shards=0), episodes=episodes, val=val)[1]


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


def ragen_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ragen-")]


# Equal to lockstep


@pytest.mark.parametrize("shards", [1, 5, -1, 100])
def test_rollouts_are_those_of_lockstep_whatever_the_number_of_shards(shards):
    proxy, overlapped = played(config_of(shards=shards), episodes=2)
    assert_equal(lockstep(2), overlapped)
    assert proxy.parallel.fallback_reason is None


def test_rollouts_in_lanes_are_those_of_lockstep_in_train_and_val():
    for val in (False, True):
        proxy, overlapped = played(config_of(shards=4, workers=2), episodes=2, val=val)
        assert_equal(lockstep(2, val), overlapped)
        manager = proxy.val_es_manager if val else proxy.train_es_manager
        assert [s.lane for s in manager.lane_stats()] == ["main", "worker 0", "worker 1"]


@pytest.mark.parametrize("shards", [0, 3])
def test_playing_alone_gives_the_states_and_metrics_of_a_rollout(shards):
    config = config_of(shards=shards)
    proxy, _ = played(config, val=True)
    with LLMAgentProxy(config, create_backend(config), shipped()) as alone:
        one, other = Recording(), Recording()
        one.note("states", proxy.rollout_states)
        other.note("states", alone.play({"validate": True}, val=True))
        assert_equal(one, other)
        assert alone.rollout_states and set(alone.seconds) == {"generation", "environments", "tokenizing"}
        metrics = alone.rollout(no_prompts(validate=True), val=True).meta_info["metrics"]
        assert mean_metrics(alone.rollout_states).items() <= metrics.items()


@pytest.mark.parametrize("thread_safe", [False, True])
def test_small_batches_change_nothing_and_none_is_larger_than_allowed(thread_safe):
    sizes = []
    backend = Wrapped(config_of(), lambda requests: sizes.append(len(requests)), thread_safe)
    _, overlapped = played(config_of("agent_proxy.parallel_max_batch_size=2"), backend)
    assert_equal(lockstep(), overlapped)
    assert max(sizes) == 2


def test_an_actor_that_is_not_thread_safe_answers_several_shards_at_once_in_the_main_thread():
    callers, sizes = set(), []

    def note(requests):
        callers.add(threading.current_thread())
        sizes.append(len(requests))

    _, overlapped = played(config_of(), Wrapped(config_of(), note, thread_safe=False))
    assert_equal(lockstep(), overlapped)
    assert callers == {threading.main_thread()} and sizes[0] == 18


def test_a_thread_safe_actor_answers_several_shards_at_the_same_time():
    together = threading.Barrier(3)

    def meet(requests):
        if requests[0].turn == 0:
            together.wait(30)

    _, overlapped = played(config_of(), Wrapped(config_of(), meet))
    assert_equal(lockstep(), overlapped)


def test_prompts_wait_no_longer_than_max_wait_for_those_of_a_shard_that_is_stepped():
    config = with_dice(config_of("agent_proxy.parallel_max_wait=0.01", shards=2, workers=2))
    asked = threading.Event()
    sizes = []

    class Holding(ShardedEnvManager):
        def step(self, inputs):
            if {each["env_id"] for each in inputs} & set(self.shards[0]):
                assert asked.wait(30)
            return super().step(inputs)

    def note(requests):
        sizes.append(len(requests))
        if requests[0].turn > 0:
            asked.set()

    with LLMAgentProxy(config, Wrapped(config, note, thread_safe=False), shipped()) as proxy:
        proxy.train_es_manager = Holding(config, "train", 2)
        proxy.play({})
    assert sizes[:2] == [4, 2]


def test_shards_do_not_wait_for_each_other_and_the_batch_is_in_order_all_the_same():
    """The first shard's first answer comes when all others are through."""
    config = config_of(shards=3)
    with ShardedEnvManager(config, "train", 3) as manager:
        slow = set(manager.shards[0])
        others = {env_id for shard in manager.shards[1:] for env_id in shard}
    through = threading.Event()
    over = set()

    def note(states):
        over.update(state["env_id"] for state in states)
        if others <= over:
            through.set()

    def hold(requests):
        if requests[0].env_id in slow and requests[0].turn == 0:
            assert through.wait(30)

    proxy, overlapped = played(config, Wrapped(config, hold), on_over=note)
    assert_equal(lockstep(), overlapped)
    assert over == slow | others and proxy.parallel.fallback_reason is None


def test_a_worker_killed_in_the_middle_changes_nothing():
    config = config_of(shards=3, workers=2)
    proxies, killed = [], []

    def kill(requests):
        if requests[0].turn == 1 and not killed:
            killed.append(stats := proxies[0].train_es_manager.lane_stats()[1])
            os.kill(stats.pid, signal.SIGKILL)

    _, overlapped = played(config, Wrapped(config, kill), meet=proxies.append)
    assert_equal(lockstep(), overlapped)
    assert killed and killed[0].envs > 0


def test_shards_that_have_a_lane_for_each_share_none():
    with ShardedEnvManager(config_of(workers=2), "train", 2) as manager:
        manager.reset()
        hosts = [{manager.home(env_id) for env_id in shard} for shard in manager.shards]
        assert hosts == [{"worker 0"}, {"worker 1"}]


def test_every_environment_is_in_one_shard_and_groups_stay_whole():
    with ShardedEnvManager(config_of(), "train", 2) as manager:
        assert sorted(env_id for shard in manager.shards for env_id in shard) == list(range(18))
        groups = [{manager.envs[env_id]["group_id"] for env_id in shard} for shard in manager.shards]
    assert groups[0] & groups[1] <= {2, 5}  # those of tags with one group only


# Failures


def test_what_the_overlap_could_not_play_is_played_by_the_ordinary_loop_and_nothing_is_asked_twice(caplog):
    config = config_of(shards=3)
    failed = []

    def fail_once(requests):
        if requests[0].turn == 1 and not failed:
            failed.extend((request.env_id, request.turn) for request in requests)
            raise RuntimeError("the model fell over")

    backend = Wrapped(config, fail_once)
    proxy, overlapped = played(config, backend)
    assert_equal(lockstep(), overlapped)
    assert "RuntimeError: the model fell over" in proxy.parallel.fallback_reason
    assert "the model fell over" in caplog.text
    for each in failed:
        backend.asked.remove(each)
    assert len(backend.asked) == len(set(backend.asked))


@pytest.mark.parametrize("shards", [0, 3])
def test_too_few_replies_are_an_error(shards):
    class Short:
        def generate_sequences(self, lm_inputs):
            columns = {"env_ids": lm_inputs.non_tensor_batch["env_ids"][:1], "response_texts": ["x"]}
            return batch_of(**columns)

    with pytest.raises(InputError, match=r"the actor returned 1 replies to 18 prompts"):
        played(config_of(shards=shards), Short())


@pytest.mark.parametrize("thread_safe", [False, True])
def test_what_is_under_way_when_a_limit_is_reached_is_played(thread_safe):
    over = []

    def stop(turn, active):
        if turn >= 1:  # the slowest shard may end in its first turn, after all others
            raise LimitReachedError("enough")

    config = config_of("agent_proxy.max_turn=2")
    with LLMAgentProxy(config, Wrapped(config, lambda requests: None, thread_safe), shipped()) as proxy:
        with pytest.raises(LimitReachedError, match="enough"):
            proxy.play({}, on_turn=stop, on_over=over.extend)
        turns = [len(cache["history"]) - 1 for cache in proxy.train_es_manager.rollout_cache]
    assert set(turns) <= {1, 2} and all(len(state["history"]) > 1 for state in over)


def test_environments_that_draw_from_the_process_s_random_numbers_are_not_played_beside_threads():
    _, lockstep = played(with_dice(config_of(shards=0)), episodes=2)
    proxy, in_main = played(with_dice(config_of()), episodes=2)
    assert "random numbers" in proxy.parallel.fallback_reason and "Dice" in proxy.parallel.fallback_reason
    assert_equal(lockstep, in_main)
    proxy, in_lanes = played(with_dice(config_of(workers=2)), episodes=2)
    assert proxy.parallel.fallback_reason is None
    assert_equal(lockstep, in_lanes)


def test_an_environment_s_error_is_raised_where_that_is_asked_for():
    class Breaker(Backend):
        thread_safe = True

        def generate(self, requests, sampling):
            return [Reply("<think>x</think><answer>break</answer>") for _ in requests]

    config = with_dice(config_of(workers=1))
    config["es_manager"] |= {"on_env_failure": "raise", "crash_report_dir": None}
    with pytest.raises(EnvError, match="broken dice"):
        played(config, Breaker())
    assert ragen_threads() == []


def test_a_request_without_a_reply_ends_its_own_trajectory_alone():
    class Losing(Wrapped):
        def generate(self, requests, sampling):
            replies = super().generate(requests, sampling)
            return [Reply("", error="lost") if r.env_id == 1 else a for r, a in zip(requests, replies, strict=True)]

    _, lockstep = played(config_of(shards=0), Losing(config_of(), lambda requests: None))
    proxy, overlapped = played(config_of(), Losing(config_of(), lambda requests: None))
    assert_equal(lockstep, overlapped)
    assert proxy.failures == {1: "lost"} and proxy.parallel.fallback_reason is None


def test_ctrl_c_ends_the_shards_and_their_threads():
    config = config_of(workers=1)
    sent = []

    def interrupt(requests):
        if requests[0].turn == 1 and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))

    with LLMAgentProxy(config, Wrapped(config, interrupt), shipped()) as proxy:
        with pytest.raises(KeyboardInterrupt):
            proxy.rollout(no_prompts())
            proxy.rollout(no_prompts())  # should the first one have been too quick
        assert ragen_threads() == []
        assert len(proxy.rollout(no_prompts())) == 18


# Callbacks and options


def test_each_episode_s_end_is_told_once_with_its_state():
    told = {}
    for shards in (0, 3):
        told[shards] = seen = []
        played(config_of(shards=shards), on_over=lambda states, seen=seen: seen.extend(states))
        assert sorted(state["env_id"] for state in seen) == list(range(18))
        assert all("correct_answer" in state for state in seen if state["tag"] == "MetamathQA")
    for state in told[0] + told[3]:
        assert set(state["metrics"]) >= {f"{state['tag']}/success", f"{state['tag']}/pass@3"}


def test_what_a_callback_raises_ends_the_rollout():
    def full(states):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        played(config_of(), on_over=full)
    assert ragen_threads() == []


def test_progress_tells_the_slowest_shard_s_turn():
    told = []
    played(config_of(), on_turn=lambda turn, active: told.append((turn, active)))
    turns = [turn for turn, _ in told]
    assert turns == sorted(turns) and told[0] == (0, 18)
    assert told[-1][1] == 0 and turns[-1] > turns[-2]  # the last to end may have begun alone


def test_environments_to_skip_are_left_alone():
    skip = {0, 1, 2, 7}
    _, lockstep = played(config_of(shards=0), skip=skip)
    proxy, overlapped = played(config_of(), skip=skip)
    assert_equal(lockstep, overlapped)
    assert [state["env_id"] for state in proxy.rollout_states] == [n for n in range(18) if n not in skip]


def test_time_is_told_by_part_and_by_shard():
    config = config_of(workers=2)
    with LLMAgentProxy(config, create_backend(config), shipped()) as proxy:
        proxy.record_lanes = True
        proxy.rollout(no_prompts())
    assert set(proxy.seconds) == {"generation", "environments", "tokenizing"}
    assert all(0 < spent <= proxy.timeline.end - proxy.timeline.start for spent in proxy.seconds.values())
    tracks = {span.track for span in proxy.timeline.spans}
    assert tracks == {"rollout", "generator", "shard 0", "shard 1", "shard 2", "worker 0", "worker 1"}


def test_the_manager_stands_alone_with_the_names_of_ragen_s_forks():
    config = config_of(shards=0)
    with LLMAgentProxy(config, create_backend(config), shipped()) as proxy:
        lockstep = proxy.rollout(no_prompts())
    with ParallelRolloutManager(config, create_backend(config), shipped(), n_jobs=2) as manager:
        rollouts = manager.parallel_rollout(no_prompts())
        assert len(manager.proxy.train_es_manager.shards) == 2
    assert rollouts.meta_info == lockstep.meta_info
    assert rollouts.batch["rm_scores"].equal(lockstep.batch["rm_scores"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("parallel_n_jobs=0", "'agent_proxy.parallel_n_jobs' is 0"),
        ("parallel_n_jobs=-2", "'agent_proxy.parallel_n_jobs' is -2"),
        ("parallel_n_jobs=many", "'agent_proxy.parallel_n_jobs' is 'many'"),
        ("parallel_max_batch_size=0", "'agent_proxy.parallel_max_batch_size' is 0"),
        ("parallel_max_wait=-1", "'agent_proxy.parallel_max_wait' is -1"),
        ("use_parallel_rollout=maybe", "'agent_proxy.use_parallel_rollout' is 'maybe'"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_built(override, said):
    config = config_of()
    from omegaconf import OmegaConf

    config = OmegaConf.merge(config, OmegaConf.from_dotlist([f"agent_proxy.{override}"]))
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        LLMAgentProxy(config, create_backend(config_of()), shipped())
