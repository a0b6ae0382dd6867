"""The two runs of ``docs/meta_rl.md``, as configured: minutes each."""

import pytest

from ragen.meta.settings import load_settings
from support.later import meta

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(("name", "is_learnt"), [("bandit", lambda v: v < 15), ("point_robot", lambda v: v > 43)])
def test_a_configuration_is_learnt(tmp_path, name, is_learnt):
    _, history = meta.train(load_settings(name, [f"output_dir={tmp_path}"]))
    assert is_learnt(history[-1]["eval"])
