"""The scripted backend: it plays without a model, and errs as often as it is told to."""

import pytest

from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Backend, Request, Sampling, create_backend
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.tokenizer import LightTokenizer
from support.configurations import composed

THOUGHTFUL = ["actor.scripted.malformed=0", "actor.scripted.random=0"]


def config_of(*tags, groups=6, overrides=()):
    """The base configuration with these tags, one environment per group, all in this process."""
    section = "es_manager.val"
    return composed(
        "base",
        [
            f"{section}.env_configs.tags=[{','.join(tags)}]",
            f"{section}.env_configs.n_groups={[groups] * len(tags)}",
            f"{section}.env_groups={groups * len(tags)}",
            "es_manager.use_multiprocessing=false",
            *overrides,
        ],
    )


class Recorder(Backend):
    """The scripted backend, which keeps what it is asked."""

    def __init__(self, config):
        self.backend, self.requests = create_backend(config), []

    def generate(self, requests, sampling):
        self.requests += requests
        return self.backend.generate(requests, sampling)


def played(config):
    """The final states of a validation rollout and the requests that led there."""
    backend = Recorder(config)
    with LLMAgentProxy(config, backend, LightTokenizer()) as proxy:
        return proxy.play({}, val=True), backend.requests


@pytest.mark.parametrize(
    ("tag", "turns", "least"),
    [
        ("Bandit", 1, 1.0),
        ("BanditTest", 1, 1.0),
        ("Countdown", 1, 1.0),
        ("SimpleSokoban", 4, 1.0),
        ("LargerSokoban", 4, 0.8),
        ("SokobanDifferentGridVocab", 4, 1.0),
        ("CoordSokoban", 4, 1.0),
        ("FrozenLakeDet", 4, 1.0),
        ("FrozenLake8Det", 5, 1.0),
        ("CoordFrozenLake", 5, 0.3),
        ("SearchQA", 6, 0.8),
    ],
)
def test_a_game_of_the_demo_is_solved(tag, turns, least):
    turns = [f"agent_proxy.max_turn={turns}", f"agent_proxy.max_actions_per_turn={1 if tag == 'SearchQA' else 5}"]
    config = config_of(tag, overrides=[*THOUGHTFUL, *turns])
    states, _ = played(config)
    assert sum(state["metrics"][f"{tag}/success"] for state in states) / len(states) >= least
    assert all(state["penalty"] == 0 for state in states)


def test_replies_do_not_depend_on_order_or_size_of_batches():
    config = config_of("SimpleSokoban", "Countdown", "FrozenLake", overrides=["actor.scripted.random=0.4"])
    _, requests = played(config)
    together = [reply.text for reply in create_backend(config).generate(requests, Sampling())]
    backwards = [reply.text for reply in create_backend(config).generate(requests[::-1], Sampling())][::-1]
    alone = [create_backend(config).generate([request], Sampling())[0].text for request in requests]
    assert together == backwards == alone


def test_about_the_configured_share_of_replies_is_malformed_and_those_give_no_actions():
    malformed = ["actor.scripted.malformed=0.3", "actor.scripted.random=0", "agent_proxy.max_turn=1"]
    states, _ = played(config_of("SimpleSokoban", groups=200, overrides=malformed))
    assert 0.2 < sum(not state["history"][0]["actions"] for state in states) / len(states) < 0.4


def test_an_environment_of_ones_own_gets_actions_that_its_prompt_names():
    message = 'Available actions: Jump, Stay low. To take several in a row, put "||" between them.'
    request = Request(0, 0, "Mine", [{"role": "user", "content": message}])
    backend = ScriptedBackend({"Mine": "my.module:Game"}, malformed=0.0, random=0.0, max_actions_per_turn=1)
    assert backend.answer(request).endswith(("<answer>Jump</answer>", "<answer>Stay low</answer>"))


def test_it_plays_where_the_number_of_actions_of_a_reply_has_no_limit():
    _, requests = played(config_of("Bandit", groups=1, overrides=["agent_proxy.max_actions_per_turn=null"]))
    assert requests
