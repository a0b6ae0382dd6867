"""RAGEN's choices of groups, on measures and groups made by hand, and what they are measured by."""

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.filtering import GroupFilter
from ragen.training.filtering import has_variance, sample_groups
from ragen.training.trajectories import Group, TokenRow, Trajectory

MEASURES = [0.0, 0.4, 0.1, 0.5]


def group(uid, *scores, rewards=None, tokens=1, entropies=(None, None)):
    rows = [TokenRow([1] * tokens, [1] * tokens)]
    members = zip(rewards or scores, scores, [*entropies, *scores], strict=False)
    return Group(uid, [Trajectory(0, "Tag", reward, score, rows, entropy) for reward, score, entropy in members])


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({"measures": [0.0, 0.0], "value": 0.5}, []),  # of groups that all measure 0, a share is 0 as well
        ({"measures": [1.0] * 4, "value": 0.5, "strategy": "top_k"}, [0, 1]),  # of equals the earlier ones
        ({"measures": [*range(100)], "value": 0.29, "strategy": "top_k"}, [*range(71, 100)]),  # binary fractions
        ({}, [0, 1, 2, 3]),
        ({"value": 0.9}, [1, 3]),  # 0.9 * 1.0 - 0.01 = 0.89 is in 0.5 + 0.4
        ({"value": 0.5}, [3]),
        ({"value": 0.0}, []),
        ({"value": 0.9, "kind": "smallest"}, []),  # the smallest adds nothing, and the share is not reached
        ({"value": 0.9, "kind": "smallest", "include_zero": False}, [1, 2, 3]),
        ({"value": 0.5, "strategy": "top_k"}, [1, 3]),
        ({"value": 0.74, "strategy": "top_k"}, [1, 3]),  # rounded down
        ({"value": 0.1, "strategy": "top_k"}, [3]),  # and never to nothing
        ({"value": 0.5, "strategy": "top_k", "kind": "smallest"}, [0, 2]),
        ({"value": 9, "strategy": "top_k_abs"}, [0, 1, 2, 3]),
    ],
)
def test_which_groups_are_chosen(settings, chosen):
    measures = settings.get("measures", MEASURES)
    named = {name: value for name, value in settings.items() if name != "measures"}
    assert GroupFilter(**named).chosen(measures) == chosen


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("reward_variance", 0.5**0.5),
        ("reward", 0.5),
        ("length", 3.0),
        ("std", 8**0.5),
        ("mean", 4.0),
        ("entropy", 0.6),
        ("entropy_variance", 0.08**0.5),
    ],
)
def test_measures(metric, expected):
    mixed = group("a", 0.0, 1.0, rewards=[2.0, 6.0], tokens=3, entropies=[0.4, 0.8])
    assert GroupFilter(metric=metric).measures([mixed]) == [pytest.approx(expected)]


def test_metrics_have_ragens_names():
    groups, chosen = [group("flat", 1.0, 1.0), group("mixed", 0.0, 1.0)], GroupFilter(value=0.9)
    assert chosen.chosen(chosen.measures(groups)) == [1]
    assert chosen.metrics(groups, [1]) == {
        "rollout/filter_kept_count": 1,
        "rollout/filter_kept_ratio": 0.5,
        "rollout/filter_zero_count": 1,
        "rollout/in_group_reward_mean": 0.75,
        "rollout/chosen_in_group_reward_mean": 0.5,
        "rollout/in_group_reward_std": pytest.approx(0.5**0.5 / 2),
        "rollout/chosen_in_group_reward_std": pytest.approx(0.5**0.5),
    }


def config(section="actor_rollout_ref.rollout", **rollout):
    config = {f"rollout_filter_{key}": value for key, value in rollout.items()}
    for name in reversed(section.split(".")):
        config = {name: config}
    return config


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        (config(), GroupFilter(1.0, "top_k", "largest", "std")),
        (config(ratio=0.25, type="std_rev"), GroupFilter(0.25, "top_k", "smallest", "std")),
        (config("agent_proxy", ratio=0.25, type="mean"), GroupFilter(0.25, "top_k", "largest", "mean")),
        (
            config(value=0.9, strategy="top_p", type="largest", metric="length", include_zero=False),
            GroupFilter(0.9, metric="length", include_zero=False),
        ),
    ],
)
def test_ragens_keys_are_read_from_its_place_or_from_ours(asked, read):
    assert GroupFilter.read(asked) == read


@pytest.mark.parametrize(
    ("rollout", "key"),
    [
        ({"ratio": 0.0}, "ratio"),
        ({"ratio": 1.5}, "ratio"),
        ({"type": "best"}, "type"),
        ({"value": 2.0}, "value"),
        ({"strategy": "min_p"}, "strategy"),
        ({"value": 0.5, "type": "std"}, "type"),
        ({"value": 0.5, "metric": "surprise"}, "metric"),
        ({"value": 0.5, "ratio": 0.5}, "ratio"),
        ({"value": 0.5, "top_p_prob_mode": "softmax"}, "top_p_prob_mode"),
        ({"value": 0.5, "selection_eps": 0.5}, "selection_eps"),
    ],
)
def test_what_cannot_work_is_refused(rollout, key):
    with pytest.raises(ConfigError, match=f"rollout_filter_{key}"):
        GroupFilter.read(config(**rollout))


def failing(*scores, failed):
    members = [Trajectory(0, "T", score, score, has_signal=place not in failed) for place, score in enumerate(scores)]
    return Group("failing", members)


@pytest.mark.parametrize(
    ("members", "differs"),
    [
        (group("mixed", 0.0, 1.0), True),
        (group("flat", 0.5, 0.5), False),
        (group("rounding", 0.1 + 0.2, 0.3), False),
        (group("penalized", 0.0, -0.1, rewards=[0.0, 0.0]), True),
        (group("alone", 0.0), True),
        (failing(0.0, 0.0, 1.0, failed=[2]), False),
        (failing(0.0, 0.5, 1.0, failed=[2]), True),
        (failing(0.0, 1.0, failed=[0, 1]), False),
        (failing(0.0, failed=[0]), False),
    ],
)
def test_variance_is_that_of_the_scores_that_are_learned_from(members, differs):
    assert has_variance(members) == differs


FLAT, LOW, HIGH, GONE = group("f", 1, 1), group("l", 0, 0.1), group("h", 0, 1), failing(0.0, 1.0, failed=[0, 1])


@pytest.mark.parametrize(
    ("batches", "dynamic", "most", "kept", "left"),
    [
        ([[FLAT, HIGH], [LOW, LOW]], False, 0, [FLAT, HIGH], 1),
        ([[FLAT, HIGH], [FLAT, FLAT], [LOW, HIGH], [LOW, LOW]], True, 0, [HIGH, LOW], 1),
        ([[FLAT, HIGH], [FLAT, FLAT], [LOW, HIGH]], True, 2, [HIGH], 1),
        ([[GONE, GONE], [HIGH, HIGH]], True, 0, [], 1),
        ([[GONE, HIGH]], False, 0, [HIGH], 0),
    ],
)
def test_sampling_goes_on_until_enough_groups_differ(batches, dynamic, most, kept, left):
    assert sample_groups(lambda: batches.pop(0), dynamic, most) == kept and len(batches) == left
