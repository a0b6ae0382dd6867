"""What an evaluation imports, and that doing without tensors and transformers changes nothing."""

import json
import subprocess
import sys
from pathlib import Path

from ragen.config.loading import load_config
from ragen.llm_agent.backends import create_backend
from ragen.llm_agent.rollout.proxy import LLMAgentProxy
from ragen.llm_agent.tokenizer import LightTokenizer, load_tokenizer

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


def test_the_light_tokenizer_writes_and_counts_as_the_whole_one():
    light, whole = LightTokenizer(), load_tokenizer()
    texts = ["", "<|endoftext|>x", "\n\n  \t9.5"]
    for chat in CHATS:
        for opened in (True, False):
            written = [
                each.apply_chat_template(chat, tokenize=False, add_generation_prompt=opened) for each in (light, whole)
            ]
            assert written[0] == written[1]
            texts += written
    options = {"add_special_tokens": False, "truncation": False}
    assert light(texts, **options)["input_ids"] == whole(texts, **options)["input_ids"]
    for name in ("eos_token", "pad_token", "eos_token_id", "pad_token_id", "chat_template", "is_fast"):
        assert getattr(light, name) == getattr(whole, name), name
    assert len(light) == len(whole)
    assert set(light.all_special_tokens) == set(whole.all_special_tokens)
    told = [{i: (t.content, t.special) for i, t in each.added_tokens_decoder.items()} for each in (light, whole)]
    assert told[0] == told[1]


def test_an_evaluation_gives_what_a_rollout_for_training_gives():
    config = load_config("base", GAMES)

    def states(play, tokenizer):
        with LLMAgentProxy(config, create_backend(config, tokenizer), tokenizer) as proxy:
            play(proxy)
            return proxy.rollout_states

    def train(proxy):
        from verl import DataProto

        proxy.rollout(DataProto(meta_info={"validate": True}), val=True)

    played = states(lambda proxy: proxy.play({"validate": True}, val=True), LightTokenizer())
    assert played == states(train, load_tokenizer())
