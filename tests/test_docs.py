"""The documentation: what is generated is not stale, what is listed is there, and what is shown works."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ragen
from ragen.errors import RagenError

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS))

import gallery  # noqa: E402


def test_no_page_that_is_written_from_the_code_is_stale():
    """In a process of its own, since other tests register types and change terminals."""
    ran = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", [*gallery.SHOWN, "report"])
def test_the_present_version_would_draw_each_picture_with_the_same_text(name, tmp_path):
    """``python docs/gallery.py`` draws them; what is not installed here is skipped."""
    try:
        text = gallery.results(tmp_path) if name == "report" else gallery.seen(name)[1]
    except (RagenError, ImportError) as error:
        pytest.skip(str(error))
    assert text == json.loads(gallery.TEXTS.read_text("utf-8"))[name]


def test_the_tutorials_policy_plays_the_tutorials_environment_and_always_wins(tmp_path):
    page = (DOCS / "tutorial.md").read_text("utf-8")
    env, policy = re.findall(r"```python\n(.*?)```", page, re.S)
    (config,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (command,) = re.findall(r"^    ragen (rollout .* actor.backend=halving:Halving)$", page, re.M)
    for name, text in (("number_hunt/env.py", env), ("halving.py", policy), ("hunt.yaml", config)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    words = [sys.executable, "-m", "ragen", *command.split(), "output_dir=out"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out/rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 8 and all(row["success"] for row in rows)


def test_who_cites_or_reads_the_changes_finds_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == ragen.__version__ and citation["license"] == "MIT"
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {ragen.__version__}\n" in changes and "\n## Unreleased\n" in changes
