"""The rows that verl reads, and the configuration that it gets."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ragen.agent_loop import dataset, training
from ragen.config.loading import as_config, plain_sections
from ragen.errors import ConfigError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.prompts.settings import ContextSettings
from ragen.training import command
from support.configurations import composed

SMALL = [
    "es_manager.train.env_groups=3",
    "es_manager.train.group_size=4",
    "es_manager.train.env_configs.tags=[Bandit,FrozenLake]",
    "es_manager.train.env_configs.n_groups=[2,1]",
    "es_manager.val.env_groups=2",
    "es_manager.val.group_size=3",
    "es_manager.val.env_configs.tags=[FrozenLake]",
    "es_manager.val.env_configs.n_groups=[2]",
    "es_manager.use_multiprocessing=false",
]


def config(*overrides):
    given = [*SMALL, *overrides]
    return composed("_2_sokoban", training.allow_verl_keys(given))


def trainer(tmp_path, *overrides):
    return training.trainer_config(config(f"output_dir={tmp_path}", *overrides))


def by_manager(mode, resets):
    """Tag and seed of each group at each reset."""
    with EnvStateManager(config(), mode) as manager:
        for _ in range(resets):
            manager.reset()
            entries = manager.envs[:: 4 if mode == "train" else 3]
            yield from ((entry["tag"], entry["status"].seed) for entry in entries)


@pytest.mark.parametrize(("mode", "resets"), [("train", 3), ("val", 1)])
def test_rows_are_the_groups_of_the_managers_resets(mode, resets):
    rows = list(dataset.rows(config(), mode, resets))
    assert [(row["extra_info"]["tag"], row["extra_info"]["seed"]) for row in rows] == list(by_manager(mode, resets))
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
    assert {row["extra_info"]["mode"] for row in rows} == {mode}
    assert all(row["data_source"] == row["extra_info"]["tag"] for row in rows)


def test_without_a_training_seed_every_step_draws_one():
    rows = [row["extra_info"]["seed"] for row in dataset.rows(config("seed.train=null"), "train", 4)]
    assert rows[1] == rows[0] + 1 and rows[2] == rows[0] + 2
    assert len({seed - place % 3 for place, seed in enumerate(rows)}) > 1


def test_seeds_that_would_run_out_are_refused():
    with pytest.raises(ConfigError, match=r"step 2: .* would get the seeds"):
        list(dataset.rows(config(f"seed.train={2**32 - 8}"), "train", 3))


def test_what_is_written_is_what_verls_dataset_reads(tmp_path):
    from verl.utils.dataset.rl_dataset import RLHFDataset

    path = tmp_path / "rows" / "train.parquet"
    assert dataset.write(config(), path, steps=2) == 6
    settings = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts": False})
    read = RLHFDataset(str(path), None, settings)
    row = read[3]
    assert row["extra_info"] == {"index": 3, "tag": "Bandit", "seed": 10003, "mode": "train"}
    assert row["index"] == 3 and row["raw_prompt"]


def test_groups_seeds_and_sampling_become_verls(tmp_path):
    made = trainer(tmp_path, "actor_rollout_ref.rollout.temperature=0.7", "actor_rollout_ref.rollout.top_p=0.9")
    rollout = made.actor_rollout_ref.rollout
    assert (rollout.n, rollout.val_kwargs.n, made.data.train_batch_size) == (4, 3, 3)
    assert made.actor_rollout_ref.actor.ppo_mini_batch_size == 3
    assert (rollout.temperature, rollout.top_p, rollout.val_kwargs.temperature) == (0.7, 0.9, 0.5)
    assert rollout.agent.default_agent_loop == "ragen_env"
    entry = OmegaConf.load(rollout.agent.agent_loop_config_path)[0]
    assert (entry.name, entry["_target_"]) == ("ragen_env", "ragen.agent_loop.loop.RagenEnvLoop")
    assert made.algorithm.adv_estimator == "grpo"
    assert made.data.shuffle is False
    likeliest = trainer(tmp_path, "actor_rollout_ref.rollout.val_kwargs.do_sample=false")
    assert likeliest.actor_rollout_ref.rollout.val_kwargs.temperature == 0  # what verl looks at


def test_lengths_are_worked_out_from_the_context_and_the_reply(tmp_path):
    made = trainer(tmp_path)
    rollout = made.actor_rollout_ref.rollout
    assert (rollout.max_model_len, rollout.prompt_length, rollout.response_length) == (3600, 1024, 2576)
    windowed = trainer(tmp_path, "++agent_proxy.context_window_mode=single_turn").actor_rollout_ref.rollout
    assert (windowed.prompt_length, windowed.response_length) == (3200, 400)
    asked = trainer(tmp_path, "agent_loop.prompt_length=600", "data.max_response_length=2000").actor_rollout_ref.rollout
    assert (asked.prompt_length, asked.response_length) == (600, 2000)


def test_ragens_keys_keep_their_meaning_in_their_own_section(tmp_path):
    made, given = trainer(tmp_path), config()
    assert ContextSettings.read(made.ragen) == ContextSettings.read(given)
    given.es_manager.crash_report_dir = str(Path("outputs/crash_reports").absolute())
    read = as_config({"es_manager": made.ragen.es_manager, "custom_envs": made.ragen.custom_envs})
    assert (read.es_manager, read.custom_envs) == (given.es_manager, given.custom_envs)
    assert "es_manager" not in made and "backend" not in made.trainer


def test_any_key_of_verl_may_be_set_and_one_that_it_lacks_is_named(tmp_path):
    made = trainer(
        tmp_path,
        "trainer.n_gpus_per_node=8",
        "algorithm.kl_ctrl.kl_coef=0.5",
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.override_config.rope_theta=1",
        "ray_kwargs.ray_init.num_gpus=1",
        "trainer.backend=verl",
    )
    assert (made.trainer.n_gpus_per_node, made.algorithm.kl_ctrl.kl_coef) == (8, 0.5)
    assert made.actor_rollout_ref.model.override_config == {"attn_implementation": "sdpa", "rope_theta": 1}
    assert made.ray_kwargs.ray_init.num_gpus == 1


def test_a_heading_with_nothing_below_says_nothing(tmp_path):
    given = config(f"output_dir={tmp_path}")
    expected = training.trainer_config(given)
    empty = OmegaConf.create(
        {**plain_sections(given), "output_dir": given.output_dir, "trainer": None, "data": None, "algorithm": None}
    )
    made = training.trainer_config(empty)
    assert all(made[name] == expected[name] for name in ("trainer", "data", "algorithm"))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("agent_proxy.reward_normalization.method=mean_std", "agent_proxy.reward_normalization.method"),
        ("agent_loop.prompt_length=3300", "agent_loop.prompt_length"),
        ("agent_loop.queue_timeout=0", "agent_loop.queue_timeout"),
        ("es_manager.val.env_configs.tags=[VisualSimpleSokoban]", "render_mode"),
        ("actor_rollout_ref.rollout.max_model_len=null", "max_model_len"),
        ("es_manager.failed_trajectories=drop_group", "es_manager.failed_trajectories"),
        ("agent_proxy.max_turn=0", "max_turn"),
        ("es_manager.train.env_groups=4", "es_manager.train"),
        ("algorithm=3", "algorithm"),
        ("actor_rollout_ref.rollout=3", "actor_rollout_ref.rollout"),
        ("actor_rollout_ref.actor=3", "actor_rollout_ref.actor"),
        ("algorithm.bi_level_gae=true", "algorithm.bi_level_gae"),
        ("trainer.gradient_analysis_mode=true", "trainer.gradient_analysis_mode"),
        ("trainer.n_gpu=8", "trainer.n_gpu"),
        ("actor_rollout_ref.rollout.rollout_filter_ratio=0.25", "rollout_filter"),
        ("collapse_detection.first_turn_enabled=true", "collapse_detection"),
        ("actor_rollout_ref.actor.filter_loss_scaling=sqrt", "filter_loss_scaling"),
        ("use_parallel_envs=true", "use_parallel_envs"),
        ("agent_proxy.use_parallel_rollout=true", "agent_proxy.use_parallel_rollout"),
    ],
)
def test_what_agent_loops_cannot_do_is_refused_before_anything_starts(tmp_path, override, key):
    given = config(f"output_dir={tmp_path}")
    name, _, value = override.partition("=")
    given = OmegaConf.create(plain_sections(given))
    OmegaConf.update(given, name, OmegaConf.create(f"it: {value}").it, force_add=True)
    with pytest.raises(ConfigError, match=re.escape(key)):
        training.trainer_config(given)


def test_what_verl_refuses_is_a_configuration_error(tmp_path):
    made = trainer(tmp_path, "actor_rollout_ref.actor.use_dynamic_bsz=false")
    with pytest.raises(ConfigError):
        training.check_trainer(made)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config-name", "_2_sokoban", "algorithm.gamma=0.5", "actor_rollout_ref.rollout.name=vllm"],  # no GPU here
        ["--config-name", "_2_sokoban", "trainer.n_gpu=8"],
        ["--config-name", "tiny", "trainer.n_gpu=8"],
    ],
)
def test_train_py_stops_before_ray_where_it_cannot_run(tmp_path, monkeypatch, arguments):
    for name in ("RAY_ADDRESS", "VERL_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    assert command.main([*arguments, f"output_dir={tmp_path}"]) == 2


def test_everything_is_written_before_the_trainer_starts(tmp_path):
    made = trainer(tmp_path, "trainer.total_training_steps=2")
    path = training.prepare(made)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["train.parquet", "val.parquet", "verl.yaml"]
    again = OmegaConf.load(path)
    assert again.ragen == made.ragen
    assert again.actor_rollout_ref.rollout.n == 4


# Configurations of RAGEN's own

RAGENS = """
defaults: [{defaults}]
system: {{CUDA_VISIBLE_DEVICES: "0"}}
seed: {{train: 10000, val: 123}}
model_path: some/model
lora: {{rank: 0}}
actor_rollout_ref:
  model: {{path: "${{model_path}}", lora_rank: "${{lora.rank}}"}}
  actor: {{use_ref: true, grpo_advantage_length_weight: false}}
  rollout: {{max_model_len: 3600, response_length: 400, prompt_length: 1, rollout_filter_ratio: 1}}
data: {{max_prompt_length: null, train_batch_size: null}}
algorithm: {{adv_estimator: gae, bi_level_gae: false, high_level_gamma: 0.95}}
trainer: {{validation_steps: 1, total_training_steps: 3}}
agent_proxy: {{max_turn: 5, max_actions_per_turn: 5, action_sep: "||", enable_think: true}}
es_manager:
  format_penalty: -0.1
  train: {{env_groups: 2, group_size: 2, env_configs: {{tags: [Bandit], n_groups: [2]}}}}
  val: {{env_groups: 2, group_size: 1, env_configs: {{tags: [Bandit], n_groups: [2]}}}}
custom_envs:
  Bandit: {{env_type: bandit, max_actions_per_traj: 1, env_instruction: "", max_tokens: 100, env_config: null}}
ctx_manager: {{generation: {{top_p: "${{actor_rollout_ref.rollout.nowhere}}"}}}}
"""


def ragens(folder, *overrides, defaults="", more=""):
    (folder / "ragens.yaml").write_text(RAGENS.format(defaults=defaults) + more)
    return command.composed("ragens", [f"output_dir={folder / 'out'}", *overrides], str(folder))


@pytest.mark.parametrize("defaults", ["", "ppo_trainer"])
def test_ragens_own_configuration_is_taken_and_what_nobody_reads_is_told_once(tmp_path, caplog, defaults):
    made = training.trainer_config(ragens(tmp_path, defaults=defaults))
    (ignored,) = [text for text in caplog.messages if text.startswith("ignored: ")]
    for key in ("algorithm.high_level_gamma", "trainer.validation_steps"):
        assert key in ignored
    assert "lora" not in ignored and made.actor_rollout_ref.model.lora_rank == 0
    assert (made.data.train_batch_size, made.data.max_prompt_length) == (2, 1024)
    assert made.critic.model.path == made.actor_rollout_ref.model.path == "some/model"
    assert (made.algorithm.adv_estimator, made.trainer.total_training_steps) == ("gae", 3)
    assert made.actor_rollout_ref.actor.use_dynamic_bsz is True and made.data.train_files.endswith("train.parquet")
    assert made.ragen.custom_envs.Bandit.max_tokens == 100 and "ctx_manager" not in made.ragen


def test_verls_own_file_may_stand_before_the_base(tmp_path):
    (tmp_path / "both.yaml").write_text("defaults: [ppo_trainer, base]\n")
    said = ["actor_rollout_ref.actor.use_dynamic_bsz=false", f"output_dir={tmp_path}"]
    made = training.trainer_config(command.composed("both", said, str(tmp_path)))
    plain = training.trainer_config(command.composed("base", [f"output_dir={tmp_path}"]))
    assert made.actor_rollout_ref.actor.use_dynamic_bsz is False  # as verl has it, but said
    made.actor_rollout_ref.actor.use_dynamic_bsz = True
    for section in ("data", "trainer", "actor_rollout_ref"):
        assert made[section] == plain[section]
