"""Numbers of actions and bits, as the challenge's wrapper has them."""

import pytest

from ragen.cage2 import layout
from ragen.cage2.layout import HOSTS, WORKFLOW_TYPES, action_name, compromised_types, fix_target

FIRST_OF_A_BLOCK = {
    2: "Analyse Defender",
    15: "Remove Defender",
    28: "DecoyApache Defender",
    41: "DecoyFemitter Defender",
    54: "DecoyHarakaSMPT Defender",
    67: "DecoySmss Defender",
    80: "DecoySSHD Defender",
    93: "DecoySvchost Defender",
    106: "DecoyTomcat Defender",
    119: "DecoyVsftpd Defender",
    132: "Restore Defender",
    144: "Restore User4",
}


@pytest.mark.parametrize(("action", "name"), FIRST_OF_A_BLOCK.items())
def test_actions_are_blocks_of_hosts(action, name):
    assert action_name(action) == name


def test_there_are_13_hosts_145_actions_and_52_bits():
    assert (len(HOSTS), layout.N_ACTIONS, layout.N_BITS) == (13, 145, 52)
    assert len({action_name(action) for action in range(145)}) == 145


def test_fixes_are_remove_and_restore():
    fixes = {action: fix_target(action) for action in range(145) if fix_target(action) is not None}
    assert list(fixes) == [*range(15, 28), *range(132, 145)]
    kinds = ["defender", *["enterprise"] * 3, *["op_host"] * 3, "op_server", *["user"] * 5]
    assert [WORKFLOW_TYPES[kind] for kind in fixes.values()] == kinds * 2


def test_the_host_that_red_never_loses_does_not_count():
    assert compromised_types([HOSTS.index("User0")]) == (False,) * 5
    assert compromised_types([HOSTS.index("User0"), HOSTS.index("User3")]) == (False, False, False, False, True)
    assert compromised_types([0, 2, 5, 7]) == (True, True, True, True, False)
