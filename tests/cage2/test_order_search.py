"""The Gaussian process over orders, its bounds, and what is proposed."""

import itertools

import numpy as np
import pytest

from ragen.cage2.order_search import GRID, OrderSearch
from ragen.cage2.workflow import WorkflowManager
from ragen.errors import ConfigError, InputError, WorkflowError

MANAGER = WorkflowManager()


def seen(count=12, seed=0, noise=0.5):
    """A search that has seen values that fall with the distance from an order."""
    search, rng = OrderSearch(), np.random.default_rng(seed)
    for number in rng.choice(120, count, replace=False):
        value = -30 - 5 * MANAGER.distances[number, 77] + rng.normal() * noise
        search.observe(MANAGER.orders[number], value, noise)
    return search


@pytest.mark.parametrize("decay", sorted({kernel.decay for kernel in GRID}))
def test_the_kernel_is_positive_definite_on_all_orders(decay):
    assert np.linalg.eigvalsh(np.exp(-decay * MANAGER.distances)).min() > 1e-9


def test_beliefs_are_those_of_the_definition():
    search = seen()
    belief = search.belief()
    numbers = [each.number for each in search.observations]
    values = np.array([each.value for each in search.observations])
    center, scale = values.mean(), values.std()
    kernel = belief.kernel
    similar = kernel.signal * np.exp(-kernel.decay * MANAGER.distances)
    noises = [(each.noise / scale) ** 2 + kernel.noise for each in search.observations]
    inverse = np.linalg.inv(similar[np.ix_(numbers, numbers)] + np.diag(noises))
    mean = similar[:, numbers] @ inverse @ ((values - center) / scale)
    variance = kernel.signal - np.einsum("ij,jk,ik->i", similar[:, numbers], inverse, similar[:, numbers])
    assert belief.mean == pytest.approx(center + scale * mean, abs=1e-6)
    assert belief.std == pytest.approx(scale * np.sqrt(variance), abs=1e-6)


def test_the_hyperparameters_are_the_likeliest_of_the_grid():
    search = seen()
    numbers = [each.number for each in search.observations]
    raw = np.array([each.value for each in search.observations])
    values = (raw - raw.mean()) / raw.std()

    def score(kernel):
        similar = kernel.signal * np.exp(-kernel.decay * MANAGER.distances[np.ix_(numbers, numbers)])
        covariance = similar + np.eye(len(numbers)) * ((0.5 / raw.std()) ** 2 + kernel.noise)
        _, logdet = np.linalg.slogdet(covariance)
        return -0.5 * values @ np.linalg.inv(covariance) @ values - 0.5 * logdet + kernel.log_prior()

    assert search.belief().kernel == max(GRID, key=score)


def test_values_decide_the_bounds_not_the_order_in_which_they_came():
    # The seed fitted its process on 0, 1, 2, ... and did not use it.
    search, other = OrderSearch(), OrderSearch()
    for number, value in ((3, 1.0), (60, 5.0), (110, 2.0)):
        search.observe(MANAGER.orders[number], value)
        other.observe(MANAGER.orders[number], -value)
    assert search.belief().mean[60] == max(search.belief().mean)
    assert other.belief().mean[60] == min(other.belief().mean)
    assert search.belief().mean == pytest.approx(-other.belief().mean)


def test_what_is_proposed_has_the_largest_bound_of_all_120():
    search = seen()
    belief = search.belief()
    assert MANAGER.number(search.propose()[0]) == np.argmax(belief.mean + 2.0 * belief.std)
    search.beta = 0.0
    assert MANAGER.number(search.propose()[0]) == np.argmax(belief.mean)


@pytest.mark.parametrize("number", range(0, 120, 7))
def test_every_order_is_a_candidate(number):
    # The seed looked at five to ten of the 120.
    search = OrderSearch(beta=0.0)
    search.observe(MANAGER.orders[number], 1.0)
    search.observe(MANAGER.orders[(number + 50) % 120], 0.0)
    assert search.propose() == [MANAGER.orders[number]]


def test_a_batch_takes_its_means_for_seen_and_spreads():
    search = seen(8)
    batch = search.propose(5)
    assert len(set(batch)) == 5 and batch[0] == search.propose()[0]
    belief = search.belief()
    greedy = {MANAGER.orders[number] for number in np.argsort(-(belief.mean + 2 * belief.std))[:5]}
    assert set(batch) != greedy
    distances = [MANAGER.kendall_distance(*pair) for pair in itertools.combinations(OrderSearch().propose(4), 2)]
    assert min(distances) >= 4


def test_noise_widens_what_is_believed():
    sure, unsure = OrderSearch(), OrderSearch()
    for number, value in ((3, 1.0), (60, 5.0), (110, 2.0)):
        sure.observe(MANAGER.orders[number], value, 0.0)
        unsure.observe(MANAGER.orders[number], value, 4.0)
    assert unsure.belief().std[60] > 2 * sure.belief().std[60]


def test_it_finds_a_good_order_in_few_trials():
    def found(search, trials, rng):
        best = -np.inf
        for _ in range(trials):
            (order,) = search.propose() if search else [MANAGER.orders[rng.integers(120)]]
            value = -5.0 * MANAGER.kendall_distance(order, MANAGER.orders[77])
            best = max(best, value)
            if search:
                search.observe(order, value + rng.normal(), 1.0)
        return best

    searched = np.mean([found(OrderSearch(seed=seed), 20, np.random.default_rng(seed)) for seed in range(6)])
    drawn = np.mean([found(None, 20, np.random.default_rng(seed)) for seed in range(200)])
    assert searched > -4 > drawn


def test_proposals_follow_from_the_seed_and_what_was_seen():
    assert seen().propose(3) == seen().propose(3)
    assert len({OrderSearch(seed=seed).propose()[0] for seed in range(9)}) > 4


def test_equal_values_are_no_trouble():
    search = OrderSearch()
    for number in range(4):
        search.observe(MANAGER.orders[number], -7.0)
    belief = search.belief()
    assert np.isfinite(belief.mean).all() and belief.mean == pytest.approx(-7.0)


def test_what_cannot_be_is_refused():
    search = OrderSearch()
    for value, noise in ((float("nan"), 0.0), (1.0, -1.0), (1.0, float("inf"))):
        with pytest.raises(InputError, match="finite"):
            search.observe(MANAGER.types, value, noise)
    with pytest.raises(WorkflowError):
        search.observe(("user",), 1.0)
    with pytest.raises(InputError, match="count = 0"):
        search.propose(0)
    with pytest.raises(ConfigError, match="beta = -1"):
        OrderSearch(beta=-1)
    assert search.observations == []
