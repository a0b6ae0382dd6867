"""``auto`` over many episodes, on a machine that only pretends to play; see :mod:`support.simulated_machine`."""

import random
from itertools import pairwise

import pytest

from support.simulated_machine import Machine, Simulation, Tag, random_simulation

SLOWER, WORSE = 1.05, 1.1  # than sequential, than the better of sequential and all in lanes


def is_out(played):
    return any(home is not None for home in played.homes.values())


def changes(episodes):
    """How often environments went out or came back."""
    return sum(is_out(one) != is_out(two) for one, two in pairwise(episodes))


def check(simulation, episodes=150, tail=50, worse=WORSE):
    """Play, and compare the last episodes with both ways, and all of them with sequential play."""
    played = simulation.run(episodes)
    numbers = range(len(simulation.played) - tail, len(simulation.played))
    taken = sum(one.seconds for one in played[-tail:])
    alone, lanes = (sum(map(way, numbers)) for way in (simulation.alone, simulation.all_out))
    assert taken <= SLOWER * alone
    assert taken <= worse * min(alone, lanes)
    assert sum(one.seconds for one in played) <= SLOWER * sum(one.alone_s for one in played)
    assert changes(played) <= 10
    return played


@pytest.mark.parametrize("seed", range(12))
def test_the_better_way_is_found_and_kept_on_any_machine(seed):
    """Within a tenth, or a tenth of a millisecond a call."""
    simulation = random_simulation(seed)
    simulation.run(1)
    simulation.machine.start = 0.0  # workers that were asked for are up by now
    later = sum(one.seconds for one in simulation.run(24)[12:]) / 12
    better = min(simulation.alone(), simulation.all_out())
    assert later <= WORSE * better + 1e-4 * (1 + simulation.calls(0))


@pytest.mark.parametrize("turn", [2e-6, 15e-6, 50e-6, 200e-6, 20e-3])
def test_the_better_way_is_found_and_kept_where_calls_vary(turn):
    check(Simulation({"Tag": Tag(32, turn, reset=turn)}, Machine(noise=0.1)), 100, 40)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("waits", [0.0, 1.0])
@pytest.mark.parametrize("cpus", [2, 4, 8, 16])
def test_one_episode_of_heavy_turns_takes_at_most_a_quarter_more_than_with_workers_from_the_start(
    cpus, waits, is_known
):
    machine = Machine(lambda episode: cpus, message=1e-4, start=0.4)
    tags = {"Tag": Tag(32, 20e-3, waits=waits)}
    simulation = Simulation(tags, machine, min(8, cpus), 64, calls=lambda episode: 6, is_known=is_known)
    (first,) = simulation.run(1)
    assert first.seconds <= 1.25 * (machine.start + simulation.all_out())


@pytest.mark.parametrize("cpus", [1, 2, 16])
def test_what_waits_is_played_nearly_as_fast_as_by_16_workers_however_few_processors_there_are(cpus):
    machine = Machine(lambda episode: cpus, message=1e-4)
    simulation = Simulation({"Tag": Tag(32, 20e-3, waits=1.0)}, machine, workers=16, most=64)
    later = simulation.run(6)[-1]
    assert later.seconds <= 1.5 * simulation.all_out()


@pytest.mark.parametrize(("turn", "reset"), [(2e-6, 5e-3), (15e-6, 15e-6), (2e-4, 0.0), (2e-3, 5e-3)])
def test_episodes_of_one_turn(turn, reset):
    check(Simulation({"Tag": Tag(64, turn, reset=reset)}, Machine(noise=0.03), calls=lambda episode: 1))


@pytest.mark.parametrize(("turn", "reset"), [(2e-6, 5e-3), (20e-6, 1e-3), (2e-6, 5e-4), (2e-6, 2e-5)])
def test_episodes_that_mostly_reset(turn, reset):
    check(Simulation({"Tag": Tag(64, turn, reset=reset)}, Machine(noise=0.03)), worse=1.15)


@pytest.mark.parametrize(("build", "noise"), [(5e-3, 0.1), (25e-3, 0.0), (0.5, 0.1)])
@pytest.mark.parametrize(("turn", "reset"), [(3e-6, 0.0), (70e-6, 1e-4), (200e-6, 0.0), (1e-3, 1e-3)])
def test_where_building_is_dear_little_is_spent_on_it(turn, reset, build, noise):
    """After the first episode, which builds all: tries and shares together, whatever they would bring."""
    tags = {"Tag": Tag(16, turn, reset=reset, build=build)}
    simulation = Simulation(tags, Machine(noise=noise, slowness=2.0), workers=4, calls=lambda episode: 3)
    played = simulation.run(160)[1:]
    assert sum(one.seconds for one in played) <= 1.15 * sum(one.alone_s for one in played)


@pytest.mark.parametrize("envs", [8, 64])
def test_a_first_turn_that_is_heavier_than_all_others(envs):
    check(
        Simulation(
            {"Tag": Tag(envs, lambda episode, call, env_id: 3e-6 if call else 3e-3)},
            Machine(noise=0.03),
            calls=lambda episode: 10,
        )
    )


@pytest.mark.parametrize("envs", [64])
def test_turns_that_are_heavy_now_and_then(envs):
    draw = random.Random(1).random
    heavy = [draw() < 0.2 for _ in range(100_003)]

    def turn(episode, call, env_id):
        return 1e-3 if heavy[(episode * 7919 + call * 104_729 + env_id) % len(heavy)] else 3e-6

    check(Simulation({"Tag": Tag(envs, turn)}, Machine(noise=0.03)))


EVERY_THIRD = [
    ("its own", lambda call, env_id: call + env_id, 0.72),
    ("the first in all", lambda call, env_id: call, 0.72),
    ("the second in all", lambda call, env_id: call + 2, 0.8),
    ("the last in all", lambda call, env_id: call + 1, 1.01),  # too little is left
]


@pytest.mark.parametrize(("which", "number", "first"), EVERY_THIRD)
def test_where_every_third_turn_is_heavy_the_first_episode_and_later_ones_use_workers(which, number, first):
    def turn(episode, call, env_id):
        return 5e-6 if number(call, env_id) % 3 else 60e-3

    machine = Machine(message=1e-4, start=0.4)
    simulation = Simulation({"Tag": Tag(32, turn)}, machine, calls=lambda episode: 6)
    (one,) = simulation.run(1)
    assert one.seconds <= first * one.alone_s, which
    check(simulation, 30, 20)


@pytest.mark.parametrize("envs", [8, 64])
def test_bursts_of_all_environments_at_once_are_never_slower_than_in_main(envs):
    """Which of an episode's calls is a heavy one says nothing of the next episode's, so lanes win no try."""

    def turn(episode, call, env_id):
        return 3e-3 if call == episode * 7 % 10 else 3e-6

    simulation = Simulation({"Tag": Tag(envs, turn)}, Machine(noise=0.03), calls=lambda episode: 10)
    check(simulation, worse=2.0)


def test_a_core_that_is_lost_leads_back_to_main_and_one_that_is_won_out_again():
    simulation = Simulation({"Tag": Tag(64, 5e-4)}, Machine(noise=0.03))
    assert is_out(simulation.run(50)[-1])
    simulation.machine.cpus, simulation.machine.slowness = lambda episode: 1, 1.3
    without = simulation.run(100)[10:]
    assert sum(map(is_out, without)) <= 15
    assert sum(one.seconds for one in without) <= SLOWER * sum(one.alone_s for one in without)
    simulation.machine.cpus, simulation.machine.slowness = lambda episode: 2, 1.0
    assert is_out(simulation.run(100)[-1])


def test_a_core_that_is_lost_in_a_long_episode_leads_back_to_main_within_it():
    cpus = [2]
    simulation = Simulation({"Tag": Tag(64, 1e-4)}, Machine(cpus=lambda episode: cpus[0], noise=0.03))
    assert is_out(simulation.run(20)[-1])
    simulation.calls = lambda episode: 200
    cpus[0], simulation.machine.slowness = 1, 4.0  # lanes are crowded out
    first = simulation.run(1)[0]
    assert not simulation.out()["Tag"] and first.seconds <= 1.2 * first.alone_s


def test_a_try_that_loses_in_a_long_episode_is_broken_off():
    machine = Machine(slowness=5.0, noise=0.03)
    simulation = Simulation({"Tag": Tag(64, 1e-4)}, machine, calls=lambda episode: 200)
    played = simulation.run(5)
    assert sum(one.seconds for one in played) <= 1.03 * sum(one.alone_s for one in played)


def test_lanes_that_are_slower_than_forecast_are_tried_at_growing_intervals():
    simulation = Simulation({"Tag": Tag(64, 1e-4)}, Machine(slowness=5.0, noise=0.03))
    played = simulation.run(300)
    tries = [number for number, (one, two) in enumerate(pairwise(played)) if is_out(two) and not is_out(one)]
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert len(tries) >= 3 and all(later >= 1.8 * earlier for earlier, later in pairwise(gaps))


def test_main_s_share_settles_where_main_and_lanes_end_together():
    simulation = Simulation({"Tag": Tag(256, 2e-4)}, Machine(slowness=1.5, noise=0.03))
    played = simulation.run(60)
    assert 0.35 < simulation.out()["Tag"] < 0.45  # 1 / (1 + 1.5) where they end together
    assert sum(one.moved for one in played[12:] if is_out(one)) <= 3 * 256


@pytest.mark.parametrize(("envs", "turn"), [(64, 3e-4), (128, 40e-6), (8, 2e-6)])
def test_disturbed_calls_decide_nothing(envs, turn):
    calm, disturbed = (
        Simulation({"Tag": Tag(envs, turn)}, Machine(noise=0.05, hiccups=hiccups)) for hiccups in (0.0, 0.02)
    )
    usual = sum(map(is_out, calm.run(100)[-20:])) > 10  # now and then the other plan is tried
    assert (sum(map(is_out, check(disturbed, 100, 60)[-20:])) > 10) == usual


def test_what_takes_long_the_first_time_only_is_not_taken_for_heavy():
    def turn(episode, call, env_id):
        return 1e-2 if episode == call == 0 else 2e-6

    simulation = Simulation({"Tag": Tag(64, turn)})
    first = simulation.run(1)[0]
    assert first.seconds <= 1.2 * first.alone_s
    assert not is_out(check(simulation)[-1])


@pytest.mark.parametrize(("before", "after"), [(1e-3, 2e-6), (2e-6, 1e-3)])
def test_a_tag_whose_costs_change_changes_its_home(before, after):
    simulation = Simulation({"Tag": Tag(32, lambda episode, call, env_id: before if episode < 60 else after)})
    simulation.run(60)
    check(simulation, 150)


@pytest.mark.parametrize("calls", [lambda episode: 1 + episode * 7 % 9, lambda episode: 5 if episode < 50 else 2])
def test_episodes_of_different_lengths(calls):
    check(Simulation({"Tag": Tag(64, 1e-4)}, Machine(noise=0.03), calls=calls))


def test_of_two_tags_the_heavy_one_goes_out_and_the_cheap_one_stays():
    simulation = Simulation({"Cheap": Tag(16, 2e-6), "Heavy": Tag(16, 2e-3)}, Machine(noise=0.03))
    check(simulation)
    assert simulation.out() == {"Heavy": 0.5, "Cheap": 0.0}


@pytest.mark.parametrize(
    "tags",
    [
        {"Heavy": Tag(16, 2e-4), "Cheap": Tag(128, 2e-6)},
        {"Heavy": Tag(8, 2e-4), "Middle": Tag(64, 1e-4), "Cheap": Tag(64, 2e-6)},
        {"Reset": Tag(32, 2e-6, reset=5e-3), "Turn": Tag(32, 1e-3)},
    ],
)
def test_mixed_tags(tags):
    check(Simulation(tags, Machine(noise=0.03)))


@pytest.mark.parametrize("hint", [None, "io"])
def test_what_waits_uses_all_workers(hint):
    simulation = Simulation({"Tag": Tag(32, 1e-2, waits=1.0, hint=hint)}, workers=16)
    check(simulation)
    assert len(set(simulation.played[-1].homes.values()) - {None}) == 16


def test_what_comes_to_wait_is_given_more_workers_and_fewer_again_when_it_computes():
    simulation = Simulation({"Tag": Tag(32, 1e-2)}, workers=16)
    simulation.run(10)
    used = [len(set(simulation.played[-1].homes.values()) - {None})]
    for simulation.tags["Tag"].waits in (1.0, 0.0):
        simulation.run(40)
        used.append(len(set(simulation.played[-1].homes.values()) - {None}))
    assert used == [1, 16, 1]


def test_what_mostly_waits_takes_what_computes_along():
    check(Simulation({"Waits": Tag(32, 1e-2, waits=1.0), "Works": Tag(32, 1e-3)}, Machine(noise=0.03), workers=16))


@pytest.mark.parametrize("turn", [2e-6, 2e-3])
def test_a_hint_may_be_right_or_wrong(turn):
    simulation = Simulation({"Tag": Tag(32, turn, hint="heavy")}, Machine(noise=0.03))
    assert simulation.placement.lanes_at_start("auto") == 1
    simulation.run(50)
    check(simulation)


@pytest.mark.parametrize(("turn", "sent"), [(3e-5, 6e-5), (1e-3, 2e-3), (1e-3, 1e-4)])
def test_what_is_dear_to_send(turn, sent):
    check(Simulation({"Tag": Tag(64, turn, sent=sent)}, Machine(noise=0.03)), 150, 50)


def test_many_processors():
    machine = Machine(cpus=lambda episode: 8, noise=0.03)
    simulation = Simulation({"Heavy": Tag(64, 2e-3), "Cheap": Tag(64, 2e-6)}, machine, workers=8)
    check(simulation, 150, 100)
    assert simulation.out()["Heavy"] > 0.8


def test_on_one_processor_nothing_that_computes_moves():
    played = check(Simulation({"Tag": Tag(64, 2e-3)}, Machine(cpus=lambda episode: 1)))
    assert not any(map(is_out, played))


def test_environments_that_never_play_a_turn_decide_nothing():
    simulation = Simulation({"Tag": Tag(16, 2e-3)}, calls=lambda episode: 0)
    assert not any(map(is_out, simulation.run(20)))


def test_a_machine_that_is_slower_for_a_while_changes_nothing():
    simulation = Simulation({"Tag": Tag(64, 1e-3)}, Machine(noise=0.03))
    simulation.run(30)
    simulation.machine.speed = 2.0
    simulation.run(30)
    assert sum(map(is_out, simulation.played[-20:])) >= 19
