"""What commands take from Hydra: --cfg, sweeps, and a choice of tags and groups; and what cannot be a section."""

import json
from pathlib import Path

import pytest

from ragen.config.command_line import folder_name, narrow
from ragen.config.loading import compose
from ragen.errors import ConfigError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.rollout import command, evaluation
from ragen.output import shown_settings, shown_words
from support.chat_server import chat_server, say

SMALL = [
    *("es_manager.val.env_groups=1", "es_manager.val.group_size=1", "es_manager.val.env_configs.tags=[Bandit]"),
    *("es_manager.val.env_configs.n_groups=[1]", "es_manager.use_multiprocessing=false", "agent_proxy.max_turn=1"),
]


def test_a_sweep_runs_every_combination_in_a_folder_named_after_it(tmp_path, capsys):
    assert command.main(["-m", "seed=1,2", "actor.scripted.seed=3,4", *SMALL, f"output_dir={tmp_path}"]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"seed={seed},actor.scripted.seed={other}" for seed in (1, 2) for other in (3, 4)]
    seeds = [json.loads((tmp_path / name / "rollouts.jsonl").read_text())["seed"] for name in names]
    assert seeds == [1, 1, 2, 2]
    assert "run 4 of 4: seed=2,actor.scripted.seed=4" in capsys.readouterr().err.replace("seed=2 ", "seed=2,")


def asked(prompt, _):
    return say("<think>so</think><answer>Phoenix</answer>")


def test_a_set_of_models_is_evaluated_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = [*SMALL[:-1], "--limit", "1"]
    with chat_server(asked, {"org/one": {}, "two:latest": {}, "three": {}}) as server:
        words = [f"actor.base_url={server.url}", *few, "-m", "actor.model=org/one,'two:latest'"]
        assert evaluation.main(words) == 0
        sent = len(server.bodies)
        assert sent and evaluation.main([*words[:-1], "actor.model=org/one,'two:latest',three"]) == 0
        assert len(server.bodies) == sent + sent // 2
    rows = sorted(path.parent.relative_to("outputs/evaluate") for path in Path("outputs").rglob("rollouts.jsonl"))
    assert list(map(str, rows)) == ["org/one", "three", "two:latest"]
    told = capsys.readouterr().err
    assert "run 2 of 3: actor.model='two:latest'" in told and told.count("all of them are finished") == 2
    last = json.loads(Path("outputs/evaluate/three/run.json").read_text())["run"]
    assert last["command"].endswith("actor.model=three") and "-m" not in last["command"].split()


def test_any_configuration_is_evaluated_behind_a_server_and_resumed_by_the_same_command(tmp_path, capsys, monkeypatch):
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults: [_13_search, _self_]\noutput_dir: kept\n")
    other = evaluation.compose("_13_search", ["actor.model=m"])
    assert (other.actor.backend, other.resume, other.output_dir) == ("openai", True, "outputs/evaluate/m/_13_search")
    given = evaluation.compose("_13_search", ["actor.model=m", "resume=false", "output_dir=here"])
    assert (given.resume, given.output_dir) == (False, "here")
    assert evaluation.compose(str(mine), ["actor.model=m"]).output_dir == "kept"
    assert evaluation.compose("evaluate_api_llm", ["actor.model=m"]).output_dir == "outputs/evaluate/m"
    monkeypatch.chdir(tmp_path)
    with chat_server(asked, {"m": {}}) as server:
        words = ["-cn", "_1_bandit", f"actor.base_url={server.url}", "actor.model=m", *SMALL]
        assert evaluation.main(words) == 0 == evaluation.main(words)
    assert "all of them are finished" in capsys.readouterr().err


def test_a_part_of_an_evaluation_plays_the_seeds_that_the_whole_plays():
    whole = ["es_manager.val.env_configs.tags=[Bandit,Countdown]", "es_manager.val.env_configs.n_groups=[2,3]"]
    whole += ["es_manager.val.env_groups=5", "es_manager.val.group_size=2"]

    def seeds(**choice):
        config = compose("evaluate_api_llm", whole)
        narrow(config, **choice)
        with EnvStateManager(config, "val") as manager:
            manager.reset()
            return [(entry["tag"], entry["status"].seed) for entry in manager.envs]

    everything = seeds()
    assert seeds(tags="Countdown") == everything[4:]
    assert seeds(limit="1") == [*everything[:2], *everything[4:6]]
    assert seeds(tags="Countdown", limit="2") == everything[4:8]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"tags": "Bandits"}, "--tags has 'Bandits', .* Did you mean 'Bandit'"),
        ({"tags": "chess"}, "It has Bandit, Countdown"),
        ({"limit": "0"}, "--limit is '0'; expected a whole number of at least 1"),
        ({"limit": "few"}, "--limit is 'few'"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(choice, said):
    with pytest.raises(ConfigError, match=said):
        narrow(compose("evaluate_api_llm"), **choice)


@pytest.mark.parametrize(
    "word",
    [
        "actor.base_url=http://h/v1?api-key=qk-SEKRET-1",
        "actor.base_url=h/v1?api-key=qk-SEKRET-1",
        "++actor.base_url=http://me:SEKRET@h/v1",
        "actor.openai.request={url: 'http://h?SEKRET'}",
        "actor.openai.request.api_key=SEKRET",
        "actor.model=sk-SEKRET-1",
        "http://h/v1?api-key=SEKRET",
    ],
)
def test_no_key_is_printed_or_names_a_folder(word):
    key, _, value = word.partition("=")
    settings = shown_settings({"actor": [{key: value}]}) if "://" not in key else None
    for shown in (shown_words(["eval", word]), folder_name(["seed=1", word]), settings):
        assert "SEKRET" not in str(shown)
