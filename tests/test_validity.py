"""The rule for failed trajectories, as tables."""

import pytest

from ragen.errors import EnvsFailedError
from ragen.validity import check_share, env_error, failure_counts, is_valid, with_signal

GONE = "ConnectionError: sandbox lost (envs.py, line 38)"


@pytest.mark.parametrize(
    "trajectory, error",
    [
        ({}, None),
        ({"env_error": None}, None),
        ({"env_error": ""}, None),
        ({"env_error": GONE}, GONE),
        ({"history": [{"info": {}}, {"info": {"env_error": GONE}}, {"state": "last"}]}, GONE),
        ({"history": [{"info": None}], "error": "no reply"}, None),
    ],
)
def test_a_trajectory_is_valid_unless_its_environment_failed(trajectory, error):
    assert env_error(trajectory) == error and is_valid(trajectory) == (error is None)


@pytest.mark.parametrize(
    "groups, failed, policy, kept",
    [
        ("aaaabb", "000000", "mask", "111111"),
        ("aaaabb", "010000", "mask", "101111"),
        ("aaaabb", "010000", "drop_group", "000011"),
        ("aaaabb", "011100", "mask", "000011"),  # one valid member is left: nothing to compare it with
        ("aaaabb", "111100", "mask", "000011"),
        ("abab", "1000", "mask", "0101"),
        ("abc", "010", "mask", "101"),  # groups of one by design
        ("abc", "010", "drop_group", "101"),
        ("aabb", "1111", "mask", "0000"),
        ("", "", "mask", ""),
    ],
)
def test_groups_are_compared_among_their_valid_members(groups, failed, policy, kept):
    errors = [GONE if each == "1" else None for each in failed]
    assert "".join("01"[int(each)] for each in with_signal(groups, errors, policy)) == kept


def test_failures_are_counted_by_type():
    errors = [
        "timed out after 3 s",
        None,
        GONE,
        "timed out after 60 s",
        "its process was killed by SIGKILL",
        "KeyError",
    ]
    assert failure_counts(errors) == {
        "timed out after .. s": 2,
        "ConnectionError": 1,
        "its process was killed by SIGKILL": 1,
        "KeyError": 1,
    }


def test_a_run_ends_when_more_than_half_of_its_trajectories_failed():
    check_share([])
    check_share([GONE, None])
    with pytest.raises(EnvsFailedError):
        check_share([GONE, None, GONE])
