"""Configurations: the keys, how files are found, and that each wrong key is refused before anything runs."""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from ragen.config.loading import (
    as_config,
    compose,
    config_directory,
    config_names,
    load_config,
    override_key,
)
from ragen.errors import ConfigError
from ragen.llm_agent.backends.factory import check_local
from ragen.llm_agent.environments import read_config
from ragen.utils import object_at

FILES = config_names()
PLAYABLE = [each for each in FILES if each != "envs"]
ANY_KEY = ("actor.vllm", "actor.openai.request", "custom_envs", "defaults")
RAGEN_TAGS = {
    *("SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "VisualSimpleSokoban", "CoordSokoban"),
    *("FrozenLake", "CoordFrozenLake", "Bandit", "BanditTest", "Countdown", "MetamathQA", "WebShop"),
    *("SimpleSudoku", "game_2048", "rubikscube"),
}


# The shipped files


@cache
def plain(name: str) -> dict[str, Any]:
    return OmegaConf.to_container(compose(name), resolve=True)


def keys_of(section: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in section.items():
        if f"{above}{name}" != "defaults":
            yield f"{above}{name}"
            yield from keys_of(value, f"{above}{name}.") if isinstance(value, Mapping) else ()


def shipped_keys() -> list[tuple[str, str]]:
    """Every key of every file, once, with the name of a configuration that has it."""
    found: dict[str, str] = {}
    for name in sorted(FILES, key=lambda each: (each != "envs", each)):
        for key in keys_of(OmegaConf.to_container(OmegaConf.load(config_directory() / f"{name}.yaml"))):
            found.setdefault(key, "base" if name == "envs" else name)
    return sorted(found.items())


def misspelt(config: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy in which the last letter of a key is another one."""
    changed = copy.deepcopy(config)
    *above, name = key.split(".")
    section = changed
    for part in above:
        section = section[part]
    section[f"{name[:-1]}{'q' if name[-1] != 'q' else 'z'}"] = section.pop(name)
    return changed


@pytest.mark.parametrize("name", PLAYABLE)
def test_every_shipped_configuration_is_accepted(name, caplog):
    config = load_config(name)
    assert all(read_config(config, mode).entries for mode in ("train", "val"))
    assert not caplog.records


def test_every_shipped_key_with_one_letter_changed_is_refused_with_the_key_that_was_meant():
    accepted, tried = [], 0
    for key, name in shipped_keys():
        section, _, _ = key.rpartition(".")
        if section in ANY_KEY or ".env_config." in key or OmegaConf.select(compose_once(name), key, default=0) == 0:
            continue
        tried += 1
        try:
            as_config(misspelt(plain(name), key))
        except ConfigError as error:
            assert repr(key) in str(error), error
        else:
            accepted.append(key)
    assert accepted == [] and tried > 200


@cache
def compose_once(name: str) -> Any:
    return compose(name)


def test_every_field_of_a_shipped_environment_with_one_letter_changed_is_refused():
    config = plain("base")
    for tag, entry in config["custom_envs"].items():
        for field in entry["env_config"] or ():
            changed = misspelt(config, f"custom_envs.{tag}.env_config.{field}")
            part = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": [tag], "n_groups": [1]}}
            with pytest.raises(ConfigError, match=rf"custom_envs\.{tag}\.env_config\.{field[:-1]}q "):
                read_config({**changed, "es_manager": {"train": part}}, "train")


def test_the_environment_of_every_tag_accepts_its_configuration():
    config = load_config("base")
    assert config.custom_envs.keys() >= RAGEN_TAGS
    tags = list(config.custom_envs)
    part = {"env_groups": len(tags), "group_size": 1, "env_configs": {"tags": tags}}
    config = config.changed({"es_manager.val": part})
    assert {entry.spec.tag for entry in read_config(config, "val").entries} == set(tags)


# Wrong keys and values

# a key of the configuration tiny, a value, the key that the message names
WRONG = [
    ("agent_proxy.max_turns", 6, "agent_proxy.max_turn"),
    ("agent_proxy.max_turn", "3", "agent_proxy.max_turn"),
    ("agent_proxy.max_turn", True, "agent_proxy.max_turn"),
    ("agent_proxy.max_turn", -1, "agent_proxy.max_turn"),
    ("agent_proxy.max_turn", [3], "agent_proxy.max_turn"),
    ("agent_proxy.enable_think", 1, "agent_proxy.enable_think"),
    ("agent_proxy.action_sep", " ", "agent_proxy.action_sep"),
    ("agent_proxy.context_window_mode", "single", "agent_proxy.context_window_mode"),
    ("agent_proxy.reward_normalization", "mean", "agent_proxy.reward_normalization"),
    ("agent_proxy", [1], "agent_proxy"),
    ("max_workers", 3, "es_manager.max_workers"),
    ("es_manager.val.max_workers", 3, "es_manager.max_workers"),
    ("es_manager.val.env_grups", 3, "es_manager.val.env_groups"),
    ("es_manager.val.env_configs.tags", "Bandit", "es_manager.val.env_configs.tags"),
    ("es_manager.val.env_configs.n_groups", [1, "a"], "es_manager.val.env_configs.n_groups"),
    ("es_manager.backend", "proces", "'process'"),
    ("es_manager.use_multiprocessing", 1, "es_manager.use_multiprocessing"),
    ("es_manager.crash_report_dir", 3, "es_manager.crash_report_dir"),
    ("es_manager.step_timeout", "inf", "es_manager.step_timeout"),
    ("seed.tests", 3, "seed.tests"),
    ("seed", "abc", "seed"),
    ("custom_envs.Bandit.max_actions_per_traj", 0, "custom_envs.Bandit.max_actions_per_traj"),
    ("custom_env", {}, "custom_envs"),
    ("actor.mine", 1, "actor.mine"),
    ("actor.vlm", {}, "actor.vllm"),
    ("actor.openai.api_key", "sk-1", "actor.openai.api_key_env"),
    ("actor.openai.price.input", 1, "actor.openai.price.input"),
    ("actor.scripted.random", 1.5, "actor.scripted.random"),
    ("limit.cost", 0, "limit.cost"),
    ("report", "yes", "report"),
    ("mode", "test", "mode"),
    ("output_dir", " ", "output_dir"),
    ("tiny_model.hidden_size", 65, "tiny_model.hidden_size"),
    ("actor_rollout_ref.rollout.max_modellen", 9000, "actor_rollout_ref.rollout.max_model_len"),
    ("actor_rollout_ref.rollout.top_p", 2, "actor_rollout_ref.rollout.top_p"),
    ("actor_rollout_ref.rollout.rollout_filter_ratio", "all", "actor_rollout_ref.rollout.rollout_filter_ratio"),
    ("collapse_detection.num_samples", "al", "collapse_detection.num_samples"),
]


@pytest.mark.parametrize("source", ["code", "file", "command line"])
@pytest.mark.parametrize(("key", "value", "meant"), WRONG)
def test_a_wrong_key_is_refused_in_one_line_that_names_it(tmp_path, source, key, value, meant):
    nested = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    if key == "max_workers" and source != "command line":
        pytest.skip("sections may refer to any key at the top")
    with pytest.raises(ConfigError) as refused:
        if source == "code":
            *above, last = key.split(".")
            config = section = copy.deepcopy(plain("tiny"))
            for part in above:
                section = section[part]
            as_config(config if section.update({last: value}) is None else None)
        elif source == "file":
            OmegaConf.save(OmegaConf.create({"defaults": ["tiny", "_self_"], **nested}), tmp_path / "mine.yaml")
            load_config("mine", directory=tmp_path)
        else:
            shown = str(value).replace("True", "true")
            quoted = f"'{shown}'" if isinstance(value, str) else shown
            load_config("tiny", [f"{key}={quoted}"])
    assert meant in str(refused.value) and "\n" not in str(refused.value)
    assert "sk-1" not in str(refused.value)


@pytest.mark.parametrize(
    "lines",
    [
        "actor: {openai: {request: {timout: 1}}, vllm: {sed: 1}}",  # sections with any keys
        "actor: {backend: 'policy:Fixer', models: [a, b], rules: {a: 1}}",  # its class reads them
        "actor: {openai: null, hf: {dtype: null}}\nseed: null",
        "lora: {rank: 3}\nactor_rollout_ref: {model: {lora_rank: '${lora.rank}'}}",
        "trainer: {total_epochs: 1, max_actor_ckpt_to_keep: 1, val_generations_to_log_to_wandb: 0}",
        "actor_rollout_ref: {actor: {clip_ratio_c: 3.0, ppo_micro_batch_size: 1}, rollout: {n: 2}}",
        "algorithm: {filter_groups: {max_inflight_gen_batches: 1}}\ndata: {val_batch_size: 1}",
        "env: {rollout: {n: 3}}",
    ],
)
def test_keys_with_another_reader_and_null_are_accepted(tmp_path, lines):
    (tmp_path / "mine.yaml").write_text(f"defaults: [base, _self_]\n{lines}\n")
    assert load_config("mine", directory=tmp_path).es_manager.max_restarts == 3


def test_a_configuration_is_typed_and_checks_what_is_assigned():
    config = as_config({"agent_proxy": {"max_turn": 2}, "seed": {"val": 3}})
    assert (config.agent_proxy.max_turn, config.agent_proxy.action_sep, config.seed.val) == (2, "||", 3)
    assert as_config(config) is config
    assert config.changed({"agent_proxy.max_turn": 4}).agent_proxy.max_turn == 4 != config.agent_proxy.max_turn
    with pytest.raises(ValueError, match="max_turn"):
        config.agent_proxy.max_turn = "3"


# Overrides


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("actor.openai.price={prompt: 1, completion: 2}", "actor.openai.price.completion", 2),
        ("+actor.openai.price.prompt=1", "actor.openai.price.prompt", 1),
        ("actor.openai.request={seed: 1, a: null}", "actor.openai.request", {"seed": 1, "a": None}),
        ("actor.openai.request.chat_template_kwargs.a=1", "actor.openai.request", {"chat_template_kwargs": {"a": 1}}),
        ("actor.vllm.seed=1", "actor.vllm", {"seed": 1}),
        ("agent_proxy.rollout_filter_type=std_rev", "agent_proxy.rollout_filter_type", "std_rev"),
        ("agent_proxy.action_sep=';;'", "agent_proxy.action_sep", ";;"),
        ("custom_envs.Bandit.env_config.lo_arm_score=0.3", "custom_envs.Bandit.env_config", {"lo_arm_score": 0.3}),
        ("limit.minutes=2", "limit.minutes", 2.0),
        ("seed=5", "seed.val", 5),
        *(
            (f"output_dir={folder}", "output_dir", folder)
            for folder in ("/tmp/é", "/tmp/ｗｉｄｅ folder", "it's ü", "a\\b ü")
        ),
    ],
)
def test_keys_are_overridden_without_a_plus(override, key, value):
    found = load_config("_2_sokoban", [override]).select(key)
    assert found == value or (key.endswith("env_config") and found.items() >= value.items())


@pytest.mark.parametrize(
    ("name", "override", "said"),
    [
        ("nope", "seed=1", "'nope'"),
        ("base", "es_manager.train", "es_manager.train"),
        ("base", "a=[1", "a=[1"),
        ("base", "agent_proxy.action_sep=;;", "two pairs of quotes"),
        ("base", "mine.yaml", "--config-name mine.yaml"),
        ("base", "=3", "'=3'"),
        ("base", "trainer.foo=1", "trainer.foo"),
        ("2_sokoban", "seed=1", "'_2_sokoban'"),
    ],
)
def test_what_cannot_be_composed_is_one_clear_error(name, override, said):
    with pytest.raises(ConfigError) as refused:
        load_config(name, [override])
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("override", ["a.b=1", "+a.b=1", "++a.b=c=d", "~a.b", "a.b="])
def test_an_override_has_one_key_however_it_sets_it(override):
    assert override_key(override) == "a.b"


# Files


def test_a_configuration_is_found_by_name_or_path_and_may_include_others(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("defaults: [ppo_trainer, base, extra]\nagent_proxy: {max_turn: 3}\n")
    (tmp_path / "extra.yaml").write_text("output_dir: elsewhere\n")
    (tmp_path / "_2_sokoban.yaml").write_text("defaults: [base]\nagent_proxy: {max_turn: 17}\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "own.yaml").write_text("defaults: [base]\nagent_proxy: {max_turn: 17}\n")
    monkeypatch.chdir(tmp_path)
    for name in ("./mine", "./mine.yaml", str(tmp_path / "mine.yaml")):
        config = load_config(name, ["seed=5"])
        assert (config.agent_proxy.max_turn, config.output_dir, config.seed.val) == (3, "elsewhere", 5)
    for name in ("./_2_sokoban.yaml", "./_2_sokoban", f"../{tmp_path.name}/_2_sokoban"):
        assert load_config(name).agent_proxy.max_turn == 17
    assert load_config("_2_sokoban").agent_proxy.max_turn != 17
    assert load_config("below/own", directory=tmp_path).agent_proxy.max_turn == 17
    (tmp_path / "extra.yaml").rename(tmp_path / "below" / "extra.yaml")
    assert load_config("./mine", directory=tmp_path / "below").output_dir == "elsewhere"
    for name, said in (("./none", "none"), ("mine", r"'\./mine'")):
        with pytest.raises(ConfigError, match=said):
            load_config(name)


@pytest.mark.parametrize("content", [b"3", b"\xff\xfe", b"- 1", b"a: [1\n"])
def test_a_file_that_is_no_configuration_is_a_clear_error(tmp_path: Path, content: bytes):
    (tmp_path / "odd.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match="'odd'"):
        load_config("odd", directory=tmp_path)
    with pytest.raises(ConfigError, match="nowhere"):
        load_config("base", directory=tmp_path / "nowhere")


def test_ctrl_c_while_a_configuration_is_composed_is_no_error_of_the_configuration(monkeypatch):
    def swallowed(*_, **__):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ValueError("Hydra failed") from error

    monkeypatch.setattr("hydra.compose", swallowed)
    with pytest.raises(KeyboardInterrupt):
        load_config("base")


# Models, classes, secrets, changes


@pytest.mark.parametrize("name", ["/none", "./none", "~/none"])
def test_a_folder_of_a_model_that_is_not_there_is_no_name_of_the_hub(name):
    with pytest.raises(ConfigError, match=f"^actor.model = '{name}'"):
        check_local("actor.model", name)
    check_local("actor.model", "gpt2")


def test_a_misspelt_class_or_function_is_answered_with_what_was_meant():
    with pytest.raises(ConfigError, match=r"'ragen.config:load_config'"):
        object_at("ragen.config:load_confg", "the key", "FUNCTION")
