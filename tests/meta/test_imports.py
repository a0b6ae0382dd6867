"""Nothing is imported before it is needed: not torch by workers, nothing of this by ``import ragen``."""

import pytest

import ragen.meta
from support.import_lines import imported_needlessly

LINES = [
    ("import ragen", "ragen.meta gymnasium torch numpy"),
    ("import ragen.meta", "gymnasium torch numpy omegaconf"),
    ("import ragen.meta.game, ragen.meta.making, ragen.meta.tasks", "torch omegaconf matplotlib mujoco hydra"),
    ("from ragen.meta import make_parallel_env", "torch omegaconf"),
]


def test_what_is_imported_is_what_is_needed():
    found = imported_needlessly(LINES)
    assert found == ["[]"] * len(LINES), found


@pytest.mark.parametrize("name", ragen.meta.__all__)
def test_every_name_is_there(name):
    assert getattr(ragen.meta, name) is not None


def test_another_name_is_not():
    with pytest.raises(AttributeError, match="nothing"):
        ragen.meta.nothing  # noqa: B018
