"""Which environment lives where, as ``Placer`` says; times are made up, see :mod:`support.simulated_machine`."""

from collections import Counter

import pytest

from ragen.parallel.episode.clock import Usage, spent_on
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import RAGEN
from ragen.parallel.placement import CallTime, Episode, Limits, Placement, local_share, spread
from ragen.parallel.stats import MeanCosts
from support.simulated_machine import Machine, Simulation, Tag


def specs(envs=16, group=4, tag="Tag", first=0, hint=None, overlap=False):
    kind = type(tag, (), {"cost_hint": hint, "uses_global_rng": False})
    more = {"overlap_waits": overlap}
    return [EnvSpec(first + i, (first + i) // group, tag, tag.lower(), kind, None, RAGEN, **more) for i in range(envs)]


def test_false_keeps_all_in_main_and_true_sends_all_but_sequential_types_and_those_bound_to_main():
    environments = specs(8) + specs(8, tag="Other", first=8)
    placement = Placement(environments, ["other"], Limits(3, cpus=2))
    assert (
        placement.lanes_at_start(True) == 3
        and not placement.lanes_at_start(False)
        and not placement.lanes_at_start("auto")
    )
    assert set(placement.at_reset(False, Episode()).values()) == {None}
    homes = placement.at_reset(True, Episode(), bound_to_main={0})
    assert [homes[env_id] for env_id in (0, *range(8, 16))] == [None] * 9
    assert {homes[env_id] for env_id in range(1, 8)} == {0, 1, 2}


def test_a_caller_may_deal_out_lanes_in_another_way():
    placement = Placement(
        specs(8), [], Limits(4, 2), spread=lambda away, lanes: {spec.env_id: lanes - 1 for spec in away}
    )
    assert set(placement.at_reset(True, Episode()).values()) == {3}


@pytest.mark.parametrize(("hint", "lanes"), [("heavy", 1), ("io", 8), ("cheap", 0), (None, 0)])
def test_what_a_class_says_of_its_costs_counts_before_anything_was_measured(hint, lanes):
    placement = Placement(specs(16, hint=hint), [], Limits(8, 2))
    assert placement.lanes_at_start("auto") == lanes
    homes = placement.at_reset("auto", Episode())
    assert len(set(homes.values()) - {None}) == lanes


def test_environments_that_wait_at_the_same_time_in_lanes_are_all_there():
    placement = Placement(specs(16, overlap=True), [], Limits(2, 2))
    assert set(placement.at_reset("auto", Episode()).values()) == {0, 1}


def test_lanes_are_asked_for_before_they_are_used_and_nothing_waits_for_them():
    simulation = Simulation({"Tag": Tag(32, 1e-3)}, Machine(start=10**9))
    simulation.run(10)
    assert simulation.placement.lanes_to_start == 1 and not any(played.moved for played in simulation.played)


def test_a_very_heavy_tag_goes_out_within_its_first_episode_where_there_are_many_lanes():
    simulation = Simulation({"Tag": Tag(64, 20e-3)}, Machine(cpus=lambda episode: 8, start=0), workers=7)
    first = simulation.run(1)[0]
    assert simulation.out()["Tag"] > 0.8 and first.seconds < 0.75 * first.alone_s
    second = simulation.run(1)[0]
    assert second.seconds < 0.2 * second.alone_s


def test_a_heavy_tag_spends_one_episode_in_main_and_one_that_may_be_cheap_two():
    heavy, cheap = (Simulation({"Tag": Tag(64, turn)}, Machine(start=0)) for turn in (2e-3, 30e-6))
    heavy.run(2)
    cheap.run(2)
    assert heavy.out()["Tag"] and not cheap.out()["Tag"]
    cheap.run(1)
    assert cheap.out()["Tag"]


def test_a_switch_in_mid_episode_places_as_asked_and_that_episode_decides_nothing():
    placement = Placement(specs(8), [], Limits(2, 2))
    placement.at_reset("auto", Episode())
    assert set(placement.at_switch(True).values()) == {0, 1}
    assert set(placement.at_switch("auto").values()) == {None}
    episode = Episode(calls=[CallTime(1.0, 8, 1.0)] * 5)
    episode.add({"Tag": spent_on([0.125] * 40)}, are_turns=True)
    for _ in range(3):
        homes = placement.at_reset("auto", episode, lanes_ready=1)
        placement.at_switch("auto")
    assert set(homes.values()) == {None}


@pytest.mark.parametrize(("asked", "lanes"), [(range(16), 15), (range(8), 7), ([0], 0)])
def test_in_the_first_episode_only_environments_that_still_play_are_worth_workers(asked, lanes):
    placement = Placement(specs(), [], Limits(64, 2))
    placement.at_reset("auto", Episode())
    episode = Episode(calls=[CallTime(3.2, 32, 3.2)])
    episode.add({"Tag": spent_on([1e-3] * 32)}, are_turns=False)
    episode.add({"Tag": spent_on([0.1] * 32, Usage(0.01, 3.19), 3.2)}, are_turns=True)
    homes = placement.before_turn(episode, lanes_ready=64, behind={"Tag": 0}, asked=asked)
    assert len({*(homes or {}).values()} - {None}) == lanes


def test_a_dear_turn_after_cheap_ones_starts_workers_and_goes_on_in_them():
    placement, all_of_them, episode = Placement(specs(64), [], Limits(64, 2)), specs(64), Episode()
    placement.at_reset("auto", Episode())
    for _ in range(5):
        placement.before_turn(episode)
        episode.add({"Tag": spent_on([2e-6] * 64)}, are_turns=True)
        episode.count(CallTime(2e-4, 64, 2e-4))
    assert placement.piece(episode, all_of_them, is_reset=False) == all_of_them and not placement.lanes_to_start
    left = range(62)
    for ready, is_moved in ((0, False), (64, True)):
        episode.add({"Tag": spent_on([0.3] * 2, Usage(0.0, 0.6), 0.6)}, are_turns=True)
        homes = placement.within_call(episode, left, is_reset=False, lanes_ready=ready, behind={"Tag": 320})
        assert bool(homes) == is_moved and (is_moved or placement.lanes_to_start > 8)
    assert homes.keys() == set(left) and len({*homes.values()} - {None}) > 8


def test_a_first_turn_that_seems_cheap_is_looked_at_twice_since_heavy_turns_may_follow():
    placement, left, pieces, episode = Placement(specs(64), [], Limits(2, 2)), specs(64), [], Episode()
    placement.at_reset("auto", Episode())
    placement.before_turn(episode)
    while left:
        pieces.append(placement.piece(episode, left, is_reset=False))
        assert left[-len(pieces[-1]) :] == pieces[-1]
        del left[-len(pieces[-1]) :]
        episode.add({"Tag": spent_on([2e-6] * len(pieces[-1]))}, are_turns=True)
    assert [*map(len, pieces)] == [2, 15, 47]


def test_the_reasons_name_costs_shares_and_what_holds_a_tag_in_main():
    simulation = Simulation({"Heavy": Tag(16, 2e-3), "Cheap": Tag(16, 2e-6), "Kept": Tag(4, 2e-6)}, sequential=["kept"])
    simulation.run(5)
    costs = {"Heavy": MeanCosts(2e-3, 1e-2), "Cheap": MeanCosts(2e-6)}
    reasons = simulation.placement.reasons({"Heavy"}, {}, costs)
    assert reasons["Heavy"] == "in 1 worker, and 50% of them in main: 2.0 ms a turn, 10 ms a reset"
    assert reasons["Cheap"].startswith("in main: 2.0 us a turn")
    assert reasons["Kept"] == "in main: named by sequential_env_types"
    assert simulation.placement.reasons((), {"Heavy": "does not work in a worker"}, {})["Heavy"].startswith(
        "in main: does not"
    )
    simulation.placement.at_switch(True)
    assert simulation.placement.reasons({"Heavy"}, {}, costs)["Heavy"] == "in workers: use_multiprocessing is true"


@pytest.mark.parametrize(
    ("why", "turn", "waits", "machine", "episodes", "text"),
    [
        ("cheap", 2e-6, 0.0, Machine(), 3, "2.0 us a turn; workers would save less"),
        ("slower in workers", 3e-4, 0.0, Machine(slowness=9.0, start=0), 6, "; workers were slower"),
        ("not up", 1e-2, 1.0, Machine(start=9e9), 3, "100% of the time waiting; 16 workers are starting"),
        (
            "waiting",
            1e-2,
            1.0,
            Machine(),
            3,
            "in 16 workers, and 6% of them in main: 10 ms a turn, 100% of the time waiting",
        ),
    ],
)
def test_a_reason_says_what_was_measured_and_what_follows(why, turn, waits, machine, episodes, text):
    simulation = Simulation({"Tag": Tag(32, turn, waits=waits)}, machine, workers=16)
    simulation.run(episodes)
    out = {"Tag"} if simulation.out()["Tag"] else set()
    assert text in simulation.placement.reasons(out, {}, {"Tag": MeanCosts(turn, waiting=waits)})["Tag"], why


def test_a_reason_in_the_first_episode_is_what_it_has_shown_so_far_or_what_the_class_declares():
    placement = Placement(specs(hint="heavy"), [], Limits(8, 2))
    placement.at_reset("auto", Episode())
    hinted = "in 1 worker, and 50% of them in main: its class declares cost_hint = 'heavy'; "
    assert placement.reasons({"Tag"}, {}, {}) == {"Tag": hinted + "no turn measured yet"}
    costs = {"Tag": MeanCosts(0.02, waiting=0.95)}
    assert placement.reasons({"Tag"}, {}, costs) == {"Tag": hinted + "20 ms a turn, 95% of the time waiting"}


def test_members_of_a_group_that_is_split_stay_together_as_far_as_possible():
    homes = spread(specs(16, group=4), 8)
    assert [homes[env_id] for env_id in range(16)] == [lane for lane in range(8) for _ in range(2)]
    homes = spread(specs(7, group=7), 3)
    assert [homes[env_id] for env_id in range(7)] == [0, 0, 0, 1, 1, 2, 2]


def test_environments_are_spread_evenly_with_groups_whole():
    homes = spread(specs(64, group=8), 4)
    assert Counter(homes.values()) == {0: 16, 1: 16, 2: 16, 3: 16}
    assert all(len({homes[env_id] for env_id in range(group * 8, group * 8 + 8)}) == 1 for group in range(8))


def test_groups_are_split_where_whole_ones_would_be_uneven_and_remainders_go_to_different_lanes():
    homes = spread(specs(5, group=5) + specs(5, group=5, tag="Other", first=5), 2)
    assert Counter(homes.values()) == {0: 5, 1: 5}


def test_main_keeps_the_last_environments_of_each_tag():
    assert local_share(specs(8) + specs(4, tag="Other", first=8), 0.25) == {6, 7, 11}
