"""Prompts as files: what may stand in one, what it changes, and how one is read off a checkout's source."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.config.loading import load_config
from ragen.llm_agent.prompting.__main__ import main
from ragen.llm_agent.prompting.checkout import read_prompts
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
    assert main(["show", str(out)]) == 0
    assert PromptTemplate.load(out) == DEFAULT_PROMPTS
    assert main(["show"]) == 0
    assert capsys.readouterr().out.endswith(out.read_text("utf-8"))


def test_what_a_file_leaves_out_is_ours(tmp_path):
    path = written(tmp_path, "version: 1\nsource: me\nsystem: Play!\nwindow: {after: '==='}\n")
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "holds list"),
        ("version: 2", "version is 2"),
        ("sistem: a", "'sistem' is no field"),
        ("system: 3", "system is 3; expected a text"),
        ("trim: 1", "trim is 1; expected true or false"),
        ("window: a", "window is 'a'; expected a mapping"),
        ("window: {turm: a}", "'window.turm' is no field"),
        ("instruction_in: assistant", "expected one of system, user"),
        ("state: '{observation} {sate}'", r"state has the slot \{sate\}; it may have \{observation\}"),
        ("state: 'nothing'", r"state lacks the slot \{observation\}"),
        ("state: '{observation'", "write a brace that is meant twice"),
        ("reward: '{reward.__class__}'", r"slot \{reward.__class__\}"),
        ("reward: '{reward!r}'", "slot"),
        ("reward: '{reward:zz}'", "cannot be"),
        ("instructions: {A: 3}", "instructions.A is 3"),
        ("a: [", "cannot be read"),
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


# Checkouts: skeletons of both shapes, with words of our own

OF_2025 = """
class ContextManager:
    def _init_prefix_lookup(self):
        grid_vocab_str = "\\nsymbols\\n" + "; ".join([f"{k} = {v}" for k, v in vocabulary.items()])
        action_lookup_str = "\\nactions\\n" + " or ".join([f"{v}" for k, v in lookup.items()])
        action_lookup_str += f"\\nmost {env_config_new['max_actions_per_traj']}, by " + self.action_sep + " {x}\\n"

    def get_lm_inputs(self, env_outputs, prepare_for_update):
        messages = [
            {"role": "system", "content": f"Be good. "},
            {"role": "user", "content": self.prefix_lookup[env_output["env_id"]]},
        ]
        for idx, content in enumerate(env_output["history"]):
            messages[-1]["content"] += f"\\nRound {idx + 1}:\\n"
            if "state" in content:
                FORMAT_PROMPT = "think, then answer" if self.config.agent_proxy.enable_think else "answer"
                LENGTH_PROMPT = f"Words: {self.env_config_lookup[env_output['env_id']]['max_tokens']}."
                messages[-1]["content"] += (
                    f"See:\\n{content['state']}\\n{content['actions_left']} to go. "
                    f"Say: {FORMAT_PROMPT}. {LENGTH_PROMPT}\\n"
                )
            if "reward" in content:
                messages.append({"role": "user", "content": f"Earned:\\n{content['reward']:.2f}\\n"})


def main():
    messages = [{"role": "system", "content": "not this one"}]
"""
OF_2026 = """
class ContextManager:
    def _init_prefix_lookup(self):
        grid_vocab_str = "\\nsymbols\\n" + "; ".join([f"{k} = {v}" for k, v in vocabulary.items()])
        coord_hint = ("\\nrows " "and columns")
        action_lookup_str = "\\nactions\\n" + " or ".join([f"{v}" for k, v in lookup.items()])
        action_lookup_str += f"\\nmost {env_config_new['max_actions_per_traj']}\\n"

    def _build_system_content(self, env_id):
        env_instruction = self.prefix_lookup.get(env_id, "")
        if env_instruction:
            return "Be good. " + env_instruction
        return "Be good. "

    def _build_format_prompt(self, env_id):
        FORMAT_PROMPT = ("think, then answer" if self.config.agent_proxy.enable_think else "answer")
        LENGTH_PROMPT = f"Words: {self.env_config_lookup[env_id]['max_tokens']}."

    def _build_turn_state_content(self, turn, turn_number, env_id, include_warning=False):
        warning = ""
        if include_warning:
            warning = "Nothing done.\\n"
        content = f"\\nRound {turn_number}:\\n"
        content += (
            f"See:\\n{turn['state']}\\n{warning}" f"{turn['actions_left']} to go. {FORMAT_PROMPT} {LENGTH_PROMPT}\\n"
        )

    def _build_samples_full(self):
        messages = [{"role": "system", "content": self._build_system_content(0)}, {"role": "user", "content": ""}]
        messages.append({"role": "user", "content": f"Earned:\\n{content['reward']}\\n"})
"""
MEMORY = """
class SimpleMemory:
    def build_user_content(self, history, turn_idx, history_start, turn_offset, format_prompt, length_prompt):
        content = ""
        if history_start < turn_idx:
            completed_steps = turn_idx + turn_offset
            history_length = turn_idx - history_start
            content += f"{completed_steps} done, {history_length} told. "
            content += "Here:\\n"
            for h_idx in range(history_start, turn_idx):
                actual_turn = h_idx + 1 + turn_offset
                h_turn = history[h_idx]
                content += f"{actual_turn} saw {h_turn.get('state', '')}\\n"
                content += f"{actual_turn} did {h_turn.get('llm_response', '')}\\n"
                if 'reward' in h_turn:
                    content += f"{actual_turn} got {h_turn['reward']}\\n"
                content += "--\\n"
        actual_turn = turn_idx + 1 + turn_offset
        current_turn_prefix = "Now " if history_start < turn_idx else ""
        warning = ""
        if include_warning:
            warning = "Nothing done.\\n"
        separator = "\\n" if content else ""
        content += f"{separator}{current_turn_prefix}({actual_turn}):\\n"
        content += (
            f"See:\\n{history[turn_idx]['state']}\\n{warning}"
            f"{history[turn_idx]['actions_left']} to go. {format_prompt} {length_prompt}\\n"
        )
        return content
"""


def checkout(tmp_path: Path, context: str, memory: str | None = None) -> Path:
    folder = tmp_path / "RAGEN"
    manager = folder / "ragen" / "llm_agent" / "ctx_manager.py"
    (manager.parent / "memory").mkdir(parents=True)
    (folder / "config").mkdir()
    manager.write_text("import nothing_that_exists\n" + context, "utf-8")
    if memory is not None:
        (manager.parent / "memory" / "simple_memory.py").write_text(memory, "utf-8")
    (folder / "config" / "envs.yaml").write_text("custom_envs: {A: {env_instruction: 'Do {it}.'}, B: {}}", "utf-8")
    return folder


def test_a_checkout_of_2025_is_read(tmp_path):
    read = read_prompts(checkout(tmp_path, OF_2025))
    assert (read.system, read.instruction_in, read.join, read.trim) == ("Be good. ", "user", "", False)
    assert read.first_turn == read.later_turn == "\nRound {turn}:\n{state}"
    assert read.state == "See:\n{observation}\n{actions_left} to go. Say: {format}. {length}\n"
    assert read.reward == "Earned:\n{reward:.2f}\n"
    assert (read.length, read.invalid) == ("Words: {max_tokens}.", "")
    assert (read.reply_format.think, read.reply_format.answer) == ("think, then answer", "answer")
    assert (read.instruction.symbols, read.instruction.symbol) == ("\nsymbols\n{symbols}", "{symbol} = {meaning}")
    assert read.instruction.symbol_join == "; "
    actions = "\nactions\n{actions}\nmost {max_actions}, by {action_sep} {{x}}\n"
    assert (read.instruction.actions, read.instruction.action_join) == (actions, " or ")
    assert read.instructions == {"A": "Do {it}."}


def test_a_checkout_of_2026_is_read(tmp_path):
    read = read_prompts(checkout(tmp_path, OF_2026, MEMORY))
    assert (read.system, read.instruction_in) == ("Be good. ", "system")
    assert read.state == "See:\n{observation}\n{invalid}{actions_left} to go. {format} {length}\n"
    assert (read.invalid, read.instruction.coordinates) == ("Nothing done.\n", "\nrows and columns")
    assert read.window.before == "{completed} done, {shown} told. Here:\n"
    assert read.window.turn == "{turn} saw {observation}\n{turn} did {reply}\n{reward}--\n"
    assert (read.window.reward, read.window.after) == ("{turn} got {reward}\n", "")
    assert (read.window.asked, read.window.alone) == ("\nNow ({turn}):\n{state}", "({turn}):\n{state}")


def test_the_command_writes_what_a_configuration_takes(tmp_path, capsys):
    folder, out = checkout(tmp_path, OF_2026, MEMORY), tmp_path / "out.yaml"
    assert main(["import", str(folder), str(out)]) == 0
    assert f"agent_proxy.prompts={out}" in capsys.readouterr().out
    assert PromptTemplate.load(out) == read_prompts(folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class ContextManager", "class ContextManager(", "cannot be read as Python"),
        ("content['state']", "content.state()", "the state of a turn"),
        ("FORMAT_PROMPT =", "FORM =", "FORMAT_PROMPT"),
        ('f"Be good. "', "self.system()", "the system message"),
        ("grid_vocab_str = ", "vocab = ", "grid_vocab_str"),
        ("{content['reward']:.2f}", "{round(content['reward'], 2)}", "the reward of a turn"),
    ],
)
def test_a_checkout_that_makes_its_prompts_otherwise_is_refused_and_nothing_written(tmp_path, capsys, old, new, said):
    assert old in OF_2025
    folder, out = checkout(tmp_path, OF_2025.replace(old, new)), tmp_path / "out.yaml"
    assert main(["import", str(folder), str(out)]) == 2
    assert said in capsys.readouterr().err and not out.exists()


def test_a_folder_that_is_no_checkout_is_refused(tmp_path, capsys):
    assert main(["import", str(tmp_path), str(tmp_path / "out.yaml")]) == 2
    assert "is no RAGEN checkout" in capsys.readouterr().err
