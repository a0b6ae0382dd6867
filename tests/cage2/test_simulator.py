"""What the embedded simulator knows of the second scenario, fact by fact: the network, Red, and what it costs."""

import random

import pytest

from ragen.cage2.layout import HOSTS, INDEX
from ragen.cage2.simulator import red, tables
from ragen.cage2.simulator.game import EmbeddedGame
from ragen.cage2.simulator.network import Blue, Network, Session
from ragen.cage2.simulator.red import ESCALATE, EXPLOIT, IMPACT, SCAN, SWEEP, Move
from support.cage2_network import LINUX_WITH_ONLY_SSH, PORTS, REMOVE, RESTORE, bits, network, only

SSH, WEB = {"SSHBruteForce": False}, {"HTTPSRFI": False, "HTTPRFI": False}
GIVES = {  # which exploits give a session, and whether it is privileged at once
    **dict.fromkeys(LINUX_WITH_ONLY_SSH, SSH),
    "Defender": {},
    **{host: SSH | WEB | {"BlueKeep": True} for host in ("Enterprise1", "Enterprise2")},
    **{host: SSH | {"FTPDirectoryTraversal": True} for host in ("User0", "User1")},
    "User2": {"EternalBlue": True, "BlueKeep": False},
    "User3": WEB | {"HarakaRCE": True},
    "User4": SSH | WEB | {"HarakaRCE": True, "SQLInjection": True},
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_scan_finds_what_listens_and_always_shows(host):
    game, blue = network(), Blue()
    assert red.play(game, Move(SCAN, INDEX[host])) == red.Outcome(True, found=True)
    assert game.scanned[INDEX[host]] == PORTS[host]
    blue.look(game)
    assert bits(blue, host) == [1, 0, 0, 0]


@pytest.mark.parametrize("exploit", tables.EXPLOITS, ids=lambda each: each.name)
def test_an_exploit_works_where_its_service_listens_and_gives_that_service_s_rights(monkeypatch, exploit):
    only(monkeypatch, exploit)
    for host in HOSTS:
        game = network()
        game.sessions[INDEX[host]] = []
        if tables.SUBNET[INDEX[host]] == tables.OPERATIONAL:
            game.sessions[INDEX["Enterprise0"]] = [Session(False, False)]
        red.play(game, Move(SCAN, INDEX[host]))
        outcome = red.play(game, Move(EXPLOIT, INDEX[host]))
        given = GIVES[host].get(exploit.name)
        assert outcome.success == (given is not None), host
        assert [each.is_privileged for each in game.sessions[INDEX[host]]] == ([] if given is None else [given]), host


def test_operational_hosts_are_out_of_reach_without_an_enterprise_server():
    game = Network(random.Random(0))
    server = INDEX["Op_Server0"]
    assert red.play(game, Move(SWEEP, tables.OPERATIONAL)).success is False
    assert red.play(game, Move(SCAN, server)) == red.Outcome(True, found=False)  # told to have worked, as in CAGE 2
    assert game.scanned[server] is None
    game.sessions[INDEX["Defender"]].append(Session(True, False))  # in the subnet, and no such server
    assert not game.is_reachable(server)
    for host in ("Enterprise0", "Enterprise1", "Enterprise2"):
        game.sessions[INDEX[host]].append(Session(False, False))
        assert game.is_reachable(server)
        assert red.play(game, Move(SWEEP, tables.OPERATIONAL)).success
        game.sessions[INDEX[host]].clear()


@pytest.mark.parametrize(
    ("host", "next_host"),
    {"User1": "Enterprise1", "User2": "Enterprise1", "User3": "Enterprise0", "User4": "Enterprise0"}.items(),
)
def test_an_escalation_tells_where_to_go_next(host, next_host):
    game = network()
    game.sessions[INDEX[host]].append(Session(False, False))
    assert red.play(game, Move(ESCALATE, INDEX[host])).success
    assert game.access(INDEX[host]) == 2
    assert game.known_addresses == {INDEX["User0"], INDEX[next_host]}
    assert game.known_subnets == {tables.USER}


def test_privileged_sessions_cost_by_host_and_user_sessions_nothing():
    tenths = {name: tables.PENALTY[INDEX[name]] for name in HOSTS}
    expected = dict.fromkeys(HOSTS, 1) | {"User0": 0, "Op_Server0": 10}
    expected |= dict.fromkeys(["Enterprise0", "Enterprise1", "Enterprise2"], 10)
    assert tenths == expected
    game = EmbeddedGame("sleep")
    for host in HOSTS:
        game.network.sessions[INDEX[host]].append(Session(False, False))
    assert game.step(0)[1] == 0
    for host in HOSTS:
        game.network.sessions[INDEX[host]][-1].is_privileged = True
        game.network.sessions[INDEX[host]].append(Session(True, False))  # a second one costs nothing more
    assert game.step(0)[1] == -(8 * 0.1 + 4 * 1)


def impacted():
    """A game in which the operational service has been stopped."""
    game = EmbeddedGame("sleep")
    server = INDEX["Op_Server0"]
    assert red.play(game.network, Move(IMPACT, server)).success is False
    game.network.sessions[server].append(Session(False, False))
    assert red.play(game.network, Move(IMPACT, server)).success is False  # nothing known of the service yet
    red.play(game.network, Move(ESCALATE, server))
    assert red.play(game.network, Move(IMPACT, server)).success
    return game


def test_a_stopped_service_costs_ten_until_its_host_is_restored():
    game, server = impacted(), INDEX["Op_Server0"]
    assert [game.step(action)[1] for action in (0, 0, REMOVE + server)] == [-11.0] * 3
    game.network.sessions[server].clear()
    assert game.step(0)[1] == -10.0
    assert [game.step(RESTORE + server)[1], game.step(0)[1]] == [-1.0, 0.0]


def test_blue_acts_before_red():
    """The step in which Red escalates: whoever restores the host just then is in time."""
    game = EmbeddedGame("b_line")
    for seed in range(20):
        game.reset(seed)
        while game.last_red[0].kind != EXPLOIT or not game.last_red[1]:
            game.step(0)
        host = game.last_red[0].target
        game.step(RESTORE + host)
        assert game.last_red == (Move(ESCALATE, host), False)
