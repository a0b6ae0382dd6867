"""What Blue does and sees in the embedded simulator, fact by fact: restores, removals, decoys, and what shows."""

import pytest

from ragen.cage2.layout import DECOYS, HOSTS, INDEX
from ragen.cage2.simulator import red, tables
from ragen.cage2.simulator.game import EmbeddedGame
from ragen.cage2.simulator.network import Blue, Session
from ragen.cage2.simulator.red import ESCALATE, EXPLOIT, SCAN, Move
from support.cage2_network import (
    ANALYSE,
    LINUX_WITH_ONLY_SSH,
    PORTS,
    REMOVE,
    RESTORE,
    High,
    Low,
    bits,
    decoy,
    network,
    only,
)

DECOYS_THAT_FIT = {
    **{host: {"Apache", "HarakaSMPT", "Tomcat", "Vsftpd"} for host in LINUX_WITH_ONLY_SSH},
    **{host: {"Femitter"} for host in ("Enterprise1", "Enterprise2")},
    **{host: {"Apache", "Smss", "Svchost", "Tomcat"} for host in ("User0", "User1")},
    "User2": {"Apache", "Femitter", "SSHD", "Tomcat"},
    "User3": {"SSHD", "Vsftpd"},
    "User4": {"Vsftpd"},
}


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


@pytest.mark.parametrize("host", HOSTS)
def test_decoys_stand_where_the_port_is_free_and_the_system_fits(host):
    for name in DECOYS:
        game, blue = network(), Blue()
        blue.act(game, decoy(name, host))
        stands = len(game.services[INDEX[host]]) > len(tables.SERVICES[INDEX[host]])
        assert stands == (name in DECOYS_THAT_FIT[host]), name
        blue.look(game)
        assert bits(blue, host) == [0, 0, 0, 0], name


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
