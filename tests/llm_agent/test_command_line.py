"""What commands take from Hydra: --cfg, sweeps, and a choice of tags and groups; and what cannot be a section."""

import json
import shlex
from pathlib import Path

import pytest

from ragen.errors import ConfigError
from ragen.files import new_folder
from ragen.llm_agent.config.command_line import folder_name, main_of, narrow, runs_of
from ragen.llm_agent.config.loading import check_model, load_config, where_said
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.evaluation import command as evaluation
from ragen.llm_agent.rollout import command
from ragen.output import shown_settings, shown_words
from ragen.settings import setting
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


@pytest.mark.parametrize(("starts", "overlap"), [("8,6", True), ("5,8", False)])
@pytest.mark.parametrize("key", ["seed", "seed.val"])
def test_runs_of_a_sweep_that_play_some_of_the_same_seeds_are_told(key, starts, overlap, tmp_path, capsys):
    groups = ["es_manager.val.env_groups=3", "es_manager.val.env_configs.n_groups=[3]"]
    assert command.main(["-m", f"{key}={starts}", *SMALL, *groups, f"output_dir={tmp_path}"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert ("runs less than 3 apart play some of the same episodes" in told[0]) == overlap


def test_runs_of_a_sweep_whose_values_no_folder_can_be_named_after_are_told_apart():
    names = [folder_name(own) for own, _ in runs_of(["actor.model=a/b,a_b", "mode=val"])]
    assert len({*names}) == 2 and not any("/" in name for name in names)
    assert [overrides for _, overrides in runs_of(["seed=range(1,3)", "mode=val"])] == [
        ["mode=val", "seed=1"],
        ["mode=val", "seed=2"],
    ]


def asked(prompt, _):
    return say("<think>so</think><answer>Phoenix</answer>")


def test_a_set_of_models_is_evaluated_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = [*SMALL[:-1], "--limit", "1"]
    with chat_server(asked, {"org/one": {}, "two:latest": {}, "three": {}}) as server:
        words = [f"actor.base_url={server.url}", *few, "--models", "org/one,two:latest"]
        assert evaluation.main(words) == 0
        sent = len(server.bodies)
        assert sent and evaluation.main([*words[:-1], "org/one,two:latest,three"]) == 0
        assert len(server.bodies) == sent + sent // 2
    rows = sorted(path.parent.relative_to("outputs/evaluate") for path in Path("outputs").rglob("rollouts.jsonl"))
    assert list(map(str, rows)) == ["org/one", "three", "two:latest"]
    told = capsys.readouterr().err
    assert "run 2 of 3: actor.model='two:latest'" in told and told.count("all of them are finished") == 2
    last = json.loads(Path("outputs/evaluate/three/runs.jsonl").read_text())
    assert last["command"].endswith("actor.model=three") and "--models" not in last["command"]


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


def test_a_set_that_is_stopped_says_how_much_of_it_is_left(capsys):
    stopped = main_of(evaluation.parser, "ragen eval", lambda config: 130)
    for words, whole in (([], ""), (["resume=false"], ", without resume=false,")):
        assert stopped(["--models", "a,b,c", *words]) == 130
        told = f"2 of 3 runs were not started. The original command{whole} resumes this run and starts the rest."
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(("codes", "code"), [((0, 3, 2), 3), ((2, 130), 130), ((0, 0, 0), 0), ((3, 143), 143)])
def test_several_runs_have_the_first_bad_exit_code_or_that_of_being_stopped(codes, code, capsys):
    each = iter(codes)
    assert main_of(evaluation.parser, "ragen eval", lambda config: next(each))(["--models", "a,b,c"]) == code
    assert next(each, None) is None, "a stopped run ends them"


@pytest.mark.parametrize("words", [["--models", "a,,b"], ["--models", "a,a"], ["--models=a", "actor.model=b"]])
def test_models_that_cannot_be_told_apart_are_refused(words, capsys):
    assert evaluation.main(words) == 2
    assert "--models" in capsys.readouterr().err


def test_a_sweep_without_several_values_is_refused(capsys):
    assert command.main(["-m", "seed=1"]) == 2
    assert "no key has several values" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--cfg"], ["--cfg", "job"], ["--cfg=job"]])
def test_cfg_prints_the_configuration_as_hydra_s_does(words, capsys):
    assert command.main([*words, "agent_proxy.max_turn=3"]) == 0
    assert "  max_turn: 3\n" in capsys.readouterr().out


def test_tags_and_limit_leave_the_tags_and_groups_that_are_wanted():
    config = load_config("evaluate_api_llm")
    narrow(config, "Countdown, Bandit", "5")
    chosen = config.es_manager.val
    assert (chosen.env_configs.tags, chosen.env_configs.n_groups) == (["Bandit", "Countdown"], [5, 5])
    assert chosen.env_groups == 10
    narrow(config, limit="9")
    assert chosen.env_groups == 10


def test_a_part_of_an_evaluation_plays_the_seeds_that_the_whole_plays():
    whole = ["es_manager.val.env_configs.tags=[Bandit,Countdown]", "es_manager.val.env_configs.n_groups=[2,3]"]
    whole += ["es_manager.val.env_groups=5", "es_manager.val.group_size=2"]

    def seeds(**choice):
        config = load_config("evaluate_api_llm", whole)
        narrow(config, **choice)
        with EnvStateManager(config, "val") as manager:
            manager.reset()
            return [(entry["tag"], entry["status"].seed) for entry in manager.envs]

    everything = seeds()
    assert seeds(tags="Countdown") == everything[4:]
    assert seeds(limit="1") == [*everything[:2], *everything[4:6]]
    assert seeds(tags="Countdown", limit="2") == everything[4:8]


def test_a_part_of_an_evaluation_is_not_resumed_as_another_part(tmp_path, capsys):
    words = [*SMALL[1:-3], *SMALL[-2:], "es_manager.val.env_configs.n_groups=[2]", "es_manager.val.env_groups=2"]
    words += [f"output_dir={tmp_path}", "resume=true"]
    assert command.main([*words, "--limit", "1"]) == 0
    assert command.main(words) == 2
    told = capsys.readouterr().err
    assert "--tags or --limit (es_manager.val.env_configs.n_groups) was [1]" in told
    assert "is [2] now; repeat what was given, use another 'output_dir'" in told


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
        narrow(load_config("evaluate_api_llm"), **choice)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor=null", "configuration key 'actor' is null; expected a section of keys"),
        ("actor=5", "configuration key 'actor' is '5'; expected a section of keys"),
        ("actor.openai=5", "configuration key 'actor.openai' is 5; expected a section of keys"),
        (
            "actor_rollout_ref.rollout=many",
            "configuration key 'actor_rollout_ref.rollout' is 'many'; expected a section",
        ),
        ("es_manager=null", "es_manager = null: expected a section of keys"),
        ("es_manager.val.env_configs=7", "es_manager.val.env_configs = 7: expected a section of keys"),
    ],
)
def test_a_value_in_the_place_of_a_section_is_refused(override, said):
    with pytest.raises(ConfigError) as refused:
        load_config("base", [override])
    assert str(refused.value).startswith(said)


def test_a_key_below_a_value_is_refused_and_below_null_is_missing():
    with pytest.raises(ConfigError, match=r"'actor.hf' is 3; expected a section"):
        setting({"actor": {"hf": 3}}, "actor.hf.seed", int, None)
    with pytest.raises(ConfigError, match=r"'actor.backend' is missing, since 'actor' is null; expected a text"):
        setting({"actor": None}, "actor.backend", str)
    assert setting({"actor": None}, "actor.backend", str, "hf") == "hf"


def test_a_model_that_is_nowhere_is_refused_at_once_under_the_key_that_says_it(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    config = load_config("base", ["model_path=no-one/nothing"])
    assert where_said(config, "actor_rollout_ref.model.path") == "model_path"
    with pytest.raises(ConfigError, match=r"^configuration key 'model_path' is 'no-one/nothing', .* cannot be reached"):
        check_model(config, "actor_rollout_ref.model.path", "no-one/nothing")


def test_a_model_in_a_folder_or_in_the_cache_needs_no_hub(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--org--tiny" / "snapshots" / "1").mkdir(parents=True)
    assert check_model({}, "actor.model", str(tmp_path)) and check_model({}, "actor.model", "org/tiny")


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path):
    folders = [new_folder(tmp_path) for _ in range(5)]
    assert len({*folders}) == 5 and all(folder.is_dir() for folder in folders)


def test_files_that_are_not_of_a_run_are_not_overwritten(tmp_path, capsys):
    (tmp_path / "results.json").write_text("mine")
    assert command.main([*SMALL, f"output_dir={tmp_path}"]) == 2
    assert "results.json is not of a run (there is no run.json beside it)" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_text() == "mine"


def test_a_misspelt_section_of_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("defaults: [base]\nes_managr: {max_workers: 1}\n")
    assert command.main(["--config-name", str(tmp_path / "mine"), f"output_dir={tmp_path}"]) == 2
    assert "has a key 'es_managr', which nothing reads. Did you mean 'es_manager'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("val", {"es_manager": "x" * 20_000}), "the arguments are swapped: the configuration comes first"),
        (("mine.yaml", "val"), "the configuration is 'mine.yaml'; .* load the file with"),
        (("es_manager:\n  max_workers: 1", "val"), "parse the text first"),
        (({}, {"es_manager": "x" * 20_000}), "mode = .*: expected 'train' or 'val'"),
    ],
)
def test_a_manager_that_is_given_no_configuration_says_so_in_short(arguments, said):
    with pytest.raises(ConfigError, match=said) as caught:
        EnvStateManager(*arguments)
    assert len(str(caught.value)) < 300


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


def test_what_is_no_key_is_shown_as_it_is():
    words = ["eval", "actor.model=a/b", "seed=1", "output_dir=a b", "actor.openai.api_key_env=NAME"]
    assert shlex.split(shown_words(words)) == words
    settings = {"a": "${b}", "b": [1, None, "???"], "c": {"eos": "</s>"}}
    assert shown_settings(settings) == settings
