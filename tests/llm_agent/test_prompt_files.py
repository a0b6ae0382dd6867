"""Prompts as files: what may stand in one, what it changes, and how one is read off a checkout's source."""

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
from ragen.llm_agent.prompting.checkout import read_prompts
from ragen.llm_agent.prompting.conversation import ConversationBuilder, prompt_rows, shipped_instructions, tag_prompt
from ragen.llm_agent.prompting.replies import ControlTokens
from ragen.llm_agent.prompting.templates import DEFAULT_PROMPTS, PromptTemplate, WindowTemplate, escaped, fill

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
        ("version: 2", "version is 2"),
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


FACTORY = """
MEMORY_REGISTRY = {
    "alfworld": AlfWorldMemory,
}
"""
ADVENTURE_MEMORY = """
class AlfWorldMemory:
    CLEAN_PATTERNS = [r"^Banner\\.$", r"left: \\d+"]

    def _clean_observation(self, obs):
        cleaned = obs
        for pattern in self.CLEAN_PATTERNS:
            cleaned = re.sub(pattern, "", cleaned, flags=re.MULTILINE | re.DOTALL)
        cleaned = re.sub(r"\\n+", "\\n", cleaned).strip()
        return cleaned

    def _extract_task(self, state):
        match = re.search(r"Wanted: (.+)", state)
        return match.group(1).strip() if match else None

    def _extract_admissible_actions(self, state):
        match = re.search(r"Choose: (.+?)$", state, re.DOTALL)
        return match.group(1).strip() if match else None

    def _extract_action_from_response(self, llm_response):
        match = re.search("<answer>(.*)</answer>", llm_response, re.S)
        return match.group(1).strip() if match else llm_response.strip()

    def build_user_content(self, history, turn_idx, history_start, turn_offset, format_prompt, length_prompt):
        lines = []
        if history:
            if task:
                lines.append(f"Wanted is {task}")
        total_steps = turn_idx + turn_offset
        if total_steps > 0:
            lines.append(f"{total_steps} done")
        if history_start < turn_idx:
            history_count = turn_idx - history_start
            lines.append(f"the last {history_count} " "are")
            for h_idx in range(history_start, turn_idx):
                actual_turn = h_idx + 1 + turn_offset
                if len(clean_obs) > 40:
                    clean_obs = clean_obs[:39] + "~"
                lines.append(f"({actual_turn}) {clean_obs} => {action}")
        lines.append(f"Now {current_turn}: {clean_current}")
        if admissible:
            lines.append(f"Choose {admissible}")
        if include_warning and history[turn_idx].get('manager_invalid_action'):
            lines.append("Nothing done.")
        lines.append(f"{history[turn_idx]['actions_left']} to go. {format_prompt} {length_prompt}")
        return "; ".join(lines)
"""


def checkout(tmp_path: Path, context: str, memory: str | None = None, adventures: str | None = None) -> Path:
    folder = tmp_path / "RAGEN"
    manager = folder / "ragen" / "llm_agent" / "ctx_manager.py"
    (manager.parent / "memory").mkdir(parents=True)
    (folder / "config").mkdir()
    manager.write_text("import nothing_that_exists\n" + context, "utf-8")
    if memory is not None:
        (manager.parent / "memory" / "simple_memory.py").write_text(memory, "utf-8")
    if adventures is not None:
        (manager.parent / "memory" / "factory.py").write_text(FACTORY, "utf-8")
        (manager.parent / "memory" / "alfworld_memory.py").write_text(adventures, "utf-8")
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


def test_the_memory_of_alfworld_is_read(tmp_path):
    assert read_prompts(checkout(tmp_path, OF_2026, MEMORY)).windows == {}
    windows = read_prompts(checkout(tmp_path / "with", OF_2026, MEMORY, ADVENTURE_MEMORY)).windows
    assert windows == {
        "alfworld": WindowTemplate(
            before="{task}{played}the last {shown} are; ",
            turn="({turn}) {observation} => {reply}; ",
            reward="",
            after="",
            asked="{state}",
            alone="{task}{played}{state}",
            state="Now {turn}: {observation}; {admissible}{invalid}{actions_left} to go. {format} {length}",
            invalid="Nothing done.; ",
            task="Wanted is {task}; ",
            played="{completed} done; ",
            admissible="Choose {admissible}; ",
            find_task="Wanted: (.+)",
            find_admissible="(?s)Choose: (.+?)$",
            find_reply="(?s)<answer>(.*)</answer>",
            clean={
                r"(?ms)^Banner\.$": "",
                r"(?ms)left: \d+": "",
                r"\n+": "\n",
                r"\A\s+|\s+\Z": "",
            },
            longest=40,
            cut="~",
        )
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[:39]", "[:30]", "how long an earlier observation may be"),
        ('return "; ".join(lines)', "return lines", "the lines that build_user_content joins"),
        ('lines.append(f"Choose', 'lines.insert(0, f"Choose', "the lines task, played, before"),
        ("{total_steps} done", "{total_steps * 2} done", "total_steps \\* 2"),
        ("re.S)", "re.X)", "the flags of a pattern"),
        ('r"Wanted: (.+)"', "WANTED", "found 1 of it: \\['WANTED'\\]"),
    ],
)
def test_a_memory_that_tells_turns_otherwise_is_refused(tmp_path, old, new, said):
    assert ADVENTURE_MEMORY.count(old) == 1
    folder = checkout(tmp_path, OF_2026, MEMORY, ADVENTURE_MEMORY.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        read_prompts(folder)


def test_a_memory_that_is_not_known_is_refused_with_its_type(tmp_path):
    folder = checkout(tmp_path, OF_2026, MEMORY, ADVENTURE_MEMORY)
    factory = folder / "ragen" / "llm_agent" / "memory" / "factory.py"
    factory.write_text(FACTORY.replace("AlfWorldMemory", "ShopMemory"), "utf-8")
    with pytest.raises(ConfigError, match="alfworld: ShopMemory"):
        read_prompts(folder)


def test_the_command_writes_what_a_configuration_takes(tmp_path, capsys):
    folder, out = checkout(tmp_path, OF_2026, MEMORY, ADVENTURE_MEMORY), tmp_path / "out.yaml"
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
    assert "is not a RAGEN checkout" in capsys.readouterr().err
