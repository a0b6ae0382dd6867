"""The Gaussian process over orders, its bounds, and what is proposed."""

import numpy as np
import pytest

from ragen.cage2.order_search import OrderSearch
from ragen.cage2.workflow import WorkflowManager

MANAGER = WorkflowManager()


def seen(count=12, seed=0, noise=0.5):
    """A search that has seen values that fall with the distance from an order."""
    search, rng = OrderSearch(), np.random.default_rng(seed)
    for number in rng.choice(120, count, replace=False):
        value = -30 - 5 * MANAGER.distances[number, 77] + rng.normal() * noise
        search.observe(MANAGER.orders[number], value, noise)
    return search


def test_values_decide_the_bounds_not_the_order_in_which_they_came():
    # The seed fitted its process on 0, 1, 2, ... and did not use it.
    means = []
    for sign in (1.0, -1.0):
        search = OrderSearch()
        for number, value in ((3, 1.0), (60, 5.0), (110, 2.0)):
            search.observe(MANAGER.orders[number], sign * value)
        means.append(search.belief().mean)
    assert means[0].argmax() == means[1].argmin() == 60 and means[0] == pytest.approx(-means[1])


def test_what_is_proposed_has_the_largest_bound_of_all_120():
    search = seen()
    belief = search.belief()
    assert MANAGER.number(search.propose()) == np.argmax(belief.mean + 2.0 * belief.std)
    search.beta = 0.0
    assert MANAGER.number(search.propose()) == np.argmax(belief.mean)


@pytest.mark.parametrize("number", range(0, 120, 7))
def test_every_order_is_a_candidate(number):
    # The seed looked at five to ten of the 120.
    search = OrderSearch(beta=0.0)
    search.observe(MANAGER.orders[number], 1.0)
    search.observe(MANAGER.orders[(number + 50) % 120], 0.0)
    assert search.propose() == MANAGER.orders[number]
