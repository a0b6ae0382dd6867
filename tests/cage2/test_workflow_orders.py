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


def test_distances_count_pairs_that_stand_the_other_way_round():
    rng = np.random.default_rng(0)
    for _ in range(50):
        one, other = (MANAGER.orders[number] for number in rng.integers(120, size=2))
        pairs = itertools.combinations(TYPES, 2)
        turned = sum((one.index(a) < one.index(b)) != (other.index(a) < other.index(b)) for a, b in pairs)
        assert MANAGER.distances[MANAGER.number(one), MANAGER.number(other)] == turned
    assert (MANAGER.distances == MANAGER.distances.T).all() and not MANAGER.distances.diagonal().any()


@pytest.mark.parametrize("wrong", [TYPES[:4], (*TYPES[:4], "users"), (*TYPES[:4], "defender"), "user", ()])
def test_what_is_no_order_is_refused(wrong):
    with pytest.raises(WorkflowError):
        MANAGER.number(wrong)
