"""The small tokenizer that ships with the package."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.llm_agent.tokenizer import TOKENIZER_DIR
from support.later import shipped
from support.tokenizer_build import VOCABULARY_SIZE, build

CONTROL = re.compile(r"<\|(?:endoftext|im_start|im_end)\|>")


def ids(text):
    return shipped()(text, add_special_tokens=False).input_ids


def test_auto_tokenizer_loads_the_folder_without_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(TOKENIZER_DIR))
    assert tokenizer.is_fast and len(tokenizer) == VOCABULARY_SIZE
    assert tokenizer("<think>Up</think>").input_ids == shipped()("<think>Up</think>").input_ids
    assert tokenizer.chat_template == shipped().chat_template


def test_a_turn_ends_with_the_end_token_and_padding_is_another():
    assert (shipped().eos_token, shipped().pad_token, shipped().padding_side) == ("<|im_end|>", "<|endoftext|>", "left")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60).filter(lambda text: not CONTROL.search(text)))
def test_any_text_survives_encoding_and_decoding(text):
    assert shipped().decode(ids(text)) == text


def test_building_it_again_gives_the_files_that_ship(tmp_path):
    build(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / name).read_text("utf-8")) == json.loads((TOKENIZER_DIR / name).read_text("utf-8"))
