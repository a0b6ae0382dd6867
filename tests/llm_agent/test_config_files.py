"""The configuration files that come with the package, and how they are found, composed and read."""

import warnings
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ragen.errors import ConfigError
from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.config.environments import read_config
from ragen.llm_agent.config.loading import (
    changed_settings,
    check_local,
    check_whole,
    config_names,
    load_config,
    tell_ignored,
    tell_of_other_mode,
    unread,
    unread_keys,
)
from ragen.settings import config_directory, object_at, override_key, setting
from support.configurations import composed

PLAYABLE = [name for name in config_names() if name != "envs"]
NAMES_OF_RAGEN = {
    *("SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "VisualSimpleSokoban", "CoordSokoban"),
    *("FrozenLake", "CoordFrozenLake", "Bandit", "BanditTest", "Countdown", "MetamathQA", "WebShop"),
    *("SimpleSudoku", "game_2048", "rubikscube"),
}


def test_there_is_a_configuration_per_environment_beside_the_base_and_the_mixed_one():
    numbered = {name.split("_", 2)[2] for name in PLAYABLE if name.startswith("_")}
    assert numbered == {
        "bandit", "sokoban", "frozen_lake", "countdown", "metamathqa", "webshop", "sudoku", "game_2048", "rubikscube",
        "deepcoder", "code", "terminal", "search", "miniwob", "textworld", "alfworld",
    }  # fmt: skip
    assert {"base", "mixed"} <= set(PLAYABLE)


def test_the_tags_that_users_of_ragen_know_are_there():
    assert set(composed("envs").custom_envs) >= NAMES_OF_RAGEN


@pytest.mark.parametrize("name", PLAYABLE)
def test_the_managers_accept_every_configuration(name, caplog):
    config = composed(name)
    for mode in ("train", "val"):
        assert read_config(config, mode).entries
    check_whole(config, "val")
    assert not caplog.records
    assert ContextSettings.read(config).max_actions_per_turn >= 1


def test_the_environment_of_every_tag_accepts_its_configuration():
    config = composed("base")
    tags = list(composed("envs").custom_envs)
    config.es_manager.val.update(env_configs={"tags": tags, "n_groups": [1] * len(tags)}, env_groups=len(tags))
    assert {entry.spec.tag for entry in read_config(config, "val").entries} == set(tags)


def test_the_default_is_several_tags_where_it_pays():
    config = load_config("mixed")
    assert len(set(config.es_manager.val.env_configs.tags)) >= 4
    assert config.es_manager.use_multiprocessing == "auto"


def test_a_configuration_of_ones_own_starts_from_the_base(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("defaults:\n  - base\nes_manager:\n  train:\n    group_size: 3\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # RAGEN's files have no `_self_` in their defaults, as this one
        config = load_config("mine", ["seed.train=7"], tmp_path)
    assert config.es_manager.train.group_size == 3
    assert config.seed.train == 7
    assert config.custom_envs.SimpleSokoban.env_type == "sokoban"


def test_verls_trainer_configuration_is_found_behind_ones_own(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("defaults:\n  - ppo_trainer\n  - base\n")
    config = load_config("mine", directory=tmp_path)
    assert config.algorithm.adv_estimator
    assert config.agent_proxy.max_turn == load_config("base").agent_proxy.max_turn


def test_composing_writes_nothing_and_names_what_it_ignores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.chdir(tmp_path)
    load_config("base", ["hydra.run.dir=elsewhere"])
    assert list(tmp_path.iterdir()) == []
    assert caplog.messages == [
        "ignored: hydra.run.dir (only Hydra's own programs have it; output_dir is where results go)"
    ]


def test_a_checkout_uses_its_own_folder():
    assert config_directory() == Path(__file__).resolve().parents[2] / "config"


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("nope", [], "no configuration 'nope'"),
        ("base", ["agent_proxy.max_turns=3"], "agent_proxy.max_turns"),
        ("base", ["es_manager.train"], "es_manager.train"),
        ("base", ["a=[1"], "a=[1"),
    ],
)
def test_what_cannot_be_composed_is_one_clear_error(name, overrides, said):
    with pytest.raises(ConfigError) as caught:
        load_config(name, overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("actor.openai.price={prompt: 1, completion: 2}", "actor.openai.price.completion", 2),
        ("actor.openai.price.prompt=1", "actor.openai.price.prompt", 1),
        ("+actor.openai.price.prompt=1", "actor.openai.price.prompt", 1),
        ("actor.openai.request={seed: 1, a: null}", "actor.openai.request", {"seed": 1, "a": None}),
        ("actor.openai.request.chat_template_kwargs.a=1", "actor.openai.request", {"chat_template_kwargs": {"a": 1}}),
        ("actor.vllm.seed=1", "actor.vllm", {"seed": 1}),
        ("agent_proxy.rollout_filter_ratio=0.5", "agent_proxy.rollout_filter_ratio", 0.5),
        ("agent_proxy.rollout_filter_type=std_rev", "agent_proxy.rollout_filter_type", "std_rev"),
        ("agent_proxy.context_window_mode=single_turn", "agent_proxy.context_window_mode", "single_turn"),
        ("agent_proxy.system_prompt=Play.", "agent_proxy.system_prompt", "Play."),
    ],
)
def test_keys_that_the_files_tell_of_are_overridden_without_a_plus(override, key, value):
    assert OmegaConf.select(load_config("_2_sokoban", [override]), key) == value


def test_sections_that_are_closed_stay_closed():
    for override in ("actor.openai.requests={a: 1}", "actor.openai.price.input=1", "actor.vllms.seed=1"):
        with pytest.raises(ConfigError, match="has no key"):
            load_config("base", [override])


MISSPELT = [
    ("agent_proxy: {max_turns: 6}", "agent_proxy.max_turns", "agent_proxy.max_turn"),
    ("agent_proxy: {max_action_per_turn: 1}", "agent_proxy.max_action_per_turn", "agent_proxy.max_actions_per_turn"),
    (
        "agent_proxy: {reward_normalization: {methd: mean}}",
        "agent_proxy.reward_normalization.methd",
        "agent_proxy.reward_normalization.method",
    ),
    ("actor: {backnd: 'policy:Fixer'}", "actor.backnd", "actor.backend"),
    ("actor: {scripted: {randm: 1.0}}", "actor.scripted.randm", "actor.scripted.random"),
    ("actor: {openai: {timout: 3, request: {a: 1}}}", "actor.openai.timout", "actor.openai.timeout"),
    ("actor: {vlm: {seed: 1}}", "actor.vlm", "actor.vllm"),
    ("limit: {minuts: 1}", "limit.minuts", "limit.minutes"),
    ("agent_loop: {queue_timeouts: '???'}", "agent_loop.queue_timeouts", "agent_loop.queue_timeout"),
    ("warm_up: {stps: 1}", "warm_up.stps", "warm_up.steps"),
    (
        "actor_rollout_ref: {rollout: {max_modellen: 9000}}",
        "actor_rollout_ref.rollout.max_modellen",
        "actor_rollout_ref.rollout.max_model_len",
    ),
    (
        "actor_rollout_ref: {rollout: {val_kwargs: {temparature: 0}}}",
        "actor_rollout_ref.rollout.val_kwargs.temparature",
        "actor_rollout_ref.rollout.val_kwargs.temperature",
    ),
    ("trainer: {total_training_step: 3}", "trainer.total_training_step", "trainer.total_training_steps"),
    ("algorithm: {adv_estimatr: grpo}", "algorithm.adv_estimatr", "algorithm.adv_estimator"),
]


@pytest.mark.parametrize("base", ["base", "tiny"])
@pytest.mark.parametrize(("lines", "key", "meant"), MISSPELT)
def test_a_misspelt_key_of_a_file_is_refused_with_the_one_that_was_meant(tmp_path, base, lines, key, meant):
    (tmp_path / "mine.yaml").write_text(f"defaults: [{base}]\n{lines}\n")
    with pytest.raises(ConfigError) as refused:
        load_config("mine", directory=tmp_path)
    assert str(refused.value) == f"configuration 'mine' has no key {key!r}. Did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("lines", "ignored"),
    [
        ("agent_proxy: {action_separator: ';'}", ["agent_proxy.action_separator"]),
        (
            "collapse_detection: {micro_batch_size: 8}\nsystem: {a: 1}",
            ["collapse_detection.micro_batch_size", "system"],
        ),
        (
            "actor: {mine: {a: 1}, openai: {request: {timout: 1}, price: {image: 1}}}",
            ["actor.mine", "actor.openai.price.image"],
        ),
    ],
)
def test_an_unknown_key_like_no_other_is_named(tmp_path, lines, ignored):
    (tmp_path / "mine.yaml").write_text(f"defaults: [base]\n{lines}\n")
    assert unread(load_config("mine", directory=tmp_path)) == ignored


@pytest.mark.parametrize(
    ("lines", "words", "mode", "what"),
    [
        ("es_manager: {train: {env_groups: 4}}", [], "val", "es_manager.train"),
        ("es_manager: {val: {env_groups: 4}}", [], "train", "es_manager.val"),
        ("es_manager: {train: {env_groups: 4}, val: {env_groups: 4}}", [], "val", ""),
        ("es_manager: {train: {env_groups: 4}}", ["es_manager.val.group_size=2"], "val", ""),
        ("es_manager: {val: {env_groups: 4}}", ["es_manager.train.env_groups=2"], "val", "es_manager.train.env_groups"),
        ("seed: 3", [], "val", ""),
    ],
)
def test_environments_of_the_other_mode_that_were_chosen_in_vain_are_told(tmp_path, capsys, lines, words, mode, what):
    (tmp_path / "mine.yaml").write_text(f"defaults: [base, _self_]\n{lines}\n")
    tell_of_other_mode(load_config("mine", words, directory=tmp_path), mode, ["ragen rollout", *words])
    other = "train" if mode == "val" else "val"
    told = f"ignored: {what} (mode={mode} plays es_manager.{mode}; mode={other} plays the other)\n"
    assert capsys.readouterr().err == (told if what else "")


def test_ignored_keys_are_told_in_one_line(capsys):
    tell_ignored([])
    tell_ignored(["actor.mine", "system"])
    assert capsys.readouterr().err == "ignored: actor.mine, system (they have no effect here)\n"


@pytest.mark.parametrize(
    "lines",
    [
        "actor: {openai: {request: {timout: 1, 1: 2}}, vllm: {sed: 1}}",  # sections with any keys
        "actor: {backend: 'policy:Fixer', models: [a, b], rules: {a: 1}}",  # its class reads them
        "actor: {openai: null, hf: {dtype: '???'}}\ncollapse_detection: ${nothing}\nnothing: {}",
        "agent_proxy: {max_turns: 6, max_turn: '${agent_proxy.max_turns}'}",
        "agent_proxy: {rollout_filter_value: 0.9, rollout_filter_strategy: top_p}",
        "trainer: {total_epochs: 1, max_actor_ckpt_to_keep: 1, val_generations_to_log_to_wandb: 0}",
        "actor_rollout_ref: {actor: {clip_ratio: 0.2, clip_ratio_c: 3.0, ppo_micro_batch_size: 1}, rollout: {n: 2}}",
        "algorithm: {filter_groups: {max_inflight_gen_batches: 1}}\ndata: {train_batch_sizes: 1}",
    ],
)
@pytest.mark.parametrize("base", ["base", "tiny"])
def test_keys_with_another_reader_are_neither_refused_nor_named(tmp_path, base, lines):
    (tmp_path / "mine.yaml").write_text(f"defaults: [{base}]\n{lines}\n")
    assert unread(load_config("mine", directory=tmp_path)) == []


def test_a_key_that_the_command_line_adds_is_taken_and_named():
    config = load_config("base", ["+agent_proxy.max_turns=6", "+agent_proxy.tool.when=1"])
    assert unread(config) == ["agent_proxy.max_turns", "agent_proxy.tool"]


def test_a_file_without_our_base_is_checked_too(tmp_path):
    lacking = "es_manager: {}\nactor: {mine: 1}\nagent_proxy: {batch_adjust_mode: copy, %s: 1}\n"
    (tmp_path / "mine.yaml").write_text(lacking % "max_turn")
    assert unread(load_config("mine", directory=tmp_path)) == ["actor.mine", "agent_proxy.batch_adjust_mode"]
    (tmp_path / "mine.yaml").write_text(lacking % "max_turns")
    with pytest.raises(ConfigError, match=r"has no key 'agent_proxy\.max_turns'\. Did you mean"):
        load_config("mine", directory=tmp_path)


@pytest.mark.parametrize("name", PLAYABLE)
def test_the_package_s_own_files_have_no_unknown_keys(name):
    assert unread_keys(composed(name)) == []


@pytest.mark.parametrize("content", [b"3", b"\xff\xfe", b"- 1"])
def test_a_file_that_is_no_configuration_is_a_clear_error(tmp_path: Path, content: bytes):
    (tmp_path / "odd.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match="configuration 'odd' cannot be composed"):
        load_config("odd", directory=tmp_path)


@pytest.mark.parametrize("folder", ["/tmp/é", "/tmp/ｗｉｄｅ folder", "it's ü", "back\\slash ü"])
def test_a_text_may_have_any_letters(folder: str):
    assert load_config("base", [f"output_dir={folder}"]).output_dir == folder


def test_a_file_that_is_not_yaml_is_a_clear_error(tmp_path: Path):
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match="'broken' cannot be composed"):
        load_config("broken", directory=tmp_path)


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_config("base", directory=tmp_path / "nowhere")


CONFIG = OmegaConf.create({"a": {"n": 3, "x": 0.5, "flag": True, "empty": None, "lost": "${nowhere}"}})


def test_a_setting_is_read_at_its_dotted_key():
    assert setting(CONFIG, "a.n", int) == 3
    assert setting(CONFIG, "a.n", float) == 3.0
    assert setting({"a": {"n": 4}}, "a.n", int) == 4


@pytest.mark.parametrize("key", ["a.empty", "a.missing", "b.c"])
def test_a_missing_setting_takes_its_default_or_is_named_in_the_error(key):
    assert setting(CONFIG, key, int, 9) == 9
    with pytest.raises(ConfigError, match=f"'{key}' is missing; expected a whole number"):
        setting(CONFIG, key, int)


@pytest.mark.parametrize(
    ("key", "kind"), [("a.x", int), ("a.flag", int), ("a.flag", float), ("a.n", bool), ("a.n", str)]
)
def test_a_setting_of_another_type_is_named_in_the_error(key, kind):
    with pytest.raises(ConfigError, match=f"'{key}' is .*; expected"):
        setting(CONFIG, key, kind)


def test_an_interpolation_to_nowhere_is_a_clear_error():
    with pytest.raises(ConfigError, match=r"'a\.lost' cannot be read"):
        setting(CONFIG, "a.lost", int)


def test_a_configuration_may_be_named_by_the_path_of_its_file(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("defaults: [base, extra]\nagent_proxy: {max_turn: 3}\n")
    (tmp_path / "extra.yaml").write_text("output_dir: elsewhere\n")
    monkeypatch.chdir(tmp_path)
    for name in ("./mine", "./mine.yaml", str(tmp_path / "mine.yaml")):
        config = load_config(name, ["seed=5"])
        assert (config.agent_proxy.max_turn, config.output_dir, config.seed.val) == (3, "elsewhere", 5)
    with pytest.raises(ConfigError, match=r"no such file: .*none\.yaml\."):
        load_config("./none")
    with pytest.raises(ConfigError, match=r"you mean '\./mine'"):
        load_config("mine")
    with pytest.raises(ConfigError, match=r"'agent_proxy\.max_turns'\. Did you mean 'agent_proxy\.max_turn'"):
        load_config("./mine", ["agent_proxy.max_turns=2"])
    further = tmp_path / "further"
    further.mkdir()
    (tmp_path / "extra.yaml").rename(further / "extra.yaml")
    assert load_config("./mine", further=further).output_dir == "elsewhere"


def test_a_file_here_is_meant_where_its_path_is_said_though_there_is_one_of_its_name_in_the_package(
    tmp_path, monkeypatch
):
    (tmp_path / "_2_sokoban.yaml").write_text("defaults: [base]\nagent_proxy: {max_turn: 17}\n")
    monkeypatch.chdir(tmp_path)
    for name in ("./_2_sokoban.yaml", "./_2_sokoban", f"../{tmp_path.name}/_2_sokoban"):
        assert load_config(name).agent_proxy.max_turn == 17
    assert load_config("_2_sokoban").agent_proxy.max_turn != 17
    (tmp_path / "below").mkdir()
    (tmp_path / "_2_sokoban.yaml").rename(tmp_path / "below" / "own.yaml")
    assert load_config("below/own", directory=tmp_path).agent_proxy.max_turn == 17


@pytest.mark.parametrize("override", ["a.b=1", "+a.b=1", "++a.b=c=d", "~a.b", "a.b="])
def test_an_override_has_one_key_however_it_sets_it(override):
    assert override_key(override) == "a.b"


@pytest.mark.parametrize("override", ["mine", "=3", "", "mine.yaml"])
def test_what_is_no_override_is_refused(override):
    with pytest.raises(ConfigError, match=rf"^'{override}' is not of the form key=value") as caught:
        load_config("base", [override])
    assert ("you mean '--config-name mine.yaml'" in str(caught.value)) == (override == "mine.yaml")


def test_a_file_that_does_not_begin_with_base_is_told_so_once_with_all_that_it_lacks(tmp_path):
    (tmp_path / "bare.yaml").write_text("agent_proxy: {max_turn: 2}\ncustom_envs: {Bandit: {env_type: bandit}}\n")
    config = load_config("bare", directory=tmp_path)
    with pytest.raises(ConfigError) as caught:
        check_whole(config, "val")
    assert str(caught.value).startswith(
        "the configuration lacks agent_proxy.max_actions_per_turn, agent_proxy.action_sep, agent_proxy.enable_think, "
        "es_manager: begin its file with 'defaults: [base]'"
    )


@pytest.mark.parametrize("name", ["/none", "./none", "~/none"])
def test_a_folder_of_a_model_that_is_not_there_is_no_name_of_the_hub(name):
    with pytest.raises(ConfigError, match=f"^configuration key 'actor.model' is '{name}': no such folder"):
        check_local("actor.model", name)
    check_local("actor.model", "gpt2")


def test_a_long_text_that_was_changed_is_shown_where_it_was():
    rules = "P is you, D is the door, and these are the rules. " * 5
    ((_, was, is_now),) = changed_settings({"rules": f"{rules}Walk."}, {"rules": f"{rules}Run."})
    assert (was[-6:], is_now[-5:]) == ("Walk.'", "Run.'")


def test_fields_of_an_environments_configuration_need_no_plus():
    score = "custom_envs.Bandit.env_config.lo_arm_score"
    assert OmegaConf.select(load_config("_1_bandit"), score) is None
    assert OmegaConf.select(load_config("_1_bandit", [f"{score}=0.3"]), score) == 0.3
    with pytest.raises(ConfigError, match="has no key 'custom_envs"):
        load_config("_1_bandit", ["custom_envs.Bandi.env_config.lo_arm_score=0.3"])


def test_a_misspelled_class_or_function_is_answered_with_what_was_meant():
    with pytest.raises(ConfigError, match=r"has no 'load_confg'\. Did you mean 'ragen.llm_agent.config:load_config'\?"):
        object_at("ragen.llm_agent.config:load_confg", "the key", "FUNCTION")


def test_a_value_that_hydra_cannot_read_is_answered_with_how_to_quote_it():
    with pytest.raises(ConfigError, match=r"needs two pairs of quotes"):
        load_config("base", ["agent_proxy.action_sep=;;"])
    assert load_config("base", ["agent_proxy.action_sep=';;'"]).agent_proxy.action_sep == ";;"
