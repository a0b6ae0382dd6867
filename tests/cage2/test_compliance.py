"""Which fixes comply, what that is worth, and that it is counted for each environment and episode by itself."""

import itertools

import numpy as np
import pytest

from ragen.cage2.layout import FIXES
from ragen.cage2.workflow import Compliance
from ragen.errors import ConfigError, WorkflowError

TYPES = ("defender", "enterprise", "op_server", "op_host", "user")
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


def test_user0_makes_no_other_fix_a_violation():
    # Red's session on User0 never goes away: were it counted, an order that begins with user could not be kept to.
    order = ("user", "enterprise", "op_server", "defender", "op_host")
    assert complied(order, "first_compromised", ("enterprise", ("enterprise",)))
    assert not complied(order, "first_compromised", ("enterprise", ("enterprise", "user")))


def test_remove_and_restore_are_fixes_and_nothing_else_is():
    compliance = Compliance(145, ORDER)
    compliance.step(np.arange(145), np.zeros((145, 5), bool))
    assert np.flatnonzero(compliance.fixes).tolist() == [*range(15, 28), *range(132, 145)]
    for name, action in (*RESTORE.items(), *REMOVE.items()):
        assert TYPES[FIXES[action]] == name


@pytest.mark.parametrize(("alpha", "beta"), [(10, 10), (30, 0), (5, 20)])
def test_payments_are_the_changes_of_the_value_and_add_up_to_it(alpha, beta):
    compliance = Compliance(1, ORDER, alignment_alpha=alpha, alignment_beta=beta)
    paid = played(
        compliance,
        (None, ()),
        ("op_host", ("user",)),  # 0 of 1
        (None, ("user",)),
        ("user", ("user",)),  # 1 of 2
        ("user", ()),  # 2 of 3
    )
    values = [-beta / 2, -beta, -beta, (alpha - beta) / 2, (2 * alpha - beta) / 3]
    assert paid == pytest.approx(np.diff([-beta / 2, *values]))
    assert sum(paid) == pytest.approx(values[-1] + beta / 2)
    assert compliance.values() == pytest.approx(values[-1:])


@pytest.mark.parametrize("definition", ["first_compromised", "fixed_before"])
def test_an_episodes_rate_is_read_before_it_is_cleared_and_others_keep_theirs(definition):
    compliance = Compliance(2, ORDER, definition)
    assert compliance.rates()[0] == 0.5  # without a fix
    for _ in range(3):
        compliance.step(np.array([RESTORE["op_server"]] * 2), np.array([flags()] * 2))
    ended = compliance.end(0)
    assert ended == (1.0, 3) and compliance.fixes.tolist() == [0, 3]
    compliance.step(np.array([RESTORE["enterprise"]] * 2), np.array([flags("op_server")] * 2))
    assert compliance.rates().tolist() == [0.0, 1.0 if definition == "fixed_before" else 0.75]


def test_environments_are_counted_apart():
    rng = np.random.default_rng(0)
    many = Compliance(6, ORDER, "fixed_before")
    single = [Compliance(1, ORDER, "fixed_before") for _ in range(6)]
    for _ in range(40):
        actions, compromised = rng.integers(145, size=6), rng.random((6, 5)) < 0.5
        paid = many.step(actions, compromised)
        alone = [each.step(actions[i : i + 1], compromised[i : i + 1])[0] for i, each in enumerate(single)]
        assert paid.tolist() == alone
    assert many.rates().tolist() == [each.rates()[0] for each in single]


def test_what_is_unknown_is_refused():
    with pytest.raises(ConfigError):
        Compliance(1, ORDER, "strict")
    with pytest.raises(WorkflowError):
        Compliance(1, ORDER[:4])
