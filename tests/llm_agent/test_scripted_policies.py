"""The scripted backend: it plays without a model, and errs as often as it is told to."""

import pytest
from omegaconf import OmegaConf

from ragen.extras import missing
from ragen.llm_agent.backends import Request, Sampling, create_backend
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.prompting.conversation import ConversationBuilder, prompt_rows, tag_prompt
from ragen.llm_agent.prompting.replies import ControlTokens, ReplyParser
from support.configurations import composed

CONTROL = ControlTokens(["<|im_end|>"])
THOUGHTFUL = ["actor.scripted.malformed=0", "actor.scripted.random=0"]


def needs(extra):
    """Skip what needs an extra that is not installed."""
    return pytest.mark.skipif(bool(missing(extra)), reason=f"the extra {extra} is not installed")


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


class Game:
    """Prompts and replies as the rollout loop makes them, without tokens."""

    def __init__(self, config):
        self.settings = ContextSettings.read(config)
        plain = OmegaConf.to_container(config, resolve=True)
        prompts = {
            tag: tag_prompt(tag, plain["custom_envs"][tag], self.settings, CONTROL)
            for tag in plain["es_manager"]["val"]["env_configs"]["tags"]
        }
        self.conversations = ConversationBuilder(self.settings, prompts, {}, CONTROL, "<think>")
        settings = self.settings
        self.parser = ReplyParser(CONTROL, settings.enable_think, settings.action_sep, settings.max_actions_per_turn)
        self.manager = EnvStateManager(plain, mode="val")

    def requests(self, caches):
        rows = prompt_rows(caches, self.settings.window)
        return [
            Request(cache["env_id"], len(cache["history"]) - 1, cache["tag"], self.conversations.messages(row))
            for cache, row in zip(caches, rows, strict=True)
        ]

    def parse(self, request, text):
        reply = self.parser.parse(text)
        return {
            "env_id": request.env_id,
            "llm_raw_response": reply.raw,
            "llm_response": reply.text,
            "actions": reply.actions,
        }

    def play(self, backend, turns):
        with self.manager as manager:
            active = manager.reset()
            for _ in range(turns):
                if not active:
                    break
                requests = self.requests(active)
                replies = backend.generate(requests, Sampling())
                active = manager.step([self.parse(r, reply.text) for r, reply in zip(requests, replies, strict=True)])
            return manager.get_rollout_states()


@pytest.mark.parametrize(
    ("tag", "turns", "least"),
    [
        ("Bandit", 1, 1.0),
        ("BanditTest", 1, 1.0),
        ("Countdown", 1, 1.0),
        ("MetamathQA", 1, 1.0),
        ("SimpleSokoban", 4, 1.0),
        ("LargerSokoban", 4, 0.8),
        ("SokobanDifferentGridVocab", 4, 1.0),
        ("CoordSokoban", 4, 1.0),
        ("FrozenLakeDet", 4, 1.0),
        ("FrozenLake8Det", 5, 1.0),
        ("CoordFrozenLake", 5, 0.3),
        ("SearchQA", 6, 0.8),
        pytest.param("TextWorld", 25, 0.6, marks=[needs("textworld"), pytest.mark.slow]),
    ],
)
def test_a_game_of_the_demo_is_solved_from_its_prompts_alone(tag, turns, least):
    per_turn = 1 if tag in ("SearchQA", "TextWorld") else 5
    config = config_of(tag, overrides=[*THOUGHTFUL, f"agent_proxy.max_actions_per_turn={per_turn}"])
    states = Game(config).play(create_backend(config), turns)
    assert sum(state["metrics"][f"{tag}/success"] for state in states) / len(states) >= least
    assert all(state["penalty"] == 0 for state in states)


def prompt_of(tag, overrides=()):
    config = config_of(tag, groups=1, overrides=overrides)
    game = Game(config)
    with game.manager as manager:
        (request,) = game.requests(manager.reset())
    return config, game, request


def test_replies_do_not_depend_on_order_or_size_of_batches():
    config = config_of("SimpleSokoban", "Countdown", "FrozenLake", overrides=["actor.scripted.random=0.4"])
    game, backend = Game(config), create_backend(config)
    with game.manager as manager:
        requests = game.requests(manager.reset())
    together = [reply.text for reply in backend.generate(requests, Sampling())]
    backwards = [reply.text for reply in create_backend(config).generate(requests[::-1], Sampling())][::-1]
    alone = [create_backend(config).generate([request], Sampling())[0].text for request in requests]
    assert together == backwards == alone


def test_members_of_a_group_and_turns_differ_and_so_do_seeds():
    _, _, request = prompt_of("FrozenLake")
    backend = ScriptedBackend({"FrozenLake": "frozen_lake"}, malformed=0.0, random=1.0)
    others = [Request(i, 0, request.tag, request.messages) for i in range(12)]
    assert len({backend.answer(other) for other in others}) > 1
    assert len({backend.answer(Request(0, turn, request.tag, request.messages)) for turn in range(12)}) > 1
    seeds = [ScriptedBackend({}, malformed=0.0, random=1.0, seed=seed) for seed in range(12)]
    assert len({seeded.answer(request) for seeded in seeds}) > 1


def test_about_the_configured_share_of_replies_is_malformed_and_those_give_no_actions():
    _, game, request = prompt_of("SimpleSokoban")
    backend = ScriptedBackend({"SimpleSokoban": "sokoban"}, malformed=0.3, random=0.0)
    answers = [backend.answer(Request(i, 0, request.tag, request.messages)) for i in range(600)]
    empty = [answer for answer in answers if not game.parser.parse(answer).actions]
    assert 0.24 < len(empty) / len(answers) < 0.36
    assert len(set(empty)) > 5


def test_an_environment_of_ones_own_gets_actions_that_its_prompt_names():
    message = 'Available actions: Jump, Stay low. To take several in a row, put "||" between them.'
    request = Request(0, 0, "Mine", [{"role": "user", "content": message}])
    backend = ScriptedBackend({"Mine": "my.module:Game"}, malformed=0.0, random=0.0, max_actions_per_turn=1)
    assert backend.answer(request).endswith(("<answer>Jump</answer>", "<answer>Stay low</answer>"))
