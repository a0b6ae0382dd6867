"""The documentation: what is generated is not stale, what is listed is there, and what is shown works."""

import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml

import ragen
from ragen.llm_agent.config.loading import config_keys, load_config, unread_keys

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NOT_READ = {"model_path"}  # other keys take its value
EXAMPLE = ROOT / "examples/number_hunt/number_hunt/env.py"


@pytest.fixture(scope="module")
def generator():
    """``docs/generate.py`` as a module."""
    spec = spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_no_page_that_is_written_from_the_code_is_stale():
    """In a process of its own, since other tests register types and change terminals."""
    ran = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_error_has_a_cause_and_a_cure(generator):
    classes = generator.error_classes()
    assert set(generator.CURES) == set(classes), "docs/generate.py: CURES has to say what to do about each"
    assert all(kind.__doc__ and kind.__doc__.strip().endswith(".") for kind in classes.values())
    assert len(classes) > 15


def without_names(key):
    key = re.sub(r"^(es_manager|seed)\.(train|val)\b", r"\1.<mode>", key)
    return re.sub(r"^custom_envs\.[^.]+", "custom_envs.<tag>", key)


@pytest.mark.parametrize("name", ["base", "tiny", "parallel_envs", "evaluate_api_llm"])
def test_every_key_of_a_configuration_is_read_by_the_code(generator, name):
    read = set(generator.configuration_keys.keys())
    keys = [without_names(key) for key in config_keys(load_config(name))]
    leaves = {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}
    inside = {key for key in leaves if any(key.startswith(f"{section}.") for section in read)}
    assert leaves - read - inside - NOT_READ == set()


def test_no_key_that_the_code_reads_counts_as_misspelt_or_ignored(generator):
    for key in set(generator.configuration_keys.keys()):
        nested = {}
        for name in reversed(key.split(".")):
            nested = {name: nested}
        assert unread_keys({"es_manager": {}, **nested}) == []


def test_what_the_engine_is_told_is_among_the_keys_with_kind_default_and_meaning(generator):
    page = generator.configuration_page()
    assert "| `es_manager.max_restarts` | whole number | `3` | how often an idle worker may die" in page
    assert "| `actor.scripted.malformed` | number |" in page
    assert "| `agent_proxy.rollout_filter_type` |" in page


def test_a_key_behind_a_function_a_loop_or_a_constant_is_found(generator, monkeypatch):
    import ast

    found = generator.configuration_keys
    source = (
        "def read(config, name):\n    return setting(config, f'{SECTION}.{name}', int, 3)\n"
        "def all_of(config):\n"
        "    a = read(config, 'first')\n"
        "    return a, [read(config, each) for each in ('second', 'third')], setting(config, OTHER, bool)\n"
    )
    module = found.Module("m", ast.parse(source), {"SECTION": "a_section", "OTHER": "b.c"})
    keys = {key.name: key for key in found._Scan(module).run()}
    assert set(keys) == {"a_section.first", "a_section.second", "a_section.third", "b.c"}
    assert keys["b.c"].kind == "true or false" and keys["b.c"].default is None


def test_comments_of_several_lines_are_one_meaning(generator):
    lines = ["a:", "  b: 1   # first", "         # second", "  # of the next", "  c: {d: 1}  # third"]
    assert dict(generator.configuration_keys.comments(lines)) == {"a.b": "first second", "a.c": "third"}


def pages_of(nav):
    for entry in nav:
        (target,) = entry.values()
        yield from pages_of(target) if isinstance(target, list) else [target]


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    listed = list(pages_of(nav))
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_tutorials_environment_is_the_examples():
    shown, _ = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text("utf-8"), re.S)
    names, example = {}, {}
    exec(compile(shown, "tutorial", "exec"), names)
    spec = spec_from_file_location("number_hunt_example", EXAMPLE)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for seed in range(5):
        for kind, config, seen in (
            (names["NumberHunt"], names["NumberHuntConfig"](), names),
            (module.NumberHunt, module.NumberHuntConfig(), example),
        ):
            env = kind(config)
            results = [env.reset(seed), *(env.step(text) for text in ("10", "I say 3.", "none"))]
            seen[seed] = [each if isinstance(each, str) else (*each[:3], each[3]["success"]) for each in results]
        assert names[seed] == example[seed]


def test_the_tutorials_configuration_is_the_examples():
    (shown,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "tutorial.md").read_text("utf-8"), re.S)
    theirs = yaml.safe_load((ROOT / "examples/number_hunt/config/hunt.yaml").read_text("utf-8"))
    mine = yaml.safe_load(shown)
    assert mine["custom_envs"]["NumberHunt"].pop("env_type") == "number_hunt.env:NumberHunt"
    assert theirs["custom_envs"]["NumberHunt"].pop("env_type") == "number_hunt"
    assert mine == theirs


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
