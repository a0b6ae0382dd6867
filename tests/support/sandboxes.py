"""What tests of the sandbox share: whether there is one here, and a problem whose answers cannot be guessed."""

from __future__ import annotations

from functools import cache

import pytest

from ragen.env.code.problems import Case, Problem
from ragen.env.sandbox.host import PROGRAMS, SHELL, Profile, Sandbox
from ragen.errors import SandboxError


@cache
def why_not(profile: Profile) -> str:
    """Why there is no sandbox of this kind here; "" where there is."""
    try:
        Sandbox(profile).close()
    except SandboxError as error:
        return str(error)
    return ""


def needs(profile: Profile) -> pytest.MarkDecorator:
    """Skip what needs a sandbox of this kind where there is none, and say why."""
    return pytest.mark.skipif(bool(why_not(profile)), reason=why_not(profile) or "there is one")


needs_programs, needs_shell = needs(PROGRAMS), needs(SHELL)

SECRET = "SECRET-b81f"
"""What no program may see or say."""

UNGUESSABLE = Problem("", "f", tuple(Case(f"{SECRET}-{number}", (number,)) for number in range(3)))
RIGHT = f"def f(x): return '{SECRET}-' + str(x)"
