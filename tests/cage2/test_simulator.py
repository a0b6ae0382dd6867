"""What the embedded simulator knows of the second scenario, fact by fact."""

import random
from collections import Counter

import pytest

from ragen.cage2.layout import DECOYS, HOSTS, INDEX
from ragen.cage2.simulator import red, tables
from ragen.cage2.simulator.blue import Blue
from ragen.cage2.simulator.game import EmbeddedGame
from ragen.cage2.simulator.network import Network, Session
from ragen.cage2.simulator.red import ESCALATE, EXPLOIT, IMPACT, SCAN, SWEEP, Move

ANALYSE, REMOVE, RESTORE = 2, 15, 132
PORTS = {
    "Defender": {22, 53, 68},
    "Enterprise0": {22},
    "Enterprise1": {22, 135, 3389, 445, 139, 80, 443},
    "Enterprise2": {22, 135, 3389, 445, 139, 80, 443},
    "Op_Host0": {22},
    "Op_Host1": {22},
    "Op_Host2": {22},
    "Op_Server0": {22},
    "User0": {22, 21},
    "User1": {22, 21},
    "User2": {445, 139, 135, 3389},
    "User3": {80, 443, 25, 3389},
    "User4": {22, 80, 443, 25, 3390},
}
LINUX_WITH_ONLY_SSH = ("Defender", "Enterprise0", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")
DECOYS_THAT_FIT = {
    **{host: {"Apache", "HarakaSMPT", "Tomcat", "Vsftpd"} for host in LINUX_WITH_ONLY_SSH},
    **{host: {"Femitter"} for host in ("Enterprise1", "Enterprise2")},
    **{host: {"Apache", "Smss", "Svchost", "Tomcat"} for host in ("User0", "User1")},
    "User2": {"Apache", "Femitter", "SSHD", "Tomcat"},
    "User3": {"SSHD", "Vsftpd"},
    "User4": {"Vsftpd"},
}
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


def network(bugs="faithful", seed=0):
    """A network in which Red can reach everything."""
    made = Network(random.Random(seed), bugs == "fixed")
    made.sessions[INDEX["Enterprise0"]].append(Session(False, False))
    return made


def decoy(name, host):
    return 28 + 13 * DECOYS.index(name) + INDEX[host]


def only(monkeypatch, exploit):
    """Red chooses this exploit, whatever it knows."""
    monkeypatch.setattr(red, "_chosen", lambda *_: exploit)


def bits(blue, host):
    return blue.bits()[4 * INDEX[host] : 4 * INDEX[host] + 4]


class Low(random.Random):
    """Every draw is the lowest."""

    def random(self):
        return 0.0


class High(random.Random):
    """Every draw is the highest."""

    def random(self):
        return 1 - 2**-53


@pytest.mark.parametrize("host", HOSTS)
def test_a_scan_finds_what_listens_and_always_shows(host):
    game, blue = network(), Blue()
    assert red.play(game, Move(SCAN, INDEX[host])) == red.Outcome(True, found=True)
    assert game.scanned[INDEX[host]] == PORTS[host]
    blue.look(game)
    assert bits(blue, host) == [1, 0, 0, 0]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("exploit", tables.EXPLOITS, ids=lambda each: each.name)
def test_an_exploit_works_where_its_service_listens_and_gives_that_service_s_rights(monkeypatch, host, exploit):
    game = network()
    game.sessions[INDEX[host]] = []
    if tables.SUBNET[INDEX[host]] == tables.OPERATIONAL:
        game.sessions[INDEX["Enterprise0"]] = [Session(False, False)]
    red.play(game, Move(SCAN, INDEX[host]))
    only(monkeypatch, exploit)
    outcome = red.play(game, Move(EXPLOIT, INDEX[host]))
    given = GIVES[host].get(exploit.name)
    assert outcome.success == (given is not None)
    assert [each.is_privileged for each in game.sessions[INDEX[host]]] == ([] if given is None else [given])


def test_a_host_that_was_not_scanned_is_not_exploited():
    game = network()
    assert red.play(game, Move(EXPLOIT, INDEX["User1"])).success is False


def test_the_weightiest_exploit_is_chosen_three_times_in_four_and_else_any_other():
    game, options = network(), tables.options(frozenset(PORTS["User4"]))
    assert [each.name for each in options] == [
        "HarakaRCE",
        "SQLInjection",
        "HTTPSRFI",
        "HTTPRFI",
        "SSHBruteForce",
    ]
    count = Counter(red._chosen(game, options).name for _ in range(20000))
    assert count["HarakaRCE"] / 20000 == pytest.approx(0.75, abs=0.015)
    for other in options[1:]:
        assert count[other.name] / 20000 == pytest.approx(0.25 / 4, abs=0.01)


def test_a_database_is_only_attacked_beside_a_web_server():
    assert [each.name for each in tables.options(frozenset({3390}))] == []
    assert [each.name for each in tables.options(frozenset({3390, 443}))] == ["SQLInjection", "HTTPSRFI"]


def test_operational_hosts_are_out_of_reach_without_an_enterprise_server():
    game = Network(random.Random(0), False)
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


def test_enterprise2_tells_the_address_of_the_operational_server_and_not_its_subnet():
    game = network()
    game.sessions[INDEX["Enterprise2"]].append(Session(False, False))
    red.play(game, Move(ESCALATE, INDEX["Enterprise2"]))
    assert INDEX["Op_Server0"] in game.known_addresses
    assert game.known_subnets == {tables.USER, tables.ENTERPRISE}


def test_an_escalation_needs_a_session():
    game = network()
    assert red.play(game, Move(ESCALATE, INDEX["User1"])).success is False
    assert not game.has_malware[INDEX["User1"]]


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


def impacted(bugs="faithful"):
    """A game in which the operational service has been stopped."""
    game = EmbeddedGame("sleep", bugs)
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


@pytest.mark.parametrize(("bugs", "cost"), [("faithful", -1.0), ("fixed", -11.0)])
def test_after_a_restore_an_impact_costs_nothing_more_unless_that_is_fixed(bugs, cost):
    game, server = impacted(bugs), INDEX["Op_Server0"]
    game.step(RESTORE + server)
    game.network.sessions[server].append(Session(True, False))
    assert red.play(game.network, Move(IMPACT, server)).success
    assert game.step(0)[1] == cost


def test_a_restore_costs_one_even_of_a_clean_host():
    game = EmbeddedGame("sleep")
    assert game.step(RESTORE + INDEX["Enterprise1"])[1] == -1.0


def test_a_restore_ends_all_sessions_and_decoys_and_the_foothold_stays():
    game = EmbeddedGame("sleep")
    net, user0, user1 = game.network, INDEX["User0"], INDEX["User1"]
    for host in (user0, user1):
        net.sessions[host].append(Session(True, True))
        net.has_malware[host] = True
    game.step(decoy("Apache", "User1"))
    game.step(RESTORE + user0)
    game.step(RESTORE + user1)
    assert [each.is_foothold for each in net.sessions[user0]] == [True]
    assert net.sessions[user1] == [] and not any(net.has_malware)
    assert {service.port for service in net.services[user1]} == PORTS["User1"]


@pytest.mark.parametrize(("rng", "shown"), [(Low, [1, 1, 0, 1]), (High, [1, 0, 0, 0])], ids=["95 %", "5 %"])
def test_a_new_session_is_noticed_19_times_in_20(monkeypatch, rng, shown):
    assert tables.DETECTED == 0.95
    game, blue = network(), Blue()
    red.play(game, Move(SCAN, INDEX["User2"]))
    blue.look(game)
    only(monkeypatch, tables.SMB)
    game.rng = rng(0)
    assert red.play(game, Move(EXPLOIT, INDEX["User2"])).success
    blue.look(game)
    assert bits(blue, "User2") == shown


@pytest.mark.parametrize("host", ["Op_Host1", "Defender"])
def test_guessing_passwords_always_shows_even_where_it_fails(monkeypatch, host):
    game, blue = network(), Blue()
    game.rng = High(0)
    game.scanned[INDEX[host]] = frozenset({22})
    red.play(game, Move(EXPLOIT, INDEX[host]))
    blue.look(game)
    assert bits(blue, host) == [1, 1, 0, 1]
    assert bool(game.sessions[INDEX[host]]) == (host != "Defender")


def test_an_exploit_that_finds_nothing_shows_nothing(monkeypatch):
    game, blue = network(), Blue()
    for host, exploit in (("Enterprise1", tables.SMB), ("User3", tables.RDP)):
        red.play(game, Move(SCAN, INDEX[host]))
        blue.look(game)
        only(monkeypatch, exploit)
        assert red.play(game, Move(EXPLOIT, INDEX[host])).success is False
        blue.look(game)
        assert bits(blue, host) == [0, 0, 0, 0]


def test_an_analysis_finds_files_of_exploits_and_of_escalations_and_none_of_ssh():
    game, blue = network(), Blue()
    for host, port in (("User1", 21), ("Op_Host0", 22)):
        game.scanned[INDEX[host]] = frozenset({port})
        red.play(game, Move(EXPLOIT, INDEX[host]))
        blue.look(game)
        blue.act(game, ANALYSE + INDEX[host])
        blue.look(game)
    assert (bits(blue, "User1"), bits(blue, "Op_Host0")) == ([0, 0, 1, 1], [0, 0, 0, 1])
    red.play(game, Move(ESCALATE, INDEX["Op_Host0"]))
    blue.act(game, ANALYSE + INDEX["Op_Host0"])
    blue.look(game)
    assert bits(blue, "Op_Host0") == [0, 0, 1, 1]


REMOVED = [
    ("User3", tables.HTTP, True),
    ("User2", tables.RDP, True),
    ("User1", tables.FTP, False),
    ("User2", tables.SMB, False),
    ("User4", tables.MAIL, False),
    ("Op_Host0", tables.SSH, False),
]


@pytest.mark.parametrize(("host", "exploit", "goes"), REMOVED, ids=lambda each: getattr(each, "name", None))
def test_remove_ends_what_was_noticed_and_has_no_privileges(monkeypatch, host, exploit, goes):
    game, blue = network(), Blue()
    game.rng = Low(0)
    red.play(game, Move(SCAN, INDEX[host]))
    blue.look(game)
    only(monkeypatch, exploit)
    assert red.play(game, Move(EXPLOIT, INDEX[host])).success
    blue.look(game)
    blue.act(game, REMOVE + INDEX[host])
    blue.look(game)
    assert (not game.sessions[INDEX[host]]) == goes
    assert bits(blue, host) == [0, 0, 1, 0]  # "unknown", whether it went or not


def test_remove_leaves_what_was_not_noticed_and_what_was_escalated(monkeypatch):
    game, blue = network(), Blue()
    only(monkeypatch, tables.HTTP)
    game.rng = High(0)
    red.play(game, Move(SCAN, INDEX["User3"]))
    red.play(game, Move(EXPLOIT, INDEX["User3"]))
    blue.act(game, REMOVE + INDEX["User3"])
    assert len(game.sessions[INDEX["User3"]]) == 1
    red.play(game, Move(ESCALATE, INDEX["User3"]))
    game.sessions[INDEX["User3"]][0].is_known = True
    blue.act(game, REMOVE + INDEX["User3"])
    assert game.access(INDEX["User3"]) == 2
    blue.look(game)
    blue.act(game, REMOVE + INDEX["User4"])  # a host that is thought well of stays so
    assert bits(blue, "User4") == [0, 0, 0, 0]


def test_remove_ends_ssh_sessions_where_that_is_fixed():
    game, blue = network("fixed"), Blue()
    game.scanned[INDEX["Op_Host0"]] = frozenset({22})
    assert red.play(game, Move(EXPLOIT, INDEX["Op_Host0"])).success
    blue.act(game, REMOVE + INDEX["Op_Host0"])
    assert game.sessions[INDEX["Op_Host0"]] == []


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", DECOYS)
def test_decoys_stand_where_the_port_is_free_and_the_system_fits(host, name):
    game, blue = network(), Blue()
    blue.act(game, decoy(name, host))
    assert (len(game.services[INDEX[host]]) > len(tables.SERVICES[INDEX[host]])) == (name in DECOYS_THAT_FIT[host])
    blue.look(game)
    assert bits(blue, host) == [0, 0, 0, 0]


def test_an_exploit_of_a_decoy_fails_and_shows_as_a_scan():
    game, blue = network(), Blue()
    game.rng = Low(0)
    blue.act(game, decoy("Tomcat", "Enterprise0"))
    blue.look(game)
    red.play(game, Move(SCAN, INDEX["Enterprise0"]))
    blue.look(game)
    before = len(game.sessions[INDEX["Enterprise0"]])
    assert red.play(game, Move(EXPLOIT, INDEX["Enterprise0"])).success is False
    assert len(game.sessions[INDEX["Enterprise0"]]) == before
    blue.look(game)
    assert bits(blue, "Enterprise0") == [1, 0, 0, 0]


def test_a_decoy_hides_a_scan_of_the_same_step_and_makes_an_exploit_of_one_of_its_own():
    game, blue = network(), Blue()
    game.rng = Low(0)
    blue.act(game, decoy("Tomcat", "Enterprise0"))
    red.play(game, Move(SCAN, INDEX["Enterprise0"]))
    blue.look(game)
    assert bits(blue, "Enterprise0") == [0, 0, 0, 0]
    blue.act(game, decoy("Apache", "Enterprise0"))
    red.play(game, Move(EXPLOIT, INDEX["Enterprise0"]))
    blue.look(game)
    assert bits(blue, "Enterprise0") == [1, 1, 0, 1]


def test_a_vsftpd_decoy_can_stand_behind_a_real_web_server_unless_that_is_fixed(monkeypatch):
    only(monkeypatch, tables.HTTP)
    for bugs in ("faithful", "fixed"):
        game, blue = network(bugs), Blue()
        blue.act(game, decoy("Vsftpd", "User4"))
        assert (len(game.services[INDEX["User4"]]) > len(tables.SERVICES[INDEX["User4"]])) == (bugs == "faithful")
        red.play(game, Move(SCAN, INDEX["User4"]))
        assert red.play(game, Move(EXPLOIT, INDEX["User4"])).success


def test_the_database_of_user3_can_be_attacked_where_that_is_fixed():
    game = network("fixed")
    red.play(game, Move(SCAN, INDEX["User3"]))
    assert tables.SQL in tables.options(game.scanned[INDEX["User3"]])


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
