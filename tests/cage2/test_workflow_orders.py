"""The 120 orders, their codes and their distances."""

import itertools

import numpy as np
import pytest

from ragen.cage2.workflow import WorkflowManager
from ragen.errors import WorkflowError

MANAGER = WorkflowManager()
TYPES = MANAGER.types


def test_there_are_all_orders_and_each_has_its_number():
    assert len(set(MANAGER.orders)) == 120
    assert [MANAGER.number(order) for order in MANAGER.orders] == list(range(120))
    assert set(MANAGER.orders) == set(itertools.permutations(TYPES))


def test_a_code_is_position_times_type():
    code = MANAGER.order_to_onehot(("user", "defender", "enterprise", "op_server", "op_host"))
    assert code.shape == (25,) and code.dtype == np.float32
    assert np.flatnonzero(code).tolist() == [0 * 5 + 4, 1 * 5 + 0, 2 * 5 + 1, 3 * 5 + 2, 4 * 5 + 3]


@pytest.mark.parametrize("wrong", [TYPES[:4], (*TYPES[:4], "users"), (*TYPES[:4], "defender"), "user", ()])
def test_what_is_no_order_is_refused(wrong):
    with pytest.raises(WorkflowError):
        MANAGER.number(wrong)


def test_distances_count_pairs_that_stand_the_other_way_round():
    distances, (a, b, *others) = MANAGER.distances, TYPES
    near, far = ((b, a, *others), 1), ((b, *others, a), 4)
    for order, pairs in (near, far, (TYPES[::-1], 10), (TYPES, 0)):
        assert distances[0, MANAGER.number(order)] == distances[MANAGER.number(order), 0] == pairs
