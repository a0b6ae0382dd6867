"""Prompts as files: what may stand in one, and what it changes."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.config.loading import load_config
from ragen.llm_agent.prompting.__main__ import main
from ragen.llm_agent.prompting.conversation import ConversationBuilder, prompt_rows, shipped_instructions, tag_prompt
from ragen.llm_agent.prompting.replies import ControlTokens
from ragen.llm_agent.prompting.templates import DEFAULT_PROMPTS, PromptTemplate, escaped, fill

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


def test_our_own_prompts_come_back_from_a_file(tmp_path, capsys):
    out = tmp_path / "sub" / "ours.yaml"
    assert main([str(out)]) == 0
    assert PromptTemplate.load(out) == DEFAULT_PROMPTS
    assert main([]) == 0
    assert capsys.readouterr().out.endswith(out.read_text("utf-8"))


def test_what_a_file_leaves_out_is_ours(tmp_path):
    path = written(tmp_path, "system: Play!\nwindow: {after: '==='}\n")
    expected = replace(DEFAULT_PROMPTS, system="Play!", window=replace(DEFAULT_PROMPTS.window, after="==="))
    assert PromptTemplate.load(path) == expected


def test_every_text_of_a_file_is_shown_where_it_belongs(tmp_path):
    path = written(
        tmp_path,
        """
        system: S.
        instruction_in: system
        join: " / "
        first_turn: "first {turn}: {state}"
        later_turn: "later {turn}: {state}"
        state: "[{observation}|{invalid}|{actions_left}|{format}|{length}]"
        reward: "got {reward:.1f}"
        actions_left: "{actions_left} left"
        length: "{max_tokens} long"
        invalid: "again!"
        reply_format: {think: T, answer: A}
        instruction: {join: ";", symbols: "", actions: "{actions} by {action_sep}, {max_actions}", limits: ""}
        """,
    )
    assert chat(PromptTemplate.load(path)) == [
        {"role": "system", "content": "S. / Push.;Up, Down, Left, Right by ||, 4"},
        {"role": "user", "content": "first 1: [left||4 left|T|30 long]"},
        {"role": "assistant", "content": "<answer>Up</answer>"},
        {"role": "user", "content": "got 0.0 / later 2: [{right}|again!|3 left|T|30 long]"},
    ]


def test_turns_within_one_message_are_told_by_a_file_too(tmp_path):
    path = written(
        tmp_path,
        """
        system: ""
        join: ";"
        state: "{observation}"
        instruction: {symbols: "", actions: "", limits: ""}
        window:
          before: "{completed} done, {shown} shown"
          turn: "{turn} {observation} {reply}{reward}"
          reward: " for {reward:.0f} in {turn}"
          after: "now"
          asked: "asked {turn} {state}"
        """,
    )
    told = chat(PromptTemplate.load(path), window_mode="single_turn")
    content = "Push.;1 done, 1 shown;1 left <answer>Up</answer> for 0 in 1;now;asked 2 {right}"
    assert told == [{"role": "user", "content": content}]


SHORT = """
    system: ""
    join: ""
    trim: false
    state: "{observation} {invalid}({actions_left})"
    invalid: "again! "
    actions_left: "{actions_left}"
    instruction: {symbols: "", actions: "", limits: ""}
    windows:
      sokoban:
        before: "{task}{played}last {shown}:\\n"
        turn: "{turn}: {observation} -> {reply}{reward}\\n"
        reward: ""
        after: ""
        asked: "{state}"
        alone: "{task}{played}{state}"
        state: "{turn}: {observation}, {admissible}{invalid}{actions_left} left, as {format}"
        invalid: "what? "
        task: "Do {task}.\\n"
        played: "{completed} played.\\n"
        admissible: "one of {admissible}. "
        find_task: "Task: (.+)"
        find_admissible: "Can: (.+)"
        find_reply: "(?s)<answer>(.*?)</answer>"
        clean: {"Task: .+": "", "Can: .+": "", "\\\\s+": " ", " $": ""}
        longest: 12
        cut: ".."
    """
HOUSE = [
    {
        "state": "Home.\nTask: light up\nCan: a, b",
        "actions_left": 4,
        "llm_response": "<think>x</think><answer> a\n</answer>",
        "reward": 1.0,
    },
    {"state": "A very long corridor.\nCan: c", "actions_left": 3, "llm_response": " none ", "reward": 0.0},
    {"state": "Hall.\n\n\\1 doors", "actions_left": 2, "manager_invalid_action": True},
]


@pytest.mark.parametrize(
    ("turns", "window", "content"),
    [
        (1, None, "Do light up.\n1: Home., one of a, b. 4 left, as F"),
        (2, None, "Do light up.\n1 played.\nlast 1:\n1: Home. -> a\n2: A very long corridor., one of c. 3 left, as F"),
        (
            3,
            None,
            "Do light up.\n2 played.\nlast 2:\n1: Home. -> a\n2: A very lon.. -> none\n"
            "3: Hall. \\1 doors, what? 2 left, as F",
        ),
        (3, 1, "Do light up.\n2 played.\n3: Hall. \\1 doors, what? 2 left, as F"),
    ],
)
def test_a_type_of_environment_may_tell_earlier_turns_in_short(tmp_path, turns, window, content):
    template = PromptTemplate.load(written(tmp_path, SHORT))
    given = ContextSettings(template=template, window_mode="single_turn")
    prompts = {"S": replace(tag_prompt("S", SOKOBAN, given, CONTROL), reply_format="F", instruction="")}
    kept = ("state", "actions_left", "manager_invalid_action")
    history = [*HOUSE[: turns - 1], {key: value for key, value in HOUSE[turns - 1].items() if key in kept}]
    conversations = ConversationBuilder(given, prompts, {}, CONTROL, "<think>")
    told = conversations.messages(prompt_rows([{"tag": "S", "history": history}], window)[0])
    assert told == [{"role": "user", "content": content}]


def test_the_example_of_the_page_tells_the_task_once_and_actions_without_thoughts(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "alfworld.md").read_text("utf-8")
    (block,) = re.findall(r"^```yaml\n(windows:.*?)^```", page, re.M | re.S)
    given = ContextSettings(template=PromptTemplate.load(written(tmp_path, block)), window_mode="single_turn")
    prompts = {"S": tag_prompt("S", {"env_type": "alfworld"}, given, CONTROL)}
    listed = "\n\nAdmissible actions: [look, go to shelf 1]"
    first = {"state": f"A room.\n\nYour task is to: find it.{listed}", "llm_response": "<answer>look</answer>"}
    rollout = {"tag": "S", "history": [first, {"state": f"A shelf.{listed}", "actions_left": 3}]}
    told = ConversationBuilder(given, prompts, {}, CONTROL, "<think>").messages(prompt_rows([rollout], None)[0])
    assert told[-1]["content"].split("\n") == [
        "Your task: find it. The last 1 of 1 turns:",
        "",
        "1. You saw: A room. You did: look",
        "",
        "Turn 2:",
        "A shelf.",
        "Choose from: look, go to shelf 1.",
        f"You have 3 actions left. Answer as {DEFAULT_PROMPTS.reply_format.think}.",
    ]


def test_windows_of_other_types_are_not_those_of_a_type_that_has_its_own(tmp_path):
    template = PromptTemplate.load(written(tmp_path, SHORT))
    lake = {"env_type": "frozen_lake", "env_instruction": "Cross."}
    content = chat(template, lake, window_mode="single_turn")[0]["content"]
    assert content.startswith("Cross.The turns before this one:---\nTurn 1:\nState:\nleft")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "contains list"),
        ("sistem: a", "'sistem' is not a field"),
        ("system: 3", "system is 3; expected a text"),
        ("trim: 1", "trim is 1; expected true or false"),
        ("window: a", "window is 'a'; expected a mapping"),
        ("window: {turm: a}", "'window.turm' is not a field"),
        ("instruction_in: assistant", "expected one of system, user"),
        ("state: '{observation} {sate}'", r"state has the slot \{sate\}; it may have \{observation\}"),
        ("state: 'nothing'", r"state lacks the slot \{observation\}"),
        ("state: '{observation'", "double a literal brace"),
        ("reward: '{reward.__class__}'", r"slot \{reward.__class__\}"),
        ("reward: '{reward!r}'", "slot"),
        ("reward: '{reward:zz}'", "which is invalid"),
        ("instructions: {A: 3}", "instructions.A is 3"),
        ("a: [", "cannot be read"),
        ("windows: {alfworld: a}", "windows.alfworld is 'a'; expected a mapping"),
        ("windows: {alfworld: {turm: a}}", "'windows.alfworld.turm' is not a field"),
        ("window: {longest: a}", "window.longest is 'a'; expected a whole number"),
        ("window: {longest: -1}", "window.longest is -1; expected at least 0"),
        ("window: {find_task: '('}", "not a regular expression"),
        ("window: {find_task: 'a'}", "window.find_task is 'a'; expected a group"),
        ("window: {clean: {'(': a}}", "window.clean has '\\('"),
        ("window: {state: 'all'}", r"window.state lacks the slot \{observation\}"),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        PromptTemplate.load(written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        ContextSettings.read({"agent_proxy": {"prompts": str(tmp_path / "none.yaml")}})


def test_a_configuration_names_the_file_and_may_have_a_system_message_of_its_own(tmp_path):
    path = str(written(tmp_path, "system: file"))
    read = ContextSettings.read
    assert read({}).template == DEFAULT_PROMPTS
    assert read({"agent_proxy": {"prompts": path}}).template.system == "file"
    assert read({"agent_proxy": {"prompts": path, "system_prompt": "mine"}}).template.system == "mine"
    assert ContextSettings.read(load_config("base", [f"agent_proxy.prompts={path}"])).template.system == "file"


def test_an_instruction_of_a_file_replaces_ours_and_not_the_users():
    template = replace(DEFAULT_PROMPTS, instructions={"SimpleSokoban": "Shove."})
    settings = ContextSettings(template=template)
    shipped = SOKOBAN | {"env_instruction": shipped_instructions()["SimpleSokoban"] + "\n"}
    told = {
        text: tag_prompt("SimpleSokoban", SOKOBAN | {"env_instruction": text}, settings, CONTROL).instruction
        for text in ("", "Mine.", shipped["env_instruction"])
    }
    assert told[""].startswith("Shove.") and told[shipped["env_instruction"]].startswith("Shove.")
    assert told["Mine."].startswith("Mine.")


def test_slots_are_filled_and_a_part_with_nothing_to_say_is_left_out():
    assert fill("{a} {{b}} {c:.2f}", {"a": "{d}", "c": 1}) == "{d} {b} 1.00"
    assert fill("{a} left", {"a": None}) == ""
    assert fill(escaped("{x} }"), {}) == "{x} }"
