"""What an evaluation imports, and that doing without tensors and transformers changes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.backends import create_backend
from ragen.llm_agent.config.loading import load_config
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.rollout.actor import name_requests, requests_of
from ragen.llm_agent.rollout.proxy import LLMAgentProxy
from ragen.llm_agent.tokenizer import LightTokenizer, load_tokenizer
from ragen.llm_agent.tokens.dataproto import PromptBatch
from ragen.settings import setting

ROOT = Path(__file__).resolve().parents[2]
GAMES = (
    "es_manager.val.env_groups=4", "es_manager.val.group_size=1", "es_manager.val.env_configs.n_groups=[2,2]",
    "es_manager.val.env_configs.tags=[Bandit,SimpleSokoban]", "es_manager.use_multiprocessing=false",
)  # fmt: skip
CHATS = [
    [{"role": "user", "content": "Turn 1:\nState:\n#_P\n"}],
    [
        {"role": "system", "content": " You are \u00e9l\u00e8ve <|im_end|> \U0001f642 "},
        {"role": "user", "content": "a\n\n b"},
        {"role": "assistant", "content": "<think>so\t</think><answer>Up || Down</answer>"},
        {"role": "user", "content": ""},
    ],
]


def test_the_command_plays_a_rollout_without_torch_transformers_or_verl(tmp_path):
    code = (
        "import sys, json\n"
        "from ragen.cli.main import main\n"
        f"code = main(['rollout', 'output_dir={tmp_path}', 'agent_proxy.max_turn=2', *{list(GAMES)!r}])\n"
        "heavy = ('torch', 'transformers', 'tensordict', 'verl', 'ray', 'matplotlib', 'pandas')\n"
        "print(json.dumps([code, [name for name in heavy if name in sys.modules]]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout.splitlines()[-1]) == [0, []]
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == 4
    assert "imports" not in ran.stdout


@pytest.mark.parametrize("opened", [True, False])
def test_the_light_tokenizer_writes_chats_as_the_whole_one(opened):
    light, whole = LightTokenizer(), load_tokenizer()
    for chat in CHATS:
        texts = [
            each.apply_chat_template(chat, tokenize=False, add_generation_prompt=opened) for each in (light, whole)
        ]
        assert texts[0] == texts[1]


def test_the_light_tokenizer_gives_the_same_tokens_and_places_as_the_whole_one():
    light, whole = LightTokenizer(), load_tokenizer()
    texts = [whole.apply_chat_template(chat, tokenize=False) for chat in CHATS] + ["", "<|endoftext|>x", "\n\n  \t9.5"]
    options = {"add_special_tokens": False, "truncation": False, "return_offsets_mapping": True}
    mine, theirs = light(texts, **options), whole(texts, **options)
    assert mine["input_ids"] == theirs["input_ids"]
    assert [list(map(tuple, row)) for row in mine["offset_mapping"]] == [
        list(map(tuple, row)) for row in theirs["offset_mapping"]
    ]
    for skip in (True, False):
        assert light.batch_decode(mine["input_ids"], skip) == whole.batch_decode(theirs["input_ids"], skip)


def test_the_light_tokenizer_knows_the_same_control_tokens():
    light, whole = LightTokenizer(), load_tokenizer()
    for name in ("eos_token", "pad_token", "eos_token_id", "pad_token_id", "chat_template", "is_fast"):
        assert getattr(light, name) == getattr(whole, name), name
    assert len(light) == len(whole)
    assert set(light.all_special_tokens) == set(whole.all_special_tokens)
    told = [{i: (t.content, t.special) for i, t in each.added_tokens_decoder.items()} for each in (light, whole)]
    assert told[0] == told[1]


def test_what_the_light_tokenizer_does_not_do_is_an_error():
    with pytest.raises(ValueError, match="tokenize=False"):
        LightTokenizer().apply_chat_template(CHATS[0], tokenize=True)
    with pytest.raises(ValueError, match="truncation=False"):
        LightTokenizer()(["a"], truncation=True)


def test_prompts_without_tensors_are_the_same_requests():
    from ragen.llm_agent.es_manager import EnvStateManager

    config = load_config("base", GAMES)
    context = ContextManager(config, LightTokenizer(), mode="val")
    with EnvStateManager(config, mode="val") as manager:
        caches = manager.reset()
    with_tensors, without = context.get_lm_inputs(caches), context.get_prompts(caches)
    for batch in (with_tensors, without):
        name_requests(batch, caches)
    assert isinstance(without, PromptBatch) and without.batch is None
    assert requests_of(with_tensors) == requests_of(without)


def test_an_evaluation_gives_what_a_rollout_for_training_gives():
    config = load_config("base", GAMES)

    def states(play):
        tokenizer = LightTokenizer()
        with LLMAgentProxy(config, create_backend(config, tokenizer), tokenizer) as proxy:
            play(proxy)
            assert proxy._needs_tensors is False
            return proxy.rollout_states

    def train(proxy):
        from verl import DataProto

        proxy.rollout(DataProto(meta_info={"validate": True}), val=True)

    assert states(lambda proxy: proxy.play({"validate": True}, val=True)) == states(train)


def test_what_is_imported_for_tensors_is_told_apart(monkeypatch):
    config = load_config("base", GAMES)
    tokenizer = LightTokenizer()
    with LLMAgentProxy(config, create_backend(config, tokenizer), tokenizer) as proxy:
        proxy.begin_record()
        imported = []
        monkeypatch.delitem(sys.modules, "verl", raising=False)
        monkeypatch.setattr("ragen.llm_agent.rollout.player.import_module", imported.append)
        proxy.import_tensors()
        assert imported == ["tensordict", "verl"]
        assert proxy.seconds["imports"] > 0
        assert [span.kind for span in proxy.timeline.spans] == ["imports"]


@pytest.mark.parametrize(
    "keys", [(), ("actor_rollout_ref.rollout.max_model_len=1000",), ("agent_proxy.max_context_window=1",)]
)
def test_prompts_are_the_same_where_nobody_reads_tokens_and_each_turn_s_can_be_told_afterwards(keys):
    """Of Sokoban's rollouts, with room for all turns, with too little, and with a window."""
    config = load_config("base", [*GAMES, "agent_proxy.max_turn=4", "actor.scripted.malformed=0.6", *keys])
    backend, asked = create_backend(config, LightTokenizer()), {}
    with LLMAgentProxy(config, backend, LightTokenizer()) as proxy:
        _, context = proxy.prepare(val=True)
        plain = context.get_prompts

        def both(caches, with_tokens=True):
            assert not with_tokens
            prompts, others = plain(caches, with_tokens=False), plain(caches)
            chats = [list(each.non_tensor_batch["messages_list"]) for each in (prompts, others)]
            assert chats[0] == chats[1] and None not in list(others.non_tensor_batch["prompt_ids"])
            for cache, chat in zip(caches, chats[0], strict=True):
                asked[cache["env_id"], len(cache["history"]) - 1] = chat
            return prompts

        context.get_prompts = both
        states = proxy.play({"validate": True}, val=True)
        told = {(s["env_id"], turn): context.prompt(s, turn) for s in states for turn in range(len(s["history"]) - 1)}
    assert told == asked and max(turn for _, turn in asked) > 1


def test_a_model_that_has_to_be_named_is_asked_for_in_a_sentence():
    config = load_config("evaluate_api_llm")
    for key, since in (("actor.model", ""), ("output_dir", ", since 'output_dir' needs it")):
        with pytest.raises(ConfigError) as refused:
            setting(config, key, str)
        said = f"configuration key 'actor.model' must be given{since}: for example actor.model=gpt-4o-mini, "
        assert str(refused.value).startswith(said)
    assert setting(load_config("evaluate_api_llm", ["actor.model=m"]), "output_dir", str) == "outputs/evaluate/m"
