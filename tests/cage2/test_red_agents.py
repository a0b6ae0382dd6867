"""Which way Red goes, and what it costs."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from ragen.cage2.layout import HOSTS, INDEX
from ragen.cage2.simulator import tables
from ragen.cage2.simulator.agents import Meander
from ragen.cage2.simulator.game import EmbeddedGame
from ragen.cage2.simulator.network import Network
from ragen.cage2.simulator.red import ESCALATE, EXPLOIT, IMPACT, SCAN, SWEEP, Move


def moves(game, seed, steps, action=0):
    game.reset(seed)
    found = []
    for _ in range(steps):
        game.step(action)
        found.append(game.last_red)
    return found


def test_b_line_goes_straight_to_the_operational_server():
    game = EmbeddedGame("b_line")
    seen = Counter()
    for seed in range(200):
        found = moves(game, seed, 15)
        if not all(success for _, success in found):
            continue  # an exploit that failed
        user = found[1][0].target
        seen[HOSTS[user]] += 1
        enterprise = INDEX["Enterprise1" if HOSTS[user] in ("User1", "User2") else "Enterprise0"]
        way = [user, enterprise, tables.ENTERPRISE2, tables.OP_SERVER]
        through = [[Move(SCAN, host), Move(EXPLOIT, host), Move(ESCALATE, host)] for host in way]
        plan = [Move(SWEEP, tables.USER), *through[0], *through[1], Move(SWEEP, tables.ENTERPRISE), *through[2]]
        assert [move for move, _ in found] == [*plan, *through[3], Move(IMPACT, tables.OP_SERVER)]
    assert set(seen) == {"User1", "User2", "User3", "User4"}
    assert 120 < sum(seen.values()) < 200


def test_meander_scans_all_that_it_knows_before_it_attacks_and_ends_with_impact():
    game = EmbeddedGame("meander")
    for seed in range(20):
        found = [move for move, _ in moves(game, seed, 100)]
        assert found[0] == Move(SWEEP, tables.USER)
        assert {move.target for move in found[1:6]} == set(tables.SUBNETS[tables.USER])
        assert {move.kind for move in found[1:6]} == {SCAN}
        assert found[6] == Move(ESCALATE, INDEX["User0"])
        assert found[-1] == Move(IMPACT, tables.OP_SERVER)


def meander(held, last):
    """A Meander that has escalated these hosts besides its own, knows all, and has just played this."""
    agent, network = Meander(random.Random(0)), Network(random.Random(0))
    hosts = {INDEX[name] for name in held}
    everything = set(range(13))
    network.known_addresses, network.known_hosts = set(everything), hosts | {INDEX["User0"]}
    agent._scanned, agent._escalated = set(everything), set(network.known_hosts)
    agent._entered, agent._exploited = set(hosts), hosts | {last.target}
    agent._swept, agent._last = {0, 1, 2}, last
    return agent, network


SCORES = [
    ("Sleep", "sleep", 30, 0.0, 0.1),  # mean returns that were published, or measured with the original
    ("Sleep", "b_line", 30, -216.7, 4),
    ("Sleep", "b_line", 100, -1131.0, 12),
    ("Sleep", "meander", 30, -40.0, 8),
    ("Sleep", "meander", 100, -980.0, 25),
    ("random", "b_line", 100, -708.0, 60),
    ("random", "meander", 100, -525.0, 90),
]


@pytest.mark.parametrize(("policy", "agent", "steps", "score", "off"), SCORES)
def test_returns_are_those_of_the_original(policy, agent, steps, score, off):
    game, totals = EmbeddedGame(agent), []
    for seed in range(80):
        draws = random.Random(seed)
        game.reset(seed)
        totals.append(sum(game.step(draws.randrange(145) if policy == "random" else 0)[1] for _ in range(steps)))
    assert abs(np.mean(totals) - score) < off + 1.96 * np.std(totals) / math.sqrt(80)
