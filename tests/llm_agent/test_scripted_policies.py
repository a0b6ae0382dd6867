"""The scripted backend: it plays without a model, and errs as often as it is told to."""

from collections import Counter

import pytest
from omegaconf import OmegaConf

from ragen.errors import ConfigError
from ragen.extras import missing
from ragen.llm_agent import LLMAgentProxy
from ragen.llm_agent.backends import Request, Sampling, create_backend, create_tokenizer
from ragen.llm_agent.backends.prompt import read_prompt
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.config.loading import load_config
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


def test_an_image_is_answered_with_some_allowed_action():
    config = config_of("VisualSimpleSokoban", groups=2, overrides=THOUGHTFUL)
    for state in Game(config).play(create_backend(config), 2):
        assert state["penalty"] == 0
        assert state["history"][0]["actions"]


def prompt_of(tag, overrides=()):
    config = config_of(tag, groups=1, overrides=overrides)
    game = Game(config)
    with game.manager as manager:
        (request,) = game.requests(manager.reset())
    return config, game, request


def test_a_prompt_is_read_as_a_player_would():
    _, _, request = prompt_of("SimpleSokoban")
    prompt = read_prompt(request.messages, 7)
    assert prompt.state.count("\n") == 5 and set(prompt.state) <= set("#_O√XPS\n")
    assert prompt.symbols["√"] == "box on target" and len(prompt.symbols) == 7
    assert prompt.actions == ("Up", "Down", "Left", "Right")
    assert "This is Sokoban" in prompt.instructions
    assert (prompt.limit, read_prompt(request.messages, 50).limit) == (7, 10)


def test_a_prompt_that_tells_all_turns_in_one_message_is_read_at_its_end():
    game = Game(config_of("Countdown", overrides=["+agent_proxy.context_window_mode=single_turn"]))
    turns = [
        {"state": "old", "actions_left": 2, "llm_response": "<think>a</think><answer>b</answer>", "reward": 0.5},
        {"state": "new\n\nstate", "actions_left": 1},
    ]
    (row,) = prompt_rows([{"env_id": 0, "tag": "Countdown", "history": turns}], None)
    prompt = read_prompt(game.conversations.messages(row), 5)
    assert (prompt.state, prompt.limit) == ("new\n\nstate", 1)


def test_a_chat_in_another_form_is_all_state():
    assert read_prompt([{"role": "user", "content": "Hello"}], 3).state == "Hello"
    parts = [{"type": "text", "text": "Hello"}, {"type": "image", "image": object()}]
    assert read_prompt([{"role": "user", "content": parts}], 3).state == "Hello"


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


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize("tag", ["SimpleSokoban", "Bandit", "rubikscube", "FrozenLake"])
def test_thoughtless_replies_are_well_formed_and_name_allowed_actions(tag, think):
    thoughtless = ["actor.scripted.malformed=0", "actor.scripted.random=1", f"agent_proxy.enable_think={think}"]
    config, game, request = prompt_of(tag, thoughtless)
    backend = create_backend(config)
    allowed = set(read_prompt(request.messages, 5).actions) or {"Dragon", "Phoenix"}
    said = Counter()
    for i in range(40):
        text = backend.answer(Request(i, 0, request.tag, request.messages))
        assert ("<think>" in text) == think
        actions = game.parser.parse(text).actions
        assert 1 <= len(actions) <= 5
        said.update(actions)
    assert set(said) <= allowed and len(said) > 1


@pytest.mark.parametrize("tag", ["Countdown", "MetamathQA", "MiniSudoku", "SearchQA"])
def test_thoughtless_replies_to_text_environments_still_say_something(tag):
    config, game, request = prompt_of(tag, ["actor.scripted.malformed=0", "actor.scripted.random=1"])
    backend = create_backend(config)
    answers = [backend.answer(Request(i, 0, request.tag, request.messages)) for i in range(20)]
    assert all(game.parser.parse(answer).actions for answer in answers)


@pytest.mark.processes
@pytest.mark.parametrize(
    "how",
    [
        ["es_manager.use_multiprocessing=false"],
        ["es_manager.use_multiprocessing=true"],
        ["es_manager.use_multiprocessing=true", "agent_proxy.use_parallel_rollout=true"],
    ],
    ids=["main", "workers", "shards"],
)
def test_an_environment_with_an_example_action_is_asked_for_one_wherever_it_lives(how):
    tag = "{env_type: 'support.toy_envs:Proposes', max_actions_per_traj: 3, env_instruction: go}"
    config = config_of("Mine", "SimpleSokoban", overrides=[*THOUGHTFUL, *how, f"+custom_envs.Mine={tag}"])
    with LLMAgentProxy(config, create_backend(config), create_tokenizer(config, light=True)) as proxy:
        states = proxy.play({}, val=True)
    played = [[turn["actions"] for turn in state["history"][:-1]] for state in states if state["tag"] == "Mine"]
    assert played == [[["one"], ["two"], ["three"]]] * 6


def test_an_environment_of_ones_own_gets_actions_that_its_prompt_names():
    message = 'Available actions: Jump, Stay low. To take several in a row, put "||" between them.'
    request = Request(0, 0, "Mine", [{"role": "user", "content": message}])
    backend = ScriptedBackend({"Mine": "my.module:Game"}, malformed=0.0, random=0.0, max_actions_per_turn=1)
    assert backend.answer(request).endswith(("<answer>Jump</answer>", "<answer>Stay low</answer>"))


def test_a_prompt_that_names_no_actions_is_answered_all_the_same():
    request = Request(0, 0, "Mine", [{"role": "user", "content": "?"}])
    assert "<answer>" in ScriptedBackend({}, malformed=0.0, random=0.0).answer(request)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["actor.scripted.malformed=1.5"], "'actor.scripted.malformed' is 1.5; expected a number from 0 to 1"),
        (["actor.scripted.malformed=0.6", "actor.scripted.random=0.6"], "sum is at most 1"),
        (["actor.scripted.seed=x"], "'actor.scripted.seed' is 'x'; expected a whole number"),
        (["actor.backend=nope"], "'actor.backend' is 'nope'; expected one of"),
        (["actor.backend=openia"], "Did you mean 'openai'?"),
        (["actor.backend='no.such.module:Class'"], "cannot be imported"),
    ],
)
def test_a_backend_that_cannot_be_made_is_one_clear_error(overrides, said):
    with pytest.raises(ConfigError) as caught:
        create_backend(load_config("base", overrides))
    assert said in str(caught.value)


def test_a_backend_of_ones_own_is_named_by_its_path():
    config = load_config("base", ["actor.backend='ragen.llm_agent.backends.scripted:ScriptedBackend'"])
    assert isinstance(create_backend(config), ScriptedBackend)


def test_without_listed_actions_the_examples_of_the_prompt_are_answered():
    asked = "Try <answer>sell 2 || buy 3</answer>\nTurn 1:\nState:\nrich\nAlways output: <answer> x </answer>"
    assert read_prompt([{"role": "user", "content": asked}], 5).actions == ("sell 2", "buy 3")
