"""The report: what it shows, and that nothing a model or an environment writes is more than text in it."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from PIL import Image

from ragen.errors import ConfigError
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.config import wants_report
from ragen.llm_agent.report import (
    About,
    Episode,
    Report,
    contents,
    plots,
    render,
    trajectories,
    write_report,
)
from ragen.llm_agent.report.command import main as report_main
from ragen.llm_agent.report.command import report_of_rows
from ragen.llm_agent.report.page import SCRIPT, STYLE, policy
from ragen.llm_agent.report.text import attribute, shown
from ragen.llm_agent.rollout import command
from ragen.llm_agent.rollout.timeline import Mark, Span, Timeline
from ragen.llm_agent.tokens.sampled_tokens import RawReply
from ragen.parallel.stats import LaneStats
from ragen.statistics import mean

EVIL = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' onfocus='alert(1)' autofocus='",
    "</pre></div></details></main></body><svg onload=alert(1)>",
    "<!-- <style>*{display:none}</style>",
    "</title><base href='http://evil.example/'>",
    "javascript:alert(1)",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\u202etxt.exe\u2066 hidden \u200b\u200d\ufeff\x00\x1b[31m",
    "\ud800 half a pair",
    "<think>a</think></div><script>x</script><answer><iframe src=//evil.example></answer>",
    "]]>\u2028\u2029--><!--",
]


class Page(HTMLParser):
    """The elements and the text of a page, as a browser's parser sees them."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.words, self.stack = [], [], [], []
        self.feed(html)
        self.close()
        self.text = "".join(self.words)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in ("meta", "img", "input", "br", "rect", "path", "polyline"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if tag in self.stack:
            assert self.stack.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if not self.stack or self.stack[-1] not in ("script", "style"):
            self.words.append(data)


def turn(state="S", reply="<think>hm</think><answer>Up</answer>", actions=(1,), reward=1.0, **info):
    played = {"actions": list(actions), "reward": reward, "info": info}
    return {"state": state, "actions_left": 5, "llm_response": reply, "llm_raw_response": reply, **played}


def episode(*turns, tag="Maze", env_id=0, success=1.0, penalty=0, **others):
    history = [*turns, {"state": "the end", "actions_left": 3}]
    state = {"env_id": env_id, "group_id": env_id // 2, "tag": tag, "history": history, "penalty": penalty}
    state["metrics"] = {f"{tag}/success": success}
    return Episode(state, seed=7, **others)


def opened(html):
    """A page and, behind it, every trajectory as its script opens it."""
    bodies = re.findall(r'<script type="text/plain" class="pack" data-first="(\d+)">([^<]*)</script>', html)
    return html + "".join("".join(trajectories.unpacked(data)) for _, data in bodies)


def index_of(html):
    """The list's index, as its script reads it."""
    return json.loads(re.search(r'<script type="application/json" id="index">(.*?)</script>', html)[1])


def html_of(*episodes, **others):
    return opened(render(Report("A run", episodes=episodes, **others)))


def page_of(*episodes, **others):
    return Page(html_of(*episodes, **others))


# Untrusted text


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_what_models_and_environments_write_is_text_wherever_it_is_shown(evil):
    harmless = episode(turn("S", "R", ["a"], key="v"), tag="T", home="H", error="E")
    chat = [{"role": evil, "content": evil}, {"role": "assistant", "content": evil}]
    evils = episode(turn(evil, evil, [evil], **{evil: evil}), tag=evil, home=evil, error=evil, chat=chat)
    names = episode(turn(actions=[1]), names={1: evil}, tag="T")
    timeline = Timeline()
    timeline.add(Span(evil, evil, timeline.start, timeline.start + 1, evil))
    timeline.marks.append(Mark(evil, timeline.start, evil))
    lane = LaneStats(evil, 1, (evil,), 1, 1, 1.0, 1)
    page = page_of(
        evils,
        harmless,
        names,
        timeline=timeline,
        lanes=[lane],
        facts={evil: evil},
        seconds={evil: 1.0},
        notes=[evil],
        about=About({evil: evil}, evil, {evil: evil}),
        usage={"cost": 1.0},
    )
    told = {"about": About({"a": "b"}, "c", {"d": "e"}), "usage": {"cost": 1.0}}
    plain = page_of(harmless, episode(turn(), turn(), chat=chat[:0], error="E", success=0.0, tag="T"), **told)
    types = [value for tag, name, value in page.attributes if tag == "script" and name == "type"]
    assert page.tags.count("script") == 3 and types == ["application/json", "text/plain"]
    assert set(page.tags) <= {*plain.tags, "img", "br", "code", "span", "i", "button", "figure", "figcaption"}
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert all(value.startswith("data:image/png;base64,") for _, name, value in page.attributes if name == "src")
    assert not {name for _, name, _ in page.attributes} & {"href", "action", "formaction", "srcdoc", "autofocus"}


def test_a_page_full_of_evil_is_encodable_and_balanced():
    html = html_of(episode(*(turn(evil, evil, [evil]) for evil in EVIL)), notes=EVIL)
    html.encode("utf-8")
    assert Page(html).stack == []


def test_text_survives_unchanged_where_it_hides_nothing():
    for text in ("a < b && c > d", "日本語 שלום مرحبا 🙂", "line\n\n  indented\ttab", "<b>&amp;</b>"):
        assert Page(f"<p>{shown(text)}</p>").text == text


def test_characters_that_hide_or_rearrange_text_are_shown_as_codes():
    assert "U+202E" in shown("a\u202eb") and "\u202e" not in shown("a\u202eb")
    for character in "\x00\x1b\u200b\u2066\ufeff\ud800\U000e0041":
        assert f"U+{ord(character):04X}" in shown(character)
        assert character not in shown(character) and character not in attribute(character)


def test_huge_texts_are_cut_and_say_so():
    html = shown("x" * 1_000_000 + "the last words")
    assert len(html) < 30_000
    assert "characters left out" in html and "the last words" in html


def test_a_policy_lets_the_page_s_own_script_run_and_nothing_else():
    html = render(Report("A run"))
    assert f'content="{policy()}"' in html and "default-src 'none'" in policy()
    assert html.index("Content-Security-Policy") < html.index("<style>")
    assert "://" not in html and "@import" not in STYLE and "url(" not in STYLE
    assert all(word not in SCRIPT for word in ("document.write", "insertAdjacent", "outerHTML", "eval(", "Function("))
    assert SCRIPT.count("innerHTML") == 1 == SCRIPT.count("made.innerHTML = body")
    assert "connect-src" not in policy() and "fetch(" not in SCRIPT


# What is shown


def test_thought_answer_and_what_stands_around_them_are_told_apart():
    html = html_of(episode(turn(reply="<think>left is a wall</think> so <answer>Up</answer> bye")))
    blocks = dict(re.findall(r'<div class="text (\w+)"[^>]*>(.*?)</div>', html))
    assert blocks["thought"] == "left is a wall" and blocks["answer"] == "Up"
    assert re.findall(r'class="text rest"[^>]*>(.*?)</div>', html) == [" so ", " bye"]


def test_a_malformed_reply_is_shown_as_it_is():
    page = page_of(episode(turn(reply="<think>never ends", actions=[]), penalty=-0.1))
    assert "<think>never ends" in page.text and "nothing was executed" in page.text
    assert ("p", "class", "bad") in page.attributes


def test_a_tag_that_the_parser_put_is_not_shown():
    blocks = r'<div class="text [^>]*data-label="([^"]*)">(.*?)</div>'

    def said(text):
        reply = RawReply(f"<think>{text}", tag_added=True)
        return re.findall(blocks, html_of(episode(turn(reply=reply))))

    assert said("never ends") == [("malformed reply", "never ends")]
    assert said("hm</think><answer>Up</answer>") == [("thought", "hm"), ("answer", "Up")]
    for text in ("<answer>Up</answer>", "hm <answer>Up</answer>"):
        assert [(label, unescape(shown)) for label, shown in said(text)] == [("malformed reply", text)]
    assert said("<think>hm") == [("malformed reply", "&lt;think&gt;hm")]  # RAGEN's quirks put their tag there, too
    assert said("") == [] and "the reply is empty" in html_of(episode(turn(reply=RawReply("<think>", tag_added=True))))


@pytest.mark.parametrize("tag", ["<think>", "<answer>"])
def test_megabytes_of_tags_that_never_close_are_shown_as_any_malformed_reply(tag):
    """A search that starts again at every tag would take hours."""
    html = html_of(episode(turn(reply=tag * 300_000, actions=[])))
    assert 'data-label="malformed reply"' in html and "characters left out" in html and len(html) < 200_000


def test_a_thought_that_never_ends_does_not_hide_the_answer():
    html = html_of(episode(turn(reply="<think>hm <answer>Up</answer> bye")))
    assert re.findall(r'class="text (\w+)"[^>]*>(.*?)</div>', html) == [
        ("rest", "&lt;think&gt;hm "),
        ("answer", "Up"),
        ("rest", " bye"),
    ]


def test_executed_actions_have_their_names():
    page = page_of(episode(turn(actions=[1, 3, 9]), names={1: "Up", 3: "Left"}))
    assert "executed: UpLeft9" in page.text


def test_a_program_keeps_its_lines_where_it_was_answered_and_where_it_was_executed():
    program = "def f(x):\n    return x"
    html = html_of(episode(turn(reply=f"<think>a\nb</think><answer>{program}</answer>", actions=[program, "Up"])))
    assert re.findall(r'class="text ([\w ]+)"', html) == ["thought", "answer lines"]
    assert f'executed: <span class="lines">{program}</span><span>Up</span>' in html


def test_boards_become_grids_and_other_texts_stay_texts():
    grid = html_of(episode(turn("#####\n#_P_#\n#_X_#\n#####")))
    assert '<div class="grid" style="grid-template-columns:repeat(5,auto)">' in grid
    assert grid.count('<span class="c') == 20
    spaced = html_of(episode(turn("P _ _\n_ O G")))
    assert "repeat(3,auto)" in spaced
    prose = html_of(episode(turn("You see\na wall.")))
    assert 'class="grid"' not in prose and "You see\na wall." in prose


def test_a_box_on_its_goal_is_a_tile_of_the_board_and_wide_letters_are_none():
    assert 'class="grid"' in html_of(episode(turn("#####\n#P√_#\n#####")))
    assert 'class="grid"' not in html_of(episode(turn("你好\n世界")))


def test_a_single_value_is_a_number_and_no_histogram():
    page = html_of(*(episode(turn(), env_id=n, success=1.0) for n in range(3)))
    assert '<p class="single">1<span> in all 3 episodes</span></p>' in page


def test_rewards_are_those_of_episodes_that_can_be_judged():
    cut = episode(turn(reward=-7.0), env_id=1, success=0.0, error="503")
    page = html_of(episode(turn(reward=2.0)), cut, episode(turn(reward=5.0), tag="Cut", env_id=2, error="503"))
    assert re.findall(r'data-label="reward">([^<]*)<', page) == ["2.000", "-", "2.000"]
    assert "Cut: reward" not in page and "Cut: turns" in page


def test_a_mean_reward_is_rounded_as_on_the_terminal():
    rewards = [0.9, 0.3, -0.1, 1.0, -0.1, 0.5, 0.5, 0.5]  # added up one by one, their mean is below 0.4375
    page = html_of(*(episode(turn(reward=reward), env_id=n) for n, reward in enumerate(rewards)))
    assert re.findall(r'data-label="reward">([^<]*)<', page) == ["0.438"] == [f"{mean(rewards):.3f}"]


def test_a_last_board_is_drawn_in_the_colours_of_the_earlier_ones():
    played = episode(turn("#P_\n#OX"), turn("#_P\n#_X"))
    played.state["history"][-1]["state"] = "#_S\n#__"
    first, second, last = (
        dict(re.findall(r'class="(c\d)">(.)', grid))
        for grid in re.findall(r'<div class="grid".*?</div>', html_of(played))
    )
    colour = {symbol: kind for kind, symbol in first.items()}
    assert {kind: symbol for kind, symbol in second.items() if symbol in "PX"} == {colour["P"]: "P", colour["X"]: "X"}
    assert colour["#"] in last and "S" in last.values() and not {colour["P"], colour["X"]} & set(last)


def test_the_prompt_of_every_turn_is_there_on_demand_and_once():
    chat = [
        {"role": role, "content": words}
        for role, words in (
            ("system", "be good"),
            ("user", "one"),
            ("assistant", "a"),
            ("user", "two"),
            ("assistant", "b"),
        )
    ]
    asked = {1: [{"role": "user", "content": "the last turn alone"}]}
    html = html_of(episode(turn(), turn(), chat=chat))
    assert re.findall(r'data-messages="(\d)"', html) == ["2", "4"] and html.count("be good") == 1
    windowed = html_of(episode(turn(), turn(), chat=chat, asked=asked))
    assert re.findall(r'<button[^>]*data-(\w+)="(\d)"', windowed) == [("messages", "2"), ("prompt", "1")]
    assert '<div data-prompt="1">' in windowed and "the last turn alone" in windowed


def test_it_says_what_the_run_is_of_and_what_it_used():
    about = About({"model": "a-model", "seeds": "1 to 4"}, "ragen eval actor.model=a-model", {"mode": "val"})
    replies = [{"prompt_tokens": 100, "completion_tokens": 20, "cost": 0.5, "finish_reason": "stop"}]
    page = page_of(episode(turn(), replies=replies), about=about)
    assert "modela-model" in page.text and "commandragen eval actor.model=a-model" in page.text
    assert "100prompt tokens" in page.text and "$0.5000cost" in page.text and "finish reasons: stop 1" in page.text
    counted = page_of(episode(turn(), replies=replies), usage={"requests": 3, "prompt_tokens": 7000})
    assert "3requests" in counted.text and "7,000prompt tokens" in counted.text


def test_the_turn_in_which_an_environment_fails_is_no_invalid_reply():
    failing, mute = (episode(turn(), turn(actions=[]), success=0.0) for _ in range(2))
    failing.state["env_error"] = "ValueError: boom"
    assert (failing.invalid, mute.invalid) == (False, True)


def test_images_are_part_of_the_page_and_bounded(monkeypatch):
    picture = turn("<images>") | {"images": [Image.new("RGB", (4, 4), "red")]}
    page = page_of(episode(picture))
    assert [tag for tag, name, _ in page.attributes if name == "src"] == ["img"]
    assert "<images>" not in page.text
    monkeypatch.setattr(trajectories, "MOST_IMAGES", 10)
    assert "An image, left out" in page_of(episode(picture)).text


def test_bodies_that_have_no_room_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(trajectories, "MOST_PACKED", 1_000)
    monkeypatch.setattr(trajectories, "PACK", 1_000)
    html = render(Report("r", episodes=[episode(turn("x" * 1_000), env_id=n) for n in range(9)]))
    kept = opened(html).count('class="turns"')
    assert 0 < kept < 9 and len(index_of(html)["rows"]) == 9
    assert f"{9 - kept} are listed alone" in html


def test_trajectories_carry_what_they_are_filtered_by():
    crashed = episode(turn(), tag="B", env_id=2, success=0.0)
    crashed.state["env_error"] = "it raised"
    index = index_of(
        html_of(
            episode(turn(), tag="A", home="worker 1", replies=[{"cut_off": True}, {"empty": True}]),
            episode(turn(actions=[]), tag="B", env_id=1, success=0.0, penalty=-0.1, error="down"),
            crashed,
        )
    )
    assert [name for name, *_ in index["filters"]] == ["tag", "outcome", "invalid", "kinds", "lane"]
    assert [values for values, _ in index["rows"]] == [
        ["A", "success", "no", ["cut off", "empty"], "worker 1"],
        ["B", "missing reply", "yes", [], "main"],
        ["B", "env error", "no", [], "main"],
    ]
    assert [part if isinstance(part, str) else part[0] for part in index["rows"][1][1]] == [
        *(
            "B",
            "env 1",
            "group 0, seed 7",
            "missing reply",
            "reward 1",
            "penalty -0.1",
            "1 turn",
            "invalid reply",
            "main",
        )
    ]


def test_success_is_counted_per_tag_with_an_interval():
    page = page_of(*(episode(turn(), env_id=n, success=float(n < 3)) for n in range(4)), episode(turn(), tag="Other"))
    assert "Maze4475.0%" in page.text and "Other11100.0%" in page.text


@pytest.mark.parametrize("low, high", [(0, 1), (0.5, 0.5001), (-3, 1e6), (7, 7), (0, 64)])
def test_axes_have_a_few_round_ticks_around_what_is_shown(low, high):
    ticks = plots.ticks_of(low, high)
    assert ticks[0] <= low + 1e-6 and ticks[-1] >= high - 1e-6 and 2 <= len(ticks) <= 7 and ticks == sorted(set(ticks))


def test_the_timeline_has_a_row_per_track_in_order_and_marks_restarts():
    timeline = Timeline()
    for track in ("worker 10", "worker 2", "main", "shard 0", "generator", "rollout"):
        timeline.add(Span(track, "environments", timeline.start, timeline.start + 1))
    timeline.marks.append(Mark("worker 2", timeline.start + 0.5, "restarted"))
    html = render(Report("r", timeline=timeline))
    assert re.findall(r'class="track"><span>([\w ]+)</span>', html) == [
        *("rollout", "generator", "shard 0", "main", "worker 2", "worker 10")
    ]
    assert html.count('<rect class="restart"') == 1


@pytest.mark.parametrize("earlier", [0, 2])
def test_the_times_of_a_resumed_run_say_for_how_many_trajectories_they_are(earlier):
    episodes = [episode(turn(), env_id=n) for n in range(3)]
    timeline = Timeline()
    timeline.add(Span("worker 0", "environments", timeline.start, timeline.start + 7.5))
    page = Page(render(Report("r", episodes=episodes, timeline=timeline, earlier=earlier))).text
    assert ("seconds since the last start, for 1 of 3 trajectories" in page) == bool(earlier)
    assert ("Since the last start" in page) == bool(earlier)
    assert "7.5seconds" in page


def test_a_timeline_of_very_many_spans_stays_small():
    timeline = Timeline()
    for n in range(50_000):
        timeline.add(Span("worker 0", "environments", timeline.start + n, timeline.start + n + 0.5))
    html = render(Report("r", timeline=timeline))
    assert html.count('<rect class="environments"') <= 1_300


def test_wide_tables_can_be_scrolled_with_the_keyboard_and_show_that_there_is_more():
    page = page_of(episode(turn()), lanes=[LaneStats("main", 1, ("maze",), 1, 1, 1.0, 0)])
    assert [value for _, name, value in page.attributes if name == "tabindex"] == ["0", "0"]
    assert [value for _, name, value in page.attributes if name == "aria-label"] == ["Success per tag", "Workers"]
    (rule,) = re.findall(r"\.wide {(.*?)}", STYLE, re.S)
    assert "overflow-x: auto" in rule and rule.count("no-repeat local") == rule.count("no-repeat scroll") == 2


def test_a_report_of_nothing_is_a_page_too():
    assert "A run" in page_of().text


# Timelines


def test_time_in_which_several_worked_counts_once():
    timeline = Timeline()
    for start, end in ((0, 2), (1, 3), (5, 6), (5.2, 5.4)):
        timeline.add(Span("a", "environments", start, end))
    assert timeline.seconds(["environments", "generation"]) == {"environments": 4, "generation": 0}


def test_what_lanes_did_in_a_step_is_worked_out_from_their_accounts():
    timeline = Timeline()
    before = [LaneStats("worker 0", 1, (), 1, 10, 1.0, 0)]
    after = [LaneStats("worker 0", 2, (), 1, 14, 1.5, 1), LaneStats("main", 3, (), 0, 0, 0.0, 0)]
    timeline.add_lanes(before, after, 100.0, 102.0)
    assert timeline.spans == [Span("worker 0", "environments", 100.0, 100.5, "4 turns")]
    assert timeline.marks == [Mark("worker 0", 102.0, "restarted")]


# The command and the settings


@pytest.mark.models
def test_the_command_writes_a_report_beside_the_trajectories(tmp_path, capsys):
    tags = "es_manager.val.env_configs.tags=[VisualSimpleSokoban,Countdown]"
    groups = ["es_manager.val.env_configs.n_groups=[1,1]", "es_manager.val.env_groups=2", "es_manager.val.group_size=2"]
    others = ["report=true", f"output_dir={tmp_path}", "agent_proxy.max_turn=2", "es_manager.use_multiprocessing=false"]
    assert command.main(["--config-name", "base", tags, *groups, *others]) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out
    html = (tmp_path / "report.html").read_text("utf-8")
    page = Page(opened(html))
    lines = (tmp_path / "rollouts.jsonl").read_text("utf-8").splitlines()
    assert len(index_of(html)["rows"]) == len([json.loads(line) for line in lines]) == 4
    assert "ragen 0" in page.text and "seeds123" in page.text
    assert page.tags.count("img") >= 4
    assert "main" in page.text and "generation" in page.text


@pytest.mark.models
def test_a_report_of_rows_names_actions_as_the_run_did(tmp_path):
    assert command.main(["--config-name", "_2_sokoban", "--limit", "1", f"output_dir={tmp_path}"]) == 0
    report = report_of_rows(tmp_path / "rollouts.jsonl")
    assert {episode.names[1] for episode in report.episodes} == {"Up"}


@pytest.mark.models
def test_a_report_of_rows_keeps_the_one_that_the_run_wrote(tmp_path, capsys):
    assert command.main(["--config-name", "_1_bandit", "--limit", "1", "report=true", f"output_dir={tmp_path}"]) == 0
    page, kept = tmp_path / "report.html", tmp_path / "report_of_run_1.html"
    before = page.read_bytes()
    assert report_main([str(tmp_path)]) == 0 == report_main([str(tmp_path)])
    assert capsys.readouterr().out.count(f"is now {kept}") == 1
    assert kept.read_bytes() == before and b"Where the time went" not in page.read_bytes()
    assert len(list(tmp_path.glob("report*"))) == 2


@pytest.mark.models
def test_prompts_without_their_oldest_turns_are_shown_as_they_were_asked(tmp_path, monkeypatch):
    asked, reports, generate = [], [], ScriptedBackend.generate

    def recorded(backend, requests, sampling):
        asked.extend(requests)
        return generate(backend, requests, sampling)

    def kept(*given, **named):
        reports.append(Report(*given, **named))
        return reports[-1]

    monkeypatch.setattr(ScriptedBackend, "generate", recorded)
    monkeypatch.setattr(contents, "Report", kept)
    options = ["--config-name", "_2_sokoban", "--limit", "2", "report=true", f"output_dir={tmp_path}"]
    small = ["actor_rollout_ref.rollout.max_model_len=1000", "actor.scripted.malformed=0.9", "agent_proxy.max_turn=8"]
    assert command.main([*options, *small]) == 0
    rows = report_of_rows(tmp_path / "rollouts.jsonl")
    assert sum(request.turns_left_out > 0 for request in asked) > 2
    for request in asked:
        here = [e for report in (reports[0], rows) for e in report.episodes if e.state["env_id"] == request.env_id]
        of_run, of_rows = (list(episode.prompt(request.turn)) for episode in here)
        assert of_run == list(request.messages)
        if not request.turns_left_out:
            assert of_rows == of_run
            continue
        (system, first, *others), (_, _, note, oldest, *later) = of_run, of_rows
        assert f"{request.turns_left_out};" in note["content"] and (of_rows[0], later) == (system, others)
        assert first["content"].endswith(oldest["content"].partition("\n")[2][-100:])


@pytest.mark.models
@pytest.mark.parametrize("tag", ["<think>", "<answer>"])
def test_the_run_and_its_rows_show_replies_as_the_model_wrote_them(tag, tmp_path):
    thinks = f"agent_proxy.enable_think={str(tag == '<think>').lower()}"
    options = ["--config-name", "_2_sokoban", "--limit", "2", "report=true", f"output_dir={tmp_path}"]
    assert command.main([*options, "actor.scripted.malformed=0.5", thinks]) == 0
    rows = tmp_path / "rollouts.jsonl"
    pages = [(tmp_path / "report.html").read_text("utf-8"), render(report_of_rows(rows))]
    bodies = ["".join(re.findall(r'<div class="text (?!message).*?</div>', opened(page))) for page in pages]
    shown = re.findall(r'data-label="malformed reply">(.*?)</div>', bodies[0])
    replies = [reply for line in rows.read_text("utf-8").splitlines() for reply in json.loads(line)["raw_replies"]]
    assert bodies[0] == bodies[1]
    assert shown and {unescape(reply) for reply in shown} < set(replies)
    assert "from the prompt" not in bodies[0]


@pytest.mark.parametrize("config", [{"report": True}, {"output": {"report": True}}])
def test_a_report_is_asked_for_by_either_key(config):
    assert wants_report(config) and not wants_report({})


def test_other_values_are_refused():
    for value in ("yes please", "live"):
        with pytest.raises(ConfigError, match="'report'"):
            wants_report({"report": value})


def test_a_report_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new" / "report.html"
    for title in ("first", "second"):
        write_report(Report(title), path)
    assert "second" in path.read_text("utf-8") and [file.name for file in path.parent.iterdir()] == ["report.html"]
