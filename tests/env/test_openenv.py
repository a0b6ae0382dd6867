"""Environments on OpenEnv servers: what is played, and what is retried."""

import json
import random

import pytest

pytest.importorskip("websockets")

from ragen.env.openenv.config import OpenEnvEnvConfig
from ragen.env.openenv.env import REFUSAL, OpenEnvEnv, shown
from ragen.env.openenv.wire import Actions
from ragen.errors import ConfigError, OpenEnvError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.serve.sessions import ServeSettings, Sessions
from support import openenv_servers as servers
from support.openenv_servers import ours, server

LAKE = {"env_type": "frozen_lake", "max_actions_per_traj": 10}


@pytest.fixture
def played():
    """A function that makes an environment of an address, and closes it at the end."""
    made = []

    def make(url, **fields):
        made.append(OpenEnvEnv(OpenEnvEnvConfig(url=url, timeout=20, **fields)))
        return made[-1]

    yield make
    for env in made:
        env.close()


def sessions():
    managed = {"use_multiprocessing": False, "crash_report_dir": None}
    managed["train"] = managed["val"] = {
        "env_groups": 1,
        "group_size": 1,
        "env_configs": {"tags": ["Lake"], "n_groups": [1]},
    }
    return Sessions(ServeSettings({"es_manager": managed, "custom_envs": {"Lake": LAKE}}, ("Lake",)))


def episode(env, seed, actions):
    return [env.reset(seed), *(env.step(action) for action in actions)]


def test_an_episode_is_that_of_the_environment_on_the_server(played):
    with server() as url:
        env, there = played(url, success_reward=0.0), servers.Honest()
        assert json.loads(env.reset(5)) == there.reset(5)[0]
        for move in range(6):
            observation, reward, done, info = env.step(str(move % 4))
            expected = there.step(move % 4)
            assert (json.loads(observation), reward, done) == expected
            assert env.render() == observation and info["action_is_valid"] is True
        assert info["success"] is True


@pytest.mark.parametrize("text", ["north", "1.5", "{}", "[1]", "true", ""])
def test_a_text_that_does_not_fit_the_schema_is_not_sent(played, text):
    with server() as url:
        env = played(url)
        before = env.reset(5)
        observation, reward, done, info = env.step(text)
        assert (observation, reward, done) == (f"{REFUSAL}\n{before}", 0.0, False)
        assert info["action_is_valid"] is False
        assert env.step("1")[0] == episode(played(url), 5, ["1"])[-1][0]


def test_what_the_server_refuses_is_an_invalid_action(played):
    action = {"properties": {"move": {}, "by": {}}, "required": ["move", "by"]}
    with server(action=action) as url:
        env = played(url)
        before = env.reset(5)
        assert env.step('{"move": 1}')[0] == f"{REFUSAL}\n{before}"
        assert env.step('{"move": 1, "by": 2}')[3]["action_is_valid"] is True


def test_a_reset_is_sent_again_after_a_cut_and_a_step_is_not(played):
    with server(cuts={0, 3}) as url:
        env = played(url)
        first = env.reset(5)
        env.step("1")
        with pytest.raises(OpenEnvError, match="lost during a step") as lost:
            env.step("2")
        assert lost.value.code == "LOST"
        with pytest.raises(OpenEnvError, match="reset the environment"):
            env.step("2")
        assert env.reset(5) == first


def test_a_step_is_sent_again_where_it_cannot_be_played_twice(played):
    held = sessions()
    with ours(held) as url:
        plain = episode(played(url), 5, ["Right", "Down", "Right"])
        env = played(url)
        cut = [env.reset(5)]
        for action in ("Right", "Down", "Right"):
            env._session._socket.socket.shutdown(2)
            cut.append(env.step(action))
        assert cut == plain
        assert len(held) == 2


def test_closing_ends_a_session_that_is_kept(played):
    held = sessions()
    with ours(held) as url:
        env = played(url)
        env.reset(1)
        assert len(held) == 1
        env.close()
        env.close()
        assert len(held) == 0


def test_a_server_that_is_full_or_gone_is_an_error_with_its_code(played):
    with server(most=1) as url:
        first, second = played(url), played(url)
        first.reset(1)
        with pytest.raises(OpenEnvError) as full:
            second.reset(1)
        assert full.value.code == "CAPACITY_REACHED"
    with pytest.raises(OpenEnvError, match="no server answers at"):
        played(f"{url}/gone").reset(1)


def test_a_field_of_an_observation_is_shown():
    assert shown({"text": "a", "b": 1}) == "a"
    assert shown({"prompt": "a", "metadata": {"step": 1}}) == "a"
    assert shown({"b": 1, "a": "x"}) == '{"a": "x", "b": 1}' == shown({"a": "x", "b": 1})
    assert shown({"b": [1], "a": "x"}, "b") == "[1]"
    with pytest.raises(ConfigError, match="observation_field='c'"):
        shown({"a": 1}, "c")


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 5}, lambda value: value in range(3, 6)),
        ({"type": "string", "enum": ["a", "b"]}, lambda value: value in ("a", "b")),
        ({"$ref": "#/$defs/Dir"}, lambda value: value in ("N", "S")),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, lambda value: isinstance(value, bool)),
        ({"type": "array", "items": {"type": "number"}}, lambda value: isinstance(value[0], float)),
        ({"type": "object", "required": ["x"], "properties": {"x": {"const": 4}}}, lambda value: value == {"x": 4}),
        ({"type": "string", "examples": ["Up"]}, lambda value: value == "Up"),
    ],
)
def test_examples_of_actions_fit_the_schema(schema, fits):
    whole = {"properties": {"move": schema}, "required": ["move"], "$defs": {"Dir": {"enum": ["N", "S"]}}}
    actions, rng = Actions(whole), random.Random(0)
    for _ in range(20):
        assert fits(actions.of_text(actions.example(rng))["move"])


def test_sessions_of_a_worker_wait_at_the_same_time_and_are_equal_to_sequential():
    def rollout(url, lanes):
        part = {"env_groups": 6, "group_size": 1, "env_configs": {"tags": ["Far"], "n_groups": [6]}}
        managed = {"use_multiprocessing": lanes, "max_workers": 1, "crash_report_dir": None, "train": part}
        far = {"env_type": "openenv", "max_actions_per_traj": 4, "env_config": {"url": url}}
        manager = EnvStateManager({"es_manager": managed, "custom_envs": {"Far": far}}, "train")
        try:
            manager.reset(seed=3)
            for turn in range(3):
                said = {"llm_response": "", "llm_raw_response": "", "actions": [str(turn)]}
                manager.step([{"env_id": env_id, **said} for env_id in range(6)])
            return repr(manager.get_rollout_states())
        finally:
            manager.close()

    with server() as url:
        assert rollout(url, True) == rollout(url, False)
