"""The embedded simulator: its episodes by seed, its returns beside the original's, and the quirks that are kept."""

import hashlib
import math
import random

import numpy as np
import pytest

from ragen.cage2.layout import DECOYS, HOSTS, INDEX
from ragen.cage2.simulator import game as simulator
from ragen.cage2.simulator import tables
from ragen.cage2.simulator.game import Blue, EmbeddedGame, Network, Session

EPISODES = {"b_line": "c25f3fb1990f93b9", "meander": "139ce474b27a0103", "sleep": "ba75aa42cca0f23f"}


@pytest.mark.parametrize("agent", EPISODES)
def test_a_seed_and_actions_give_the_same_episodes_in_every_version(agent):
    game, found = EmbeddedGame(agent), hashlib.sha256()
    for seed in range(40):
        draws = random.Random(seed)
        game.reset(seed)
        for _ in range(60):
            action = draws.randrange(145) if draws.random() < 0.3 else 0
            found.update(repr((game.step(action), game.access_levels())).encode())
    assert found.hexdigest().startswith(EPISODES[agent])


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


LINUX_WITH_ONLY_SSH = ("Defender", "Enterprise0", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")
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


def attacked(monkeypatch, host, exploit):
    """A network in which Red has just tried an exploit, and what came of it."""
    monkeypatch.setattr(simulator, "_chosen", lambda *_: exploit)
    network = Network(random.Random(0))
    network.sessions[INDEX[host]] = []
    network.sessions[INDEX["Enterprise1" if host == "Enterprise0" else "Enterprise0"]] = [Session(False, False)]
    simulator.scan(network, INDEX[host])
    return network, simulator.exploit(network, INDEX[host]).success


@pytest.mark.parametrize("exploit", tables.EXPLOITS, ids=lambda each: each.name)
def test_an_exploit_works_where_its_service_listens_and_gives_that_service_s_rights(monkeypatch, exploit):
    for host in HOSTS:
        network, success = attacked(monkeypatch, host, exploit)
        rights = [each.is_privileged for each in network.sessions[INDEX[host]]]
        given = GIVES[host].get(exploit.name)
        assert (success, rights) == ((False, []) if given is None else (True, [given])), host


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
    network, success = attacked(monkeypatch, host, exploit)
    blue = Blue()
    blue.look(network)
    blue.act(network, 15 + INDEX[host])
    assert success and (not network.sessions[INDEX[host]]) == goes


DECOYS_THAT_FIT = {
    **{host: {"Apache", "HarakaSMPT", "Tomcat", "Vsftpd"} for host in LINUX_WITH_ONLY_SSH},
    **{host: {"Femitter"} for host in ("Enterprise1", "Enterprise2")},
    **{host: {"Apache", "Smss", "Svchost", "Tomcat"} for host in ("User0", "User1")},
    "User2": {"Apache", "Femitter", "SSHD", "Tomcat"},
    "User3": {"SSHD", "Vsftpd"},
    "User4": {"Vsftpd"},
}


@pytest.mark.parametrize("host", HOSTS)
def test_decoys_stand_where_the_port_is_free_and_the_system_fits(host):
    for block, name in enumerate(DECOYS):
        network = Network(random.Random(0))
        Blue().act(network, 28 + 13 * block + INDEX[host])
        stands = len(network.services[INDEX[host]]) > len(tables.SERVICES[INDEX[host]])
        assert stands == (name in DECOYS_THAT_FIT[host]), name


def test_after_a_restore_of_its_host_the_service_cannot_be_stopped_again():
    game = EmbeddedGame("b_line")
    game.reset(1)
    costs = [game.step(0)[1] for _ in range(40)]
    restored, *after = [game.step(132 + INDEX["Op_Server0"])[1], *(game.step(0)[1] for _ in range(60))]
    assert min(costs) <= -10 < min(restored, *after)
