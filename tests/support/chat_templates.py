"""Tokenizers made here with chat templates of the common kinds, and where their replies are, told independently.

The templates follow the formats that model families document. ``assistant`` is a regular expression that finds the
replies in a rendered chat by that family's markers (group 1, with its end-of-turn token), which the code does not know.
"""

import re
from dataclasses import dataclass
from functools import cache

from ragen.llm_agent.tokenizer import load_tokenizer

LOOP = "{% for m in messages %}"
PROMPT = "{% if add_generation_prompt %}"


@dataclass(frozen=True)
class Family:
    name: str
    template: str
    special: tuple[str, ...]
    eos: str
    assistant: str
    bos: str | None = None
    knows_system: bool = True
    asks_for_blanks: bool = False  # whether it writes something else for a reply that is nothing but a thought

    @cache  # noqa: B019  # there are as many as families
    def tokenizer(self):
        """One for all tests, which leave it as it is."""
        tokenizer = load_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": list(self.special)})
        tokenizer.eos_token = self.eos
        if self.bos:
            tokenizer.bos_token = self.bos
        tokenizer.chat_template = self.template
        return tokenizer

    def spans(self, text: str) -> list[tuple[int, int]]:
        return [match.span(1) for match in re.finditer(self.assistant, text, re.DOTALL)]


_CHATML_TURN = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
_CHATML_PROMPT = PROMPT + "{{ '<|im_start|>assistant\\n' }}{% endif %}"
_CHATML_REPLY = r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)"
_CHATML = ("<|im_start|>", "<|im_end|>")

_QWEN3 = (
    "{% set ns = namespace(last=messages|length - 1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role != 'assistant' %}" + _CHATML_TURN + "{% else %}"
    "{% set thought = '' %}{% set said = m.content %}"
    "{% if '</think>' in m.content %}"
    "{% set said = m.content.split('</think>')[-1].lstrip('\\n') %}"
    "{% set thought = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
    "{% endif %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') }}"
    "{% else %}{{ '<|im_start|>assistant\\n' + said }}{% endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endif %}{% endfor %}" + _CHATML_PROMPT
)

FAMILIES = [
    Family("chatml", LOOP + _CHATML_TURN + "{% endfor %}" + _CHATML_PROMPT, _CHATML, "<|im_end|>", _CHATML_REPLY),
    Family(
        "chatml with a default system message",
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}"
        + LOOP
        + _CHATML_TURN
        + "{% endfor %}"
        + _CHATML_PROMPT,
        _CHATML,
        "<|im_end|>",
        _CHATML_REPLY,
    ),
    Family(
        "chatml that trims",
        LOOP + _CHATML_TURN.replace("m.content", "m.content | trim") + "{% endfor %}" + _CHATML_PROMPT,
        _CHATML,
        "<|im_end|>",
        _CHATML_REPLY,
    ),
    Family(
        "chatml with another end token",
        LOOP + _CHATML_TURN + "{% endfor %}" + _CHATML_PROMPT,
        _CHATML,
        "<|endoftext|>",
        _CHATML_REPLY,
    ),
    Family(
        "qwen3 (thoughts of earlier turns dropped)",
        _QWEN3,
        _CHATML,
        "<|im_end|>",
        r"<\|im_start\|>assistant\n(?:<think>\n\n</think>\n\n)?(.*?<\|im_end\|>)",
    ),
    Family(
        "deepseek-r1 (thoughts dropped everywhere, prompt thinks)",
        "{{ bos_token }}" + LOOP + "{% if m.role == 'system' %}{{ m.content }}"
        "{% elif m.role == 'user' %}{{ '<|User|>' + m.content }}"
        "{% else %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|end_of_sentence|>' }}{% endif %}"
        "{% endfor %}" + PROMPT + "{{ '<|Assistant|><think>\\n' }}{% endif %}",
        ("<|begin_of_sentence|>", "<|User|>", "<|Assistant|>", "<|end_of_sentence|>"),
        "<|end_of_sentence|>",
        r"<\|Assistant\|>(.*?<\|end_of_sentence\|>)",
        bos="<|begin_of_sentence|>",
    ),
    Family(
        "deepseek-v3 (a closing tag before every reply)",
        "{{ bos_token }}" + LOOP + "{% if m.role == 'system' %}{{ m.content }}"
        "{% elif m.role == 'user' %}{{ '<|User|>' + m.content }}"
        "{% else %}{{ '<|Assistant|></think>' }}"
        "{{ (m.content.split('</think>', 1)[1] if '</think>' in m.content else m.content) + '<|end_of_sentence|>' }}"
        "{% endif %}{% endfor %}" + PROMPT + "{{ '<|Assistant|><think>' }}{% endif %}",
        ("<|begin_of_sentence|>", "<|User|>", "<|Assistant|>", "<|end_of_sentence|>"),
        "<|end_of_sentence|>",
        r"<\|Assistant\|></think>(.*?<\|end_of_sentence\|>)",
        bos="<|begin_of_sentence|>",
    ),
    Family(
        "glm (an empty thought in every turn before)",
        "[gMASK]" + LOOP + "{% if m.role != 'assistant' %}{{ '<|' + m.role + '|>\\n' + m.content }}{% else %}"
        "{% set thought = m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content else '' %}"
        "{% set said = m.content.split('</think>')[-1].strip() %}"
        "{{ '<|assistant|>\\n<think>' + (thought.strip() if loop.last else '') + '</think>' }}"
        "{% if said %}{{ '\\n' + said }}{% endif %}{% endif %}{% endfor %}"
        + PROMPT
        + "{{ '<|assistant|>' }}{% endif %}",
        ("[gMASK]", "<|system|>", "<|user|>", "<|assistant|>"),
        "<|endoftext|>",
        r"<\|assistant\|>\n(?:<think></think>\n?)?(.*?)(?=<\||$(?!\n))",
        asks_for_blanks=True,
    ),
    Family(
        "llama-3",
        LOOP + "{% if loop.first %}{{ bos_token }}{% endif %}"
        "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
        + PROMPT
        + "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)",
        bos="<|begin_of_text|>",
    ),
    Family(
        "gemma (no system role)",
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        + LOOP
        + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
        "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim }}"
        "{{ '<end_of_turn>\\n' }}{% endfor %}" + PROMPT + "{{ '<start_of_turn>model\\n' }}{% endif %}",
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<end_of_turn>",
        r"<start_of_turn>model\n(.*?<end_of_turn>)",
        bos="<bos>",
        knows_system=False,
    ),
    Family(
        "phi-3 (ends a chat without prompt)",
        LOOP + "{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        "<|endoftext|>",
        r"<\|assistant\|>\n(.*?<\|end\|>)",
    ),
    Family(
        "mistral (system goes to the last user message)",
        "{% set system = messages[0].content if messages[0].role == 'system' else none %}"
        "{{ bos_token }}" + LOOP + "{% if m.role == 'user' %}[INST] "
        "{% if system and loop.index0 >= messages|length - 2 %}{{ system + '\\n\\n' }}{% endif %}"
        "{{ m.content }}[/INST]"
        "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
        ("<s>", "</s>", "[INST]", "[/INST]"),
        "</s>",
        r"\[/INST\] (.*?</s>)",
        bos="<s>",
    ),
    Family(
        "zephyr",
        LOOP
        + "{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}"
        + PROMPT
        + "{{ '<|assistant|>\\n' }}{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "</s>"),
        "</s>",
        r"<\|assistant\|>\n(.*?</s>)",
    ),
    Family(
        "channels (another token ends the last turn)",
        LOOP + "{{ '<|start|>' + m.role + '<|message|>' + m.content }}"
        "{{ '<|return|>' if m.role == 'assistant' and loop.last else '<|end|>' }}{% endfor %}"
        + PROMPT
        + "{{ '<|start|>assistant<|message|>' }}{% endif %}",
        ("<|start|>", "<|message|>", "<|end|>", "<|return|>"),
        "<|return|>",
        r"<\|start\|>assistant<\|message\|>(.*?(?:<\|end\|>|<\|return\|>))",
    ),
    Family(
        "headers alone (nothing ends a turn)",
        LOOP
        + "{{ '<|' + m.role + '|>\\n' + m.content + '\\n' }}{% endfor %}"
        + PROMPT
        + "{{ '<|assistant|>\\n' }}{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>"),
        "<|endoftext|>",
        r"<\|assistant\|>\n(.*?)(?=\n<\||\n?$(?!\n))",
    ),
    Family(
        "plain text (no control tokens at all)",
        LOOP
        + "{{ '### ' + m.role + ':\\n' + m.content + ' [done]\\n\\n' }}{% endfor %}"
        + PROMPT
        + "{{ '### assistant:\\n' }}{% endif %}",
        (),
        "<|endoftext|>",
        r"### assistant:\n(.*? \[done\])",
    ),
]


def token_ends(tokenizer, ids) -> list[int]:
    """Where each token ends in the text, in UTF-8 bytes, from the vocabulary alone."""
    alphabet = _bytes_of_alphabet()
    ends, position = [], 0
    added = {index: token.content for index, token in tokenizer.added_tokens_decoder.items()}
    for index in ids:
        if index in added:
            position += len(added[index].encode())
        else:
            position += len(bytes(alphabet[char] for char in tokenizer.convert_ids_to_tokens(index)))
        ends.append(position)
    return ends


def mask_by_bytes(tokenizer, ids, text, spans) -> list[int]:
    """1 for every token that shares a byte with one of the spans (in characters) of the text."""
    limits = [(len(text[:start].encode()), len(text[:end].encode())) for start, end in spans]
    mask, start = [], 0
    for end in token_ends(tokenizer, ids):
        mask.append(int(any(start < high and low < end for low, high in limits)))
        start = end
    return mask


def _bytes_of_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's rule)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
