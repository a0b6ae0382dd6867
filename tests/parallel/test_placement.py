"""Who goes where under ``auto``, decided on an engine that only pretends to play: its times are made up."""

import itertools
import random
from collections import Counter, defaultdict
from itertools import pairwise
from types import SimpleNamespace

import pytest

from ragen.parallel import placement
from ragen.parallel.accounts import CallTime
from ragen.parallel.costs import CostMeter
from ragen.parallel.host import Outcome
from ragen.parallel.placement import Placement, spread
from ragen.parallel.turn import EnvSpec, TurnResult

KEEPING, CALL = placement.KEEPING, placement.CALL


class Pretended:
    """An engine of environments with given costs, on a machine of two processors that may be slowed down.

    Attributes:
        homes: Lane by env_id, None for main.
        moves: How many environments changed their home, reset by reset.
        slowness: Factor on everything that lanes do, which the measured costs of turns do not show.
        hiccups: Seconds that calls take longer because something else has a processor, in turn.
    """

    def __init__(self, workers=2, **tags):
        self.settings = SimpleNamespace(max_workers=workers)
        self.costs = defaultdict(CostMeter)
        self.has_pool = False
        self.slowness = 1.0
        self.hiccups = itertools.repeat(0.0)
        self.moves = []
        self._tags = {
            tag: {"waits": False, "size": 50, "hint": None, "first": 1, **given} for tag, given in tags.items()
        }
        self._specs = []
        for tag, given in self._tags.items():
            kind = type(tag, (), {"cost_hint": given.get("hint")})
            for _ in range(given["envs"]):
                self._specs.append(EnvSpec(len(self._specs), len(self._specs) // 4, tag, tag.lower(), kind, None))
        self.homes = {spec.env_id: None for spec in self._specs}
        self._calls = []

    def specs(self):
        return self._specs

    def is_bound_to_main(self, env_id):
        return False

    def lanes(self, count):
        self.has_pool = True
        return [SimpleNamespace(name=f"lane {index}", order=index) for index in range(count)]

    def place(self, homes):
        name = {env_id: home and home.name for env_id, home in homes.items()}
        self.moves.append(sum(name[env_id] != self.homes[env_id] for env_id in name))
        self.homes = name

    def rest(self):
        return 0

    def lives_in_lane(self, tag):
        return any(self.homes[spec.env_id] for spec in self._specs if spec.tag == tag)

    def out(self):
        """Part of each tag that lives in lanes."""
        away = Counter(spec.tag for spec in self._specs if self.homes[spec.env_id])
        return {tag: away[tag] / given["envs"] for tag, given in self._tags.items()}

    def play(self, calls=5, noise=None):
        """Reset, and play an episode."""
        for tag, given in self._tags.items():
            self.costs[tag].add_resets([Outcome(0, None, given.get("reset", 0.0))])
        for call in range(calls):
            self._call(noise, call == 0)

    def _call(self, noise, is_first):
        loads = defaultdict(float, {None: 0.0})
        for tag, given in self._tags.items():
            by_home = Counter(self.homes[spec.env_id] for spec in self._specs if spec.tag == tag)
            for home, envs in by_home.items():
                seconds = given["turn"] * (noise.uniform(0.9, 1.1) if noise else 1.0)
                seconds *= given["first"] if is_first else 1
                self._measure(tag, envs, seconds)
                loads[home] += envs * (seconds if home is None else self.slowness * (seconds + 2e-6))
            self.costs[tag].add_call()
        self._count(loads)

    def _measure(self, tag, envs, seconds):
        if self._tags[tag].get("fails"):
            return
        waited = seconds if self._tags[tag]["waits"] else 0.0
        shown = TurnResult(0, 0, [], False, 0, False, {}, "x" * self._tags[tag]["size"], "")
        self.costs[tag].add_turns([Outcome(0, shown, seconds, waited)] * envs)

    def _count(self, loads):
        own = loads.pop(None)
        turns = len(self._specs)
        lanes = [load + 1e-4 for load in loads.values()]
        seconds = max([own, *lanes]) + KEEPING * (turns + CALL) + next(self.hiccups)
        self._calls.append(CallTime(seconds, turns, own, own - max(lanes) if lanes else None))

    def calls(self):
        calls, self._calls = self._calls, []
        return calls


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setattr(placement, "usable_cpus", lambda: 2)


def reset(engine, chosen):
    for meter in engine.costs.values():
        meter.end_episode()
    chosen.decide("auto")


def after(engine, episodes, noise=None, chosen=None):
    """Where environments live after some episodes; the placement that decided."""
    chosen = chosen or Placement(engine, [])
    for _ in range(episodes):
        reset(engine, chosen)
        engine.play(noise=noise)
    reset(engine, chosen)
    return chosen


@pytest.mark.parametrize(("envs", "turn"), [(8, 2e-6), (512, 0.5e-6), (32, 5e-6), (8, 15e-6)])
def test_what_is_cheap_stays_in_main(envs, turn):
    engine = Pretended(Tag={"envs": envs, "turn": turn})
    after(engine, 10)
    assert engine.out() == {"Tag": 0} and not sum(engine.moves)


@pytest.mark.parametrize(("envs", "turn"), [(8, 1e-3), (32, 2e-4), (128, 15e-6), (512, 15e-6), (32, 20e-3)])
def test_what_is_heavy_or_many_is_shared_between_main_and_a_lane_to_each_processor(envs, turn):
    engine = Pretended(Tag={"envs": envs, "turn": turn})
    after(engine, 10)
    assert 0.4 < engine.out()["Tag"] <= 0.8
    assert len(set(engine.homes.values())) == 2


def test_what_waits_uses_all_workers():
    engine = Pretended(workers=16, Tag={"envs": 32, "turn": 10e-3, "waits": True})
    after(engine, 3)
    assert len(set(engine.homes.values()) - {None}) == 16 and engine.out()["Tag"] > 0.8


def test_what_shows_large_images_has_to_be_heavier_to_go_out():
    small, large = (Pretended(Tag={"envs": 64, "turn": 30e-6, "size": size}) for size in (100, 100_000))
    after(small, 5)
    after(large, 5)
    assert small.out()["Tag"] > 0 and large.out()["Tag"] == 0


def test_of_two_tags_the_heavy_one_goes_out_and_the_cheap_one_stays():
    engine = Pretended(Heavy={"envs": 16, "turn": 2e-3}, Cheap={"envs": 16, "turn": 2e-6})
    after(engine, 5)
    assert engine.out()["Heavy"] > 0.3 and engine.out()["Cheap"] == 0


def test_sequential_types_stay_in_main_however_heavy():
    engine = Pretended(Heavy={"envs": 16, "turn": 2e-3}, Other={"envs": 16, "turn": 2e-3})
    after(engine, 5, chosen=Placement(engine, ["heavy"]))
    assert engine.out()["Heavy"] == 0 and engine.out()["Other"] > 0.8


def test_nothing_moves_before_something_was_measured_unless_the_class_says_what_it_costs():
    unknown = Pretended(Tag={"envs": 16, "turn": 2e-3})
    reset(unknown, Placement(unknown, []))
    told = Pretended(Tag={"envs": 16, "turn": 2e-3, "hint": "heavy"})
    reset(told, Placement(told, []))
    assert unknown.out()["Tag"] == 0 and told.out()["Tag"] > 0.3


def test_the_first_turn_of_an_unknown_tag_is_enough_where_it_shows_that_lanes_pay_at_once():
    engine = Pretended(Tag={"envs": 32, "turn": 50e-3})
    chosen = Placement(engine, [])
    reset(engine, chosen)
    engine.play(calls=1)
    assert chosen.wants_to_look_again
    chosen.look_again()
    assert engine.out()["Tag"] > 0.3 and not chosen.wants_to_look_again


def test_main_s_share_is_adjusted_until_main_and_lanes_end_together_and_then_stands_still():
    engine = Pretended(Tag={"envs": 256, "turn": 2e-4})
    engine.slowness = 1.4  # lanes are slower than the forecast takes them to be
    after(engine, 30)
    assert 0.36 < engine.out()["Tag"] < 0.46  # 1 / (1 + 1.4) where they end together
    assert not sum(engine.moves[12:])


def test_noise_does_not_move_environments_to_and_fro():
    engine = Pretended(Heavy={"envs": 64, "turn": 3e-4}, Cheap={"envs": 64, "turn": 9e-6})
    after(engine, 100, noise=random.Random(4))
    assert sum(engine.moves) < 2 * len(engine.homes)


def test_a_disturbed_call_now_and_then_brings_nobody_home():
    engine = Pretended(Tag={"envs": 128, "turn": 15e-6})
    engine.hiccups = itertools.cycle([0.0, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0])
    chosen = after(engine, 10)
    homes = []
    for _ in range(80):
        engine.play()
        reset(engine, chosen)
        homes.append(engine.out()["Tag"])
    visits = homes.count(0.0)
    assert visits <= 3 and min(home for home in homes if home) > 0.4


def test_a_heavy_turn_among_many_cheap_ones_counts_as_much_as_it_takes():
    engine = Pretended(Tag={"envs": 16, "turn": 3e-6, "first": 1000})
    chosen = after(engine, 5)
    homes = []
    for _ in range(40):
        engine.play(calls=10)
        reset(engine, chosen)
        homes.append(engine.out()["Tag"])
    assert min(homes) > 0.4


def test_environments_that_never_play_a_turn_decide_nothing():
    engine = Pretended(Fails={"envs": 2, "turn": 1e-3, "hint": "heavy", "fails": True}, Other={"envs": 4, "turn": 2e-6})
    after(engine, 6)
    assert engine.out()["Other"] == 0


def test_what_takes_long_the_first_time_only_is_not_taken_for_heavy():
    engine = Pretended(Tag={"envs": 64, "turn": 20e-6})
    chosen = Placement(engine, [])
    reset(engine, chosen)
    engine.play()
    engine._tags["Tag"]["turn"] = 2e-6
    for _ in range(10):
        reset(engine, chosen)
        engine.play()
    assert not sum(engine.moves)


def test_lanes_that_turn_out_slower_are_left_and_tried_again_at_growing_intervals():
    engine = Pretended(Tag={"envs": 64, "turn": 1e-4})
    engine.slowness = 5.0
    chosen = Placement(engine, [])
    out = []
    for _ in range(120):
        reset(engine, chosen)
        out.append(engine.out()["Tag"] > 0)
        engine.play(calls=2)
    tries = [index for index in range(1, len(out)) if out[index] and not out[index - 1]]
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert len(tries) >= 3 and gaps == sorted(gaps) and gaps[-1] >= 2 * gaps[0]


@pytest.mark.parametrize(("turn", "building", "visits"), [(12e-6, 0, 2), (12e-6, 2.0, 0), (5e-3, 0, 0)])
def test_main_is_timed_again_now_and_then_where_the_gain_is_in_doubt_unless_building_costs_more(turn, building, visits):
    engine = Pretended(Tag={"envs": 128, "turn": turn, "reset": building})
    chosen = after(engine, 4)
    assert engine.out()["Tag"] > 0
    homes = []
    for _ in range(80):
        engine.play()
        reset(engine, chosen)
        homes.append(engine.out()["Tag"] == 0)
    assert sum(homes) == visits
    assert not any(now and then for now, then in pairwise(homes))


def test_the_reasons_name_costs_and_shares():
    engine = Pretended(Heavy={"envs": 16, "turn": 2e-3}, Cheap={"envs": 16, "turn": 2e-6})
    reasons = after(engine, 5).reasons()
    assert reasons["Heavy"].startswith("in lanes but a share of") and "2000 us a turn" in reasons["Heavy"]
    assert reasons["Cheap"].startswith("in main: 2 us a turn")


def test_environments_are_spread_evenly_with_groups_whole():
    specs = [EnvSpec(index, index // 8, "Tag", "tag", object, None) for index in range(64)]
    homes = spread(specs, 4)
    assert Counter(homes.values()) == {0: 16, 1: 16, 2: 16, 3: 16}
    assert all(len({homes[spec.env_id] for spec in specs if spec.group_id == group}) == 1 for group in range(8))
