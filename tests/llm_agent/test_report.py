"""The report: what it shows, and that nothing a model or an environment writes is more than text in it."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from PIL import Image

from envlanes.stats import LaneStats
from ragen.llm_agent.report import (
    About,
    Episode,
    Report,
    render,
    trajectories,
    write_report,
)
from ragen.llm_agent.report.command import main as report_main
from ragen.llm_agent.report.command import report_of_rows
from ragen.llm_agent.report.page import SCRIPT, STYLE, policy
from ragen.llm_agent.rollout import command
from ragen.llm_agent.rollout.timeline import Mark, Span, Timeline

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


def test_a_policy_lets_the_page_s_own_script_run_and_nothing_else():
    html = render(Report("A run"))
    assert f'content="{policy()}"' in html and "default-src 'none'" in policy()
    assert html.index("Content-Security-Policy") < html.index("<style>")
    assert "://" not in html and "@import" not in STYLE and "url(" not in STYLE
    assert all(word not in SCRIPT for word in ("document.write", "insertAdjacent", "outerHTML", "eval(", "Function("))
    assert SCRIPT.count("innerHTML") == 1 == SCRIPT.count("made.innerHTML = body")
    assert "connect-src" not in policy() and "fetch(" not in SCRIPT


# What is shown


@pytest.mark.parametrize("tag", ["<think>", "<answer>"])
def test_megabytes_of_tags_that_never_close_are_shown_as_any_malformed_reply(tag):
    """A search that starts again at every tag would take hours."""
    html = html_of(episode(turn(reply=tag * 300_000, actions=[])))
    assert 'data-label="malformed reply"' in html and "characters left out" in html and len(html) < 200_000


def test_rewards_are_those_of_episodes_that_can_be_judged():
    cut = episode(turn(reward=-7.0), env_id=1, success=0.0, error="503")
    page = html_of(episode(turn(reward=2.0)), cut, episode(turn(reward=5.0), tag="Cut", env_id=2, error="503"))
    assert re.findall(r'data-label="reward">([^<]*)<', page) == ["2.000", "-", "2.000"]
    assert "Cut: reward" not in page and "Cut: turns" in page


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


def test_images_are_part_of_the_page():
    picture = turn("<images>") | {"images": [Image.new("RGB", (4, 4), "red")]}
    page = page_of(episode(picture))
    assert [tag for tag, name, _ in page.attributes if name == "src"] == ["img"]
    assert "<images>" not in page.text


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
def test_a_report_of_rows_keeps_the_one_that_the_run_wrote(tmp_path, capsys):
    assert command.main(["--config-name", "_1_bandit", "--limit", "1", "report=true", f"output_dir={tmp_path}"]) == 0
    page, kept = tmp_path / "report.html", tmp_path / "report_of_run_1.html"
    before = page.read_bytes()
    assert report_main([str(tmp_path)]) == 0 == report_main([str(tmp_path)])
    assert capsys.readouterr().out.count(f"is now {kept}") == 1
    assert kept.read_bytes() == before and b"Where the time went" not in page.read_bytes()
    assert len(list(tmp_path.glob("report*"))) == 2


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


def test_a_report_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new" / "report.html"
    for title in ("first", "second"):
        write_report(Report(title), path)
    assert "second" in path.read_text("utf-8") and [file.name for file in path.parent.iterdir()] == ["report.html"]
