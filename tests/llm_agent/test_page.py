"""The page of a run: what it is made of, and that what a model or an environment writes is only text in it."""

import json
import re
from html.parser import HTMLParser

import pytest

from ragen.llm_agent.rollout import command
from ragen.results.page import main, render, unpacked

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
    "{{ 7 * 7 }}{% raw %}",
    "]]>\u2028\u2029--><!--",
]


class Page(HTMLParser):
    """The elements of a page and its text outside of scripts and styles, as a browser's parser sees them."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self._inside = [], "", ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, *sorted(name for name, _ in attributes)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        self.text += data if self._inside not in ("script", "style") else ""


def row(state="S", reply="<think>hm</think><answer>Up</answer>", tag="Maze", env_id=0, success=True, **more):
    chat = [{"role": "user", "content": state}, {"role": "assistant", "content": reply}]
    return {
        "env_id": env_id,
        "group_id": env_id // 2,
        "tag": tag,
        "seed": 7,
        "messages": chat,
        "actions": [[1]],
        "rewards": [1.0],
        "infos": [{}],
        "invalid": [False],
        "success": success,
    } | more


def write(folder, rows, about=None, **run):
    """The files of a run; returns that of its rows."""
    folder.mkdir(exist_ok=True)
    path = folder / "rollouts.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), "utf-8")
    (folder / "run.json").write_text(json.dumps({**(about or {}), "run": run}), "utf-8")
    return path


def listed(html):
    return json.loads(re.search(r'<script type="application/json" id="rows">(.*?)</script>', html)[1])


def trajectories(html):
    packs = re.findall(r'<script type="text/plain" class="pack" data-first="\d+">([^<]*)</script>', html)
    return [each for pack in packs for each in unpacked(pack)]


@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_texts_make_no_elements_wherever_they_are_shown(text, tmp_path):
    def page(word, path):
        about = {"mode": word, "actor.model": word, word: word}
        rows = [row(word, word, tag=word, error=word), row(tag=word, env_id=1, env_error=word, last_state=word)]
        return render(write(path, rows, about, command=word, server=word), rows)

    evil, plain = page(text, tmp_path / "evil"), page("plain", tmp_path / "plain")
    assert Page(evil).elements == Page(plain).elements
    assert "\u202e" not in Page(evil).text and "\x1b" not in Page(evil).text and "49" not in Page(evil).text
    assert len(trajectories(evil)) == 2


def test_a_policy_lets_the_page_s_own_script_run_and_nothing_else(tmp_path):
    html = render(write(tmp_path, [row()]), [row()])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "default-src 'none'" in policy and "connect-src" not in policy and "script-src 'sha256-" in policy
    assert html.index("Content-Security-Policy") < html.index("<style>")
    forbidden = "innerHTML", "document.write", "insertAdjacent", "outerHTML", "eval(", "Function(", "fetch(", "@import"
    assert [word for word in (*forbidden, "url(", "://") if word in html] == []


def test_rows_are_listed_with_what_they_are_filtered_by(tmp_path):
    rows = [
        row(tag="A", replies=[{"cut_off": True}, {"empty": True}]),
        row(tag="B", env_id=1, success=False, error="down", invalid=[True], rewards=[0.1]),
        row(tag="B", env_id=2, success=False, env_error="ValueError: it raised"),
    ]
    html = render(write(tmp_path, rows), rows)
    names = ("tag", "outcome", "failure", "replies", "reward")
    assert [[each[name] for name in names] for each in listed(html)] == [
        ["A", "success", "", ["cut off", "empty"], 1.0],
        ["B", "missing reply", "", ["invalid reply"], 0.1],
        ["B", "env error", "ValueError", [], 1.0],
    ]
    assert trajectories(html) == rows
    assert re.findall(r'data-label="judged">([^<]*)<', html) == ["1/1", "0/2", "1/3"]


@pytest.mark.models
def test_a_run_writes_a_page_with_images_and_the_command_one_without(tmp_path, monkeypatch):
    tags = "es_manager.val.env_configs.tags=[VisualSimpleSokoban,Countdown]"
    groups = ["es_manager.val.env_configs.n_groups=[1,1]", "es_manager.val.env_groups=2", "es_manager.val.group_size=2"]
    folder = tmp_path / "outputs" / "one"
    others = ["report=true", f"output_dir={folder}", "agent_proxy.max_turn=2", "es_manager.use_multiprocessing=false"]
    words = ["--config-name", "base", tags, *groups, *others]
    assert command.main(words) == 0
    page = folder / "report.html"
    before, rows = page.read_text("utf-8"), (folder / "rollouts.jsonl").read_text("utf-8").splitlines()
    found = trajectories(before)
    assert [each for each in found if "images" in each] == found[:2]
    assert all(uri.startswith("data:image/png;base64,") for uri in found[0]["images"][0])
    own = [{key: value for key, value in each.items() if key != "images"} for each in found]
    assert own == list(map(json.loads, rows))
    page.unlink()
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0 == main([str(folder)])
    assert trajectories(page.read_text("utf-8")) == own
    times = json.loads((folder / "times.json").read_text("utf-8"))
    assert {"environments", "generation", "total"} <= times["seconds"].keys()
    assert times["work"] in Page(page.read_text("utf-8")).text


def test_without_a_run_the_command_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
