"""Prompts as files: what may stand in one, and what it changes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ragen.config.loading import load_config
from ragen.errors import ConfigError
from ragen.llm_agent.prompts.conversation import ConversationBuilder, prompt_rows, tag_prompt
from ragen.llm_agent.prompts.replies import ControlTokens
from ragen.llm_agent.prompts.settings import ContextSettings
from ragen.llm_agent.prompts.templates import DEFAULT_PROMPTS, PromptTemplate, WindowTemplate, fill

CONTROL = ControlTokens([])
SOKOBAN = {"env_type": "sokoban", "env_instruction": "Push.", "max_actions_per_traj": 4, "max_tokens": 30}
HISTORY = [
    {"state": "left", "actions_left": 4, "llm_response": "<answer>Up</answer>", "reward": -0.0},
    {"state": "{right}", "actions_left": 3, "manager_invalid_action": True},
]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prompts.yaml"
    path.write_text(textwrap.dedent(text), "utf-8")
    return path


def chat(template: PromptTemplate, entry=SOKOBAN, **settings):
    given = ContextSettings(template=template, **settings)
    prompts = {"S": tag_prompt("S", entry, given, CONTROL)}
    conversations = ConversationBuilder(given, prompts, {}, CONTROL, "<think>")
    return conversations.messages(prompt_rows([{"tag": "S", "history": HISTORY}], None)[0])


# Files


def test_our_own_prompts_come_back_from_a_file(tmp_path):
    assert PromptTemplate.load(written(tmp_path, DEFAULT_PROMPTS.dump())) == DEFAULT_PROMPTS


def test_what_a_file_leaves_out_is_ours(tmp_path):
    path = written(tmp_path, "system: Play!\nwindow: {after: '==='}\n")
    expected = PromptTemplate(system="Play!", window=WindowTemplate(after="==="))
    assert PromptTemplate.load(path) == expected


def test_every_text_of_a_file_is_shown_where_it_belongs(tmp_path):
    path = written(
        tmp_path,
        """
        system: S.
        turn: "turn {turn}: [{observation}|{invalid}|{actions_left}|{format}|{length}]"
        reward: "got {reward:.1f}"
        actions_left: "{actions_left} left"
        length: "{max_tokens} long"
        invalid: "again!"
        reply_format: {think: T, answer: A}
        instruction: {symbols: "", actions: "{actions} by {action_sep}, {max_actions}", limits: ""}
        """,
    )
    assert chat(PromptTemplate.load(path)) == [
        {"role": "system", "content": "S."},
        {"role": "user", "content": "Push.\nUp, Down, Left, Right by ||, 4\n\nturn 1: [left||4 left|T|30 long]"},
        {"role": "assistant", "content": "<answer>Up</answer>"},
        {"role": "user", "content": "got 0.0\n\nturn 2: [{right}|again!|3 left|T|30 long]"},
    ]


def test_turns_within_one_message_are_told_by_a_file_too(tmp_path):
    path = written(
        tmp_path,
        """
        system: ""
        turn: "asked {turn} {observation}"
        instruction: {symbols: "", actions: "", limits: ""}
        window:
          before: "{completed} done, {shown} shown"
          turn: "{turn} {observation} {reply}{reward}"
          reward: " for {reward:.0f} in {turn}"
          after: "now"
        """,
    )
    told = chat(PromptTemplate.load(path), window_mode="single_turn")
    content = "Push.\n\n1 done, 1 shown\n\n1 left <answer>Up</answer> for 0 in 1\n\nnow\n\nasked 2 {right}"
    assert told == [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[]", "prompts.yaml"),
        ("a: [", "prompts.yaml"),
        ("sistem: a", "sistem"),
        ("system: 3", "system"),
        ("window: a", "window"),
        ("window: {turm: a}", "window.turm"),
        ("turn: '{observation} {sate}'", "{sate}"),
        ("turn: 'nothing'", "{observation}"),
        ("turn: '{observation'", "turn"),
        ("reward: '{reward.__class__}'", "reward"),
        ("reward: '{reward!r}'", "reward"),
        ("reward: '{reward:zz}'", "{reward:zz}"),
    ],
)
def test_a_file_that_cannot_work_is_refused_with_the_key(tmp_path, text, key):
    with pytest.raises(ConfigError) as raised:
        PromptTemplate.load(written(tmp_path, text))
    assert key in str(raised.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        ContextSettings.read({"agent_proxy": {"prompts": str(tmp_path / "none.yaml")}})


def test_a_configuration_names_the_file_and_may_have_a_system_message_of_its_own(tmp_path):
    path = str(written(tmp_path, "system: file"))
    read = ContextSettings.read
    assert read({}).template == DEFAULT_PROMPTS
    assert read({"agent_proxy": {"prompts": path}}).template.system == "file"
    assert read({"agent_proxy": {"prompts": path, "system_prompt": "mine"}}).template.system == "mine"
    assert ContextSettings.read(load_config("base", [f"agent_proxy.prompts={path}"])).template.system == "file"


def test_slots_are_filled_and_a_part_with_nothing_to_say_is_left_out():
    assert fill("{a} {{b}} {c:.2f}", {"a": "{d}", "c": 1}) == "{d} {b} 1.00"
    assert fill("{a} left", {"a": None}) == ""
