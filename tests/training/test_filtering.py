"""Dynamic sampling and filtering, on groups made by hand."""

import math

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.filtering.group_filter import BestShare, reward_mean, reward_std
from ragen.training.filtering import FilterSettings, has_variance, sample_groups
from ragen.training.trajectories import Group, Trajectory


def group(uid, *scores, rewards=None):
    pairs = zip(rewards or scores, scores, strict=True)
    return Group(uid, [Trajectory(place, "Tag", reward, score) for place, (reward, score) in enumerate(pairs)])


def keep_best(groups, ratio, kind):
    share = BestShare(ratio, kind)
    return [groups[place] for place in share.chosen(share.measures(groups))]


def uids(groups):
    return [each.uid for each in groups]


FLAT, LOW, MIXED, HIGH = (
    group("flat", 0.5, 0.5, 0.5),
    group("low", 0.0, 0.0, 0.1),
    group("mixed", 0.0, 1.0, 0.0),
    group("high", 1.0, 0.9, 1.0),
)


def playing(*batches):
    """A function that plays these batches, one a call."""
    source = iter(batches)
    return lambda: next(source)


def test_the_spread_of_a_group_is_the_samples_standard_deviation_of_its_rewards():
    assert reward_std(MIXED) == pytest.approx(math.sqrt(1 / 3))
    assert reward_std(group("one", 3.0)) == 0.0
    assert reward_mean(HIGH) == pytest.approx(2.9 / 3)


def test_a_group_has_variance_if_its_scores_differ_by_more_than_rounding():
    assert has_variance(MIXED)
    assert not has_variance(FLAT)
    assert not has_variance(group("rounding", 0.1 + 0.2, 0.3))


def test_variance_is_that_of_what_is_trained_on_so_penalties_count():
    assert has_variance(group("penalised", 0.0, -0.1, rewards=[0.0, 0.0]))


def test_a_group_of_one_is_compared_with_nothing_and_is_kept():
    assert has_variance(group("alone", 0.0))


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("std", ["low", "mixed"]),
        ("std_rev", ["flat", "high"]),
        ("mean", ["flat", "high"]),
        ("mean_rev", ["low", "mixed"]),
    ],
)
def test_half_of_the_groups_is_kept_by_spread_or_mean_from_either_end_in_their_order(kind, kept):
    groups = [FLAT, LOW, MIXED, group("high", 1.0, 0.98, 1.0)]
    assert uids(keep_best(groups, 0.5, kind)) == kept


@pytest.mark.parametrize(("ratio", "count"), [(1.0, 4), (0.75, 3), (0.7, 2), (0.5, 2), (0.25, 1), (0.01, 1)])
def test_the_share_is_rounded_down_and_never_to_nothing(ratio, count):
    assert len(keep_best([FLAT, LOW, MIXED, HIGH], ratio, "std")) == count


def test_a_share_that_binary_fractions_miss_is_not_one_group_short():
    groups = [group(str(place), 0.0, float(place)) for place in range(100)]
    assert len(keep_best(groups, 0.29, "std")) == 29


def test_of_equals_the_earlier_group_is_kept():
    twins = [group(str(place), 0.0, 1.0) for place in range(4)]
    assert uids(keep_best(twins, 0.5, "std")) == ["0", "1"]


def test_without_filtering_one_batch_is_played_and_all_of_it_kept():
    sample = sample_groups(playing([FLAT, MIXED]), FilterSettings())
    assert uids(sample.groups) == ["flat", "mixed"]
    assert sample.batches == 1


def test_sampling_goes_on_until_there_are_as_many_groups_with_variance_as_a_batch_has():
    batches = [[FLAT, MIXED], [group("flat2", 1.0, 1.0), group("flat3", 0.0, 0.0)], [LOW, HIGH]]
    sample = sample_groups(playing(*batches), FilterSettings(enable=True))
    assert uids(sample.groups) == ["mixed", "low"]
    assert (sample.batches, len(sample.played)) == (3, 6)


def test_sampling_stops_after_the_allowed_number_of_batches_with_what_there_is():
    batches = [[FLAT, MIXED], [FLAT, FLAT], [LOW, HIGH]]
    sample = sample_groups(playing(*batches), FilterSettings(enable=True, max_batches=2))
    assert uids(sample.groups) == ["mixed"]
    assert sample.batches == 2


def test_where_no_group_has_variance_there_is_nothing_to_train_on():
    sample = sample_groups(playing([FLAT], [FLAT]), FilterSettings(enable=True, max_batches=2))
    assert sample.groups == []
    assert sample.metrics()["filter/groups_kept"] == 0


def test_the_share_is_taken_of_what_dynamic_sampling_left():
    batches = [[FLAT, MIXED], [LOW, HIGH]]
    sample = sample_groups(playing(*batches), FilterSettings(enable=True, groups=BestShare(0.5)))
    assert uids(sample.groups) == ["mixed"]


def test_metrics_say_what_was_played_and_what_was_kept():
    metrics = sample_groups(playing([FLAT, MIXED]), FilterSettings(groups=BestShare(0.5))).metrics()
    assert metrics["filter/groups_played"] == 2
    assert metrics["filter/groups_with_variance"] == 1
    assert metrics["filter/groups_kept"] == 1
    assert metrics["filter/in_group_std"] == pytest.approx(math.sqrt(1 / 3) / 2)
    assert metrics["filter/kept_in_group_std"] == pytest.approx(math.sqrt(1 / 3))


@pytest.mark.parametrize("section", ["agent_proxy", "actor_rollout_ref.rollout"])
def test_ragens_keys_are_read_from_its_place_or_from_ours(section):
    config = {"rollout_filter_ratio": 0.25, "rollout_filter_type": "std_rev"}
    for name in reversed(section.split(".")):
        config = {name: config}
    assert FilterSettings.read(config) == FilterSettings(groups=BestShare(0.25, "std_rev"))


def test_verls_keys_are_read():
    config = {"algorithm": {"filter_groups": {"enable": True, "max_num_gen_batches": 4}}}
    assert FilterSettings.read(config) == FilterSettings(enable=True, max_batches=4)


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("agent_proxy.rollout_filter_ratio", {"agent_proxy": {"rollout_filter_ratio": 0.0}}),
        ("agent_proxy.rollout_filter_ratio", {"agent_proxy": {"rollout_filter_ratio": 1.5}}),
        ("agent_proxy.rollout_filter_type", {"agent_proxy": {"rollout_filter_type": "best"}}),
        ("algorithm.filter_groups.metric", {"algorithm": {"filter_groups": {"metric": "acc"}}}),
        ("algorithm.filter_groups.enable", {"algorithm": {"filter_groups": {"enable": "often"}}}),
    ],
)
def test_a_setting_that_cannot_work_is_named(key, config):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        FilterSettings.read(config)
