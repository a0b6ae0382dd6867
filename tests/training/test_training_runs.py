"""Whole runs: what they write, that they resume exactly, and what stops them."""

import shutil
import signal

import pytest

from ragen.commands import StopRequest
from ragen.errors import CheckpointError, ConfigError
from ragen.training import command
from support.later import torch, training
from support.small_training import SMALL, metrics_of, small_config


def weights(folder, name):
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def plain(value):
    """A checkpoint's content that ``==`` compares."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def assert_same(whole, parts, name):
    assert plain(weights(whole, name)) == plain(weights(parts, name))
    assert metrics_of(whole) == metrics_of(parts)


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Drawing takes longer than a step; ``finished`` has its curve."""
    monkeypatch.setattr("ragen.training.trainer.draw_curve", lambda metrics, picture, title: True)


COLLAPSE = [
    f"collapse_detection.{name}" for name in ("first_turn_enabled=true", "multi_turn_enabled=true", "compute_freq=2")
]


def test_two_steps_and_two_more_after_resuming_equal_four_in_one_go(tmp_path):
    how = ["actor_rollout_ref.actor.ppo_epochs=2", *COLLAPSE]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    training.train(small_config(whole, *how, steps=4), quiet=True)
    shutil.copytree(whole, parts)
    (parts / "checkpoints" / "train_000004.pt").unlink()  # as if killed after the second step's checkpoint
    torch.manual_seed(99)
    assert training.train(small_config(parts, *how, steps=4), quiet=True).finished
    assert_same(whole, parts, "train_000004.pt")
    moved = weights(whole, "train_000004.pt")["model"]["model.embed_tokens.weight"]
    assert not torch.equal(moved, weights(whole, "train_000002.pt")["model"]["model.embed_tokens.weight"])


@pytest.mark.parametrize("after", [0, 3, 4, 99])
def test_a_run_that_was_killed_goes_on_at_the_turn_where_it_stood(tmp_path, monkeypatch, after):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rare = ["trainer.save_freq=2", "trainer.test_freq=0"]
    from ragen.llm_agent.backends.hf import HfBackend

    asked, generate = [], HfBackend.generate

    def counted(backend, requests, sampling):
        if len(asked) == limit:
            raise SystemExit("killed")
        asked.append(len(requests))
        return generate(backend, requests, sampling)

    monkeypatch.setattr(HfBackend, "generate", counted)
    limit = None
    training.train(small_config(whole, *rare, steps=3), quiet=True)
    batches, limit = asked.copy(), min(after, len(asked) - 1)
    asked.clear()
    with pytest.raises(SystemExit):
        training.train(small_config(parts, *rare, steps=3), quiet=True)
    limit = None
    assert training.train(small_config(parts, *rare, steps=3), quiet=True).finished
    assert asked == batches, "each batch was asked once"
    assert_same(whole, parts, "train_000003.pt")


def stop_when(monkeypatch, owner, method, times):
    """Send this process SIGINT when a method is called for the given time."""
    calls, original = [], getattr(owner, method)

    def counted(self, *arguments):
        calls.append(1)
        if len(calls) == times:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(owner, method, counted)


@pytest.mark.parametrize(
    ("method", "times", "left"), [("train", 1, "train_000001.pt"), ("warm_up", 2, "warm_up_000002.pt")]
)
def test_what_is_resumed_after_ctrl_c_equals_an_uninterrupted_run(tmp_path, monkeypatch, method, times, left):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rare = ["trainer.save_freq=0", "trainer.test_freq=0", "warm_up.steps=4"]
    training.train(small_config(whole, *rare, steps=3), quiet=True)
    with monkeypatch.context() as patch:
        owner = {"train": (training.TinyTrainer, "_train_step"), "warm_up": (training.WarmUp, "step")}[method]
        stop_when(patch, *owner, times=times)
        assert not training.train(small_config(parts, *rare, steps=3), quiet=True).finished
    assert max(path.name for path in (parts / "checkpoints").iterdir() if path.name.startswith(method)) == left
    assert training.train(small_config(parts, *rare, steps=3), quiet=True).finished
    assert_same(whole, parts, "train_000003.pt")


def test_the_second_ctrl_c_interrupts_at_once_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.wanted
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run with environments in a worker process."""
    folder = tmp_path_factory.mktemp("finished")
    how = ["es_manager.use_multiprocessing=true", "es_manager.max_workers=1", "trainer.max_ckpt_to_keep=1"]
    training.train(small_config(folder, *how), quiet=True)
    return folder


def test_a_run_leaves_metrics_a_learning_curve_a_checkpoint_and_a_model_that_loads(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lines = metrics_of(finished)
    assert [(line["phase"], line["step"]) for line in lines] == [
        ("warm_up", 1), ("warm_up", 2), ("train", 0), ("train", 1), ("train", 2),
    ]  # fmt: skip
    assert "val/success" in lines[2] and "val/TinyLake/success" in lines[4] and "val/success" not in lines[3]
    assert {"val/TinyLake/num_actions", "val/TinyLake/pass@1", "val/response_length"} <= lines[2].keys()
    assert {"train/TinyLake/num_actions", "train/TinyLake/pass@2", "train/response_length"} <= lines[3].keys()
    assert (finished / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (finished / "checkpoints").iterdir()] == ["train_000002.pt"]
    model = AutoModelForCausalLM.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    assert model.config.vocab_size == len(tokenizer)
    saved = weights(finished, "train_000002.pt")["model"]["model.embed_tokens.weight"]
    assert torch.equal(model.get_input_embeddings().weight, saved)


def test_a_run_that_is_over_is_not_trained_further(finished):
    before = metrics_of(finished)
    assert training.train(small_config(finished), quiet=True).finished
    assert metrics_of(finished) == before


def test_a_run_does_not_go_on_under_another_configuration_and_names_the_keys_that_differ(finished):
    before = sorted(finished.rglob("*"))
    changes = ["trainer.seed=5", "tiny_model.hidden_size=32", "es_manager.train.group_size=4", "custom_envs.Bandit.x=1"]
    with pytest.raises(ConfigError) as caught:
        training.train(small_config(finished, *changes[:-1], f"+{changes[-1]}", steps=3), quiet=True)
    assert all(change.partition("=")[0] in str(caught.value) for change in changes)
    assert sorted(finished.rglob("*")) == before


def test_a_run_goes_on_where_only_its_length_its_speed_and_what_it_writes_are_other_than_before(tmp_path):
    training.train(small_config(tmp_path, steps=1), quiet=True)
    free = ["test_freq=1", "save_freq=1", "max_ckpt_to_keep=2", "threads=2"]
    given = [*(f"trainer.{one}" for one in free), "agent_proxy.use_parallel_rollout=false"]
    config = small_config(tmp_path, *given, "es_manager.max_workers=1", steps=2)
    assert training.train(config, quiet=True).finished
    assert [line["step"] for line in metrics_of(tmp_path) if line["phase"] == "train"] == [0, 1, 2]


def test_resume_mode_disable_begins_anew_and_sets_aside_what_was_there(tmp_path):
    config = small_config(tmp_path, "trainer.resume_mode=disable", "warm_up.steps=1", steps=0)
    training.CheckpointFolder(tmp_path / "checkpoints", training.PHASES).save("train", 7, {})
    training.train(config, quiet=True)
    assert [line["phase"] for line in metrics_of(tmp_path)] == ["warm_up", "train"]
    assert [path.name for path in (tmp_path / "checkpoints.1").iterdir()] == ["train_000007.pt"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["warm_up_000001.pt"]


def test_ctrl_c_before_the_first_step_saves_nothing(tmp_path, monkeypatch):
    stop_when(monkeypatch, training.TinyTrainer, "run", times=1)
    assert command.main(["--config-name", "tiny", *SMALL, f"output_dir={tmp_path}"]) == 130
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("metric", ["entropy", "reward_variance"])
def test_a_filter_leaves_groups_out_of_the_step(tmp_path, metric):
    keys = ("strategy=top_k_abs", "value=1", "type=largest", f"metric={metric}")
    config = small_config(tmp_path, *(f"++agent_proxy.rollout_filter_{key}" for key in keys), steps=1)
    training.train(config, quiet=True)
    step = metrics_of(tmp_path)[-1]
    assert (step["filter/groups_kept"], step["rollout/filter_kept_ratio"]) == (1, 0.5)


def test_a_run_whose_newest_checkpoint_cannot_be_read_ends_with_an_error(tmp_path):
    checkpoints = training.CheckpointFolder(tmp_path / "checkpoints", training.PHASES)
    path = checkpoints.save("train", 1, {"weight": torch.ones(3)})
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"train_000001\.pt"):
        training.train(small_config(tmp_path), quiet=True)


# The command


def test_the_command_trains(tmp_path):
    arguments = ["--config-name", "tiny", *SMALL, f"output_dir={tmp_path}", "trainer.total_training_steps=1"]
    assert command.main(arguments) == 0
    assert (tmp_path / "model").is_dir()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.backend=magic", "trainer.backend"),
        ("agent_proxy.rollout_filter_ratio=nan", "agent_proxy.rollout_filter_ratio"),
        ("warm_up.lr=inf", "warm_up.lr"),
        ("algorithm.filter_groups.metric=acc", "algorithm.filter_groups.metric"),
        ("es_manager.train.env_configs.tags=[Bandit,Nowhere]", "Nowhere"),
        ("actor_rollout_ref.rollout.response_length=4000", "response_length"),
    ],
)
def test_a_configuration_that_cannot_work_is_one_sentence_and_exit_code_2(tmp_path, capsys, override, said):
    arguments = ["--config-name", "tiny", *SMALL, f"output_dir={tmp_path / 'run'}", override]
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


# Slow: python -m pytest -m slow tests/training


def learn(folder, seed, sign):
    """Success at the first and the last validation of a run of the shipped configuration: over all, and of each tag."""
    from ragen.config.loading import load_config

    overrides = [f"output_dir={folder}", f"trainer.seed={seed}", f"trainer.reward_sign={sign}"]
    training.train(load_config("tiny", overrides), quiet=True)
    lines = [line for line in metrics_of(folder) if "val/success" in line]
    return [[line[f"val/{tag}success"] for tag in ("", "Bandit/", "TinyLake/")] for line in (lines[0], lines[-1])]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_success_rises_with_training_and_falls_where_the_reward_is_negated(tmp_path, seed, sign):
    (before, *tags_before), (after, *tags_after) = learn(tmp_path, seed, sign)
    assert (before < 0.75 and after > 0.85) if sign == 1 else after < before - 0.25
    assert all(sign * (after - before) > 0.15 for before, after in zip(tags_before, tags_after, strict=True))
