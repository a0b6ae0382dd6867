"""Which fixes comply, what that is worth, and the 120 orders with their codes and distances."""

import itertools

import numpy as np
import pytest

from ragen.cage2.layout import FIXES
from ragen.cage2.workflow import Compliance, WorkflowManager
from ragen.errors import ConfigError, WorkflowError

MANAGER = WorkflowManager()
TYPES = MANAGER.types
RESTORE = {"defender": 132, "enterprise": 133, "op_host": 136, "op_server": 139, "user": 141}
REMOVE = {name: action - 117 for name, action in RESTORE.items()}
SLEEP = 0


def flags(*names):
    return [name in names for name in TYPES]


def played(compliance, *steps):
    """Play ``(type or None, types compromised before)`` in the only environment; what was paid."""
    return [
        float(compliance.step(np.array([SLEEP if name is None else RESTORE[name]]), np.array([flags(*before)]))[0])
        for name, before in steps
    ]


def complied(order, definition, *steps):
    """Whether the last of some fixes complies."""
    compliance = Compliance(1, order, definition)
    played(compliance, *steps[:-1])
    before = compliance.compliant[0]
    played(compliance, steps[-1])
    return bool(compliance.compliant[0] - before)


ORDER = ("op_server", "enterprise", "user", "defender", "op_host")


def test_the_same_for_every_order_and_every_set_of_types():
    orders = list(itertools.permutations(TYPES))[::7]
    for order, fixed in itertools.product(orders, TYPES):
        for size in range(6):
            for compromised in itertools.combinations(TYPES, size):
                first = next((name for name in order if name in compromised), None)
                assert complied(order, "first_compromised", (fixed, compromised)) is (first in (None, fixed))


def test_by_the_other_definition_all_types_before_it_were_fixed_once():
    def fixes(*names):
        return complied(ORDER, "fixed_before", *((name, ()) for name in names))

    assert fixes("op_server")
    assert not fixes("enterprise")
    assert fixes("op_server", "enterprise")
    assert fixes("enterprise", "op_server", "enterprise")
    assert not fixes("op_server", "user")
    assert fixes("op_server", "enterprise", "op_server")
    assert fixes("op_host", "defender", "user", "enterprise", "op_server", "op_host")


def test_remove_and_restore_are_fixes_and_nothing_else_is():
    compliance = Compliance(145, ORDER)
    compliance.step(np.arange(145), np.zeros((145, 5), bool))
    assert np.flatnonzero(compliance.fixes).tolist() == [*range(15, 28), *range(132, 145)]
    for name, action in (*RESTORE.items(), *REMOVE.items()):
        assert TYPES[FIXES[action]] == name


@pytest.mark.parametrize(("alpha", "beta"), [(10, 10), (30, 0), (5, 20)])
def test_payments_are_the_changes_of_the_value_and_add_up_to_it(alpha, beta):
    compliance = Compliance(1, ORDER, alignment_alpha=alpha, alignment_beta=beta)
    steps = [(None, ()), ("op_host", ("user",)), (None, ("user",)), ("user", ("user",)), ("user", ())]
    values = [-beta / 2, -beta / 2, -beta, -beta, (alpha - beta) / 2, (2 * alpha - beta) / 3]  # 0 of 1, 1 of 2, 2 of 3
    assert played(compliance, *steps) == pytest.approx(np.diff(values))
    assert compliance.values() == pytest.approx(values[-1:])


def test_an_episodes_rate_is_read_before_it_is_cleared_and_others_keep_theirs():
    compliance = Compliance(2, ORDER)
    assert compliance.rates().tolist() == [0.5, 0.5]  # without a fix
    for _ in range(3):
        compliance.step(np.array([RESTORE["op_server"]] * 2), np.array([flags()] * 2))
    assert compliance.end(0) == (1.0, 3) and compliance.fixes.tolist() == [0, 3]
    compliance.step(np.array([RESTORE["enterprise"]] * 2), np.array([flags("op_server")] * 2))
    assert compliance.rates().tolist() == [0.0, 0.75]


def test_what_is_unknown_is_refused():
    with pytest.raises(ConfigError):
        Compliance(1, ORDER, "strict")


# Orders


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
