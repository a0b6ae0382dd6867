"""How many requests are under way: found by throughput and by refusals, obeyed where it is said."""

import asyncio
import heapq
import random

import pytest

from ragen.llm_agent.backends.admission import FIRST, MOST, Pace, Slots


class SimulatedServer:
    """So many requests at a time, each for so long; more than ``refuses`` at a time are refused."""

    def __init__(self, pace_limit=None, places=64, seconds=0.2, refuses=10**9):
        self.now = 0.0
        self.pace = Pace(pace_limit, clock=lambda: self.now)
        self.places, self.seconds, self.refuses = places, seconds, refuses
        self.refused = 0

    def run(self, answers):
        """The limits after each answer; the client always has more to ask."""
        under_way, limits, free_at = [], [], [0.0] * self.places
        while len(limits) < answers:
            while len(under_way) < self.pace.limit:
                if len(under_way) >= self.refuses:
                    self.refused += 1
                    self.pace.refused()
                    self.now += 0.01
                    break
                heapq.heapreplace(free_at, done := max(self.now, free_at[0]) + self.seconds)
                heapq.heappush(under_way, done)
            self.now = max(self.now, heapq.heappop(under_way))
            self.pace.answered(is_full=True)
            limits.append(self.pace.limit)
        return limits


@pytest.mark.parametrize("places", [1, 8, 64, 300])
def test_as_many_as_a_server_has_use_for_are_found_and_not_many_more(places):
    limits = SimulatedServer(places=places).run(12_000)
    assert places <= max(limits[-2000:]) and min(limits[-2000:]) <= max(4 * places, 2 * FIRST)
    assert max(limits) <= MOST


def test_a_server_that_refuses_is_asked_less():
    server = SimulatedServer(places=500, refuses=100)
    limits = server.run(20_000)
    assert max(limits[-5000:]) <= 130 and min(limits[-5000:]) >= 50
    assert server.refused < 0.02 * 20_000


def test_a_server_that_refuses_a_few_at_random_is_still_asked_for_many():
    server, drawn = SimulatedServer(places=64), random.Random(5)
    answered = server.pace.answered

    def answered_or_refused(is_full):
        if drawn.random() < 0.06:
            server.pace.refused()
        answered(is_full)

    server.pace.answered = answered_or_refused
    limits = server.run(10_000)
    assert min(limits) >= 16 and max(limits) <= 128


def test_a_number_that_is_said_is_obeyed():
    server = SimulatedServer(pace_limit=5, places=64)
    assert set(server.run(500)) == {5}
    server.pace.refused()
    assert server.pace.limit == 5


def test_what_is_not_full_says_nothing():
    pace = Pace(clock=iter(range(10**6)).__next__)
    for _ in range(10 * FIRST):
        pace.answered(is_full=False)
    assert pace.limit == FIRST


def test_slots_are_given_in_turn_and_one_that_is_given_up_goes_to_the_next():
    async def play():
        slots, order, most = Slots(2), [], 0

        async def work(number):
            nonlocal most
            async with slots.one():
                most = max(most, slots.used)
                order.append(number)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work(number)) for number in range(8)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order, most, slots.used

    assert asyncio.run(play()) == ([0, 1, 2, 4, 5, 6, 7], 2, 0)


def test_a_slot_given_to_one_that_is_cancelled_in_that_moment_is_not_lost():
    async def play():
        slots = Slots(1)
        await slots._enter()
        waiting = [asyncio.create_task(slots._enter()) for _ in range(2)]
        await asyncio.sleep(0)
        slots.used -= 1
        slots._wake()  # the first is given the slot, and is cancelled before it can take it
        waiting[0].cancel()
        await asyncio.wait(waiting, timeout=5)
        return [task.cancelled() for task in waiting], slots.used

    assert asyncio.run(play()) == ([True, False], 1)
