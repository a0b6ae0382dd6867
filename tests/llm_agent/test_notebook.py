"""What a notebook draws of a manager's trajectories."""

import pytest

from ragen.errors import InputError, StateError
from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config

EVIL = "</div><script>alert(1)</script><img src=x onerror=alert(1)>"


def manager_of(count=2):
    tags = {"<b>Walk</b>": {"env_type": "support.faulty_envs:Walk"}}
    return EnvStateManager(config(tags, [("<b>Walk</b>", count)], use_multiprocessing=False))


def said(env_id):
    return {"env_id": env_id, "actions": ["Up"], "llm_response": EVIL, "llm_raw_response": EVIL}


def test_a_trajectory_is_drawn_with_what_was_said_as_text():
    with manager_of() as manager:
        with pytest.raises(StateError, match=r"call reset\(\) first"):
            manager.show(0)
        manager.reset()
        manager.step([said(1)])
        view = manager.show(1)
        html = view._repr_html_()
        with pytest.raises(InputError, match="no environment 7 to show; there are 0 to 1"):
            manager.show(7)
    assert "<script" not in html and "<img" not in html and "<b>Walk" not in html
    assert "&lt;script&gt;alert(1)" in html and "&lt;b&gt;Walk" in html
    assert "Turn 1" in html and "<button" not in html
    assert repr(view).startswith("<trajectory <b>Walk</b>, env 1, group ") and "1 turn" in repr(view)


def test_a_rollout_is_drawn_with_a_line_for_each_trajectory_and_without_ipython():
    with manager_of() as manager:
        manager.reset()
        manager.step([said(0)])
        view = manager.show()
    html = view._repr_html_()
    assert html.count("<details>") == 2 and "<script" not in html
    assert "</span> <span>env 1</span> <span>group " in html  # a heading is words, also where no style is applied
    assert len(repr(view).splitlines()) == 4 and "running" in repr(view)
