"""RAGEN 2026's own training loop, unchanged, on this package's context manager and proxy, with its own defaults.

What this package computes in its place is compared with it on random batches: measures of collapse, choices of groups,
buckets of groups, and weights of advantages. Its trainer is read from the archive in ``../shared``; skipped where that
is absent. Stand-ins take the places of verl's worker groups, whose models need GPUs, and of the few names that verl 0.9
has no more.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tarfile
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ragen.utils
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.filtering.group_filter import GroupFilter
from ragen.llm_agent.tokenizer import load_tokenizer
from ragen.training import command
from ragen.training.trajectories import Group, TokenRow, Trajectory
from support.later import torch, verl

ARCHIVE = Path(__file__).resolve().parents[3] / "shared" / "peers" / "ragen-up26.tar.gz"
pytestmark = pytest.mark.skipif(not ARCHIVE.is_file(), reason="no archive of RAGEN's 2026 sources beside this checkout")

STEPS = 3
SMALL = [
    "ppo_mini_batch_size=4",
    "es_manager.train.env_groups=3",
    "es_manager.train.group_size=4",
    "es_manager.train.env_configs.n_groups=[3]",
    "es_manager.val.env_groups=4",
    "es_manager.val.env_configs.n_groups=[4]",
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=2",
    "trainer.logger=[console]",
    "collapse_detection.compute_freq=3",  # of the three steps the first and the last
]
OF_OLDER_VERL = ["+reward_model.launch_reward_fn_async=false"]  # what the verl of its time has by default


class Actor:
    """A model that walks about; its probabilities are drawn. Remembers what it was asked."""

    world_size = 2

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.draws = np.random.default_rng(7)
        self.modes: list[str] = []
        self.updates: list[verl.DataProto] = []
        self.saved: list[int] = []

    def generate_sequences(self, prompts: verl.DataProto) -> verl.DataProto:
        self.modes.append(prompts.meta_info["mode"])
        if prompts.meta_info.get("skip_generation", False):
            return prompts
        moves = self.draws.choice(["Up", "Down || Left", "Right", "Fly", "Left || Up"], len(prompts))
        texts = [f"I go {move}.</think><answer>{move}</answer><|im_end|>" for move in moves]
        said = self.tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        mask = torch.cat([prompts.batch["attention_mask"], said["attention_mask"]], dim=1)
        columns = {"responses": said["input_ids"], "attention_mask": mask}
        return verl.DataProto.from_dict(columns, dict(prompts.non_tensor_batch), prompts.meta_info)

    def compute_log_prob(self, batch: verl.DataProto) -> verl.DataProto:
        shape = batch.batch["responses"].shape
        drawn = torch.from_numpy(self.draws.random(shape)).float()
        return verl.DataProto.from_dict({"old_log_probs": -drawn, "entropys": drawn})

    def compute_ref_log_prob(self, batch: verl.DataProto) -> verl.DataProto:
        return verl.DataProto.from_dict({"ref_log_prob": self.compute_log_prob(batch).batch["old_log_probs"]})

    def compute_values(self, batch: verl.DataProto) -> verl.DataProto:
        return verl.DataProto.from_dict({"values": torch.zeros(batch.batch["responses"].shape)})

    def update_actor(self, batch: verl.DataProto) -> verl.DataProto:
        self.updates.append(batch)
        return verl.DataProto(meta_info={"metrics": {"actor/loss": [float(batch.batch["advantages"].abs().sum())]}})

    def update_critic(self, batch: verl.DataProto) -> verl.DataProto:
        return verl.DataProto(meta_info={"metrics": {"critic/loss": [0.0]}})

    def save_checkpoint(self, local: str, remote: Any, step: int, max_ckpt_to_keep: Any = None) -> None:
        Path(local).mkdir(parents=True)
        self.saved.append(step)


class TrainerOfVerl:
    """What RAGEN's trainer has of verl's: here without Ray."""

    def __init__(self, config: Any, tokenizer: Any, *_: Any) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.reward_fn = self.val_reward_fn = self.scored
        self.use_rm, self.use_critic, self.use_reference_policy = False, True, True
        self.resource_pool_manager = types.SimpleNamespace(get_n_gpus=lambda: 1)
        self._create_dataloader(None, None, None, None)

    def init_workers(self) -> None:
        self.actor_rollout_wg = self.critic_wg = self.ref_policy_wg = Actor(self.tokenizer)

    def _load_checkpoint(self) -> None:
        self.global_steps = 0

    def _balance_batch(self, batch: verl.DataProto, metrics: Any) -> None:
        return None

    def scored(self, batch: verl.DataProto, return_dict: bool = False) -> Any:
        scores = batch.batch["rm_scores"]
        return {"reward_tensor": scores} if return_dict else scores


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    return made


def data_metrics(of_verl: Any, batch: verl.DataProto, use_critic: bool) -> Any:
    """verl's metrics of a batch, which now wants a column of prompts that it measures the width of."""
    prompts = batch.batch["input_ids"][:, : -batch.batch["responses"].shape[1]]
    return of_verl(verl.DataProto.from_dict({**batch.batch, "prompts": prompts}), use_critic)


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its trainer's module, of its own sources; all of ``ragen`` that it imports besides is this package's."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    spec = importlib.util.spec_from_file_location("upstream_utils", folder / "ragen" / "utils.py")
    utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils)
    monkeypatch.setattr(ragen.utils, "GenerationsLogger", utils.GenerationsLogger, raising=False)
    verl_trainer = importlib.import_module("verl.trainer.ppo.ray_trainer")
    reward = importlib.import_module("verl.trainer.ppo.reward")
    metrics = importlib.import_module("verl.trainer.ppo.metric_utils")
    monkeypatch.setattr(verl_trainer, "RayPPOTrainer", TrainerOfVerl)
    monkeypatch.setattr(metrics, "compute_data_metrics", partial(data_metrics, metrics.compute_data_metrics))
    monkeypatch.setattr(reward, "compute_reward", lambda batch, scored: (scored(batch), {}), raising=False)
    monkeypatch.setattr(reward, "compute_reward_async", None, raising=False)
    gone = {
        "verl.experimental.dataset": module("verl.experimental.dataset"),
        "verl.experimental.dataset.sampler": module("sampler", AbstractCurriculumSampler=object),
        "verl.utils.rollout_skip": module("rollout_skip", RolloutSkip=object),
        "ragen.trainer": module("ragen.trainer", __path__=[str(folder / "ragen" / "trainer")]),
    }
    for name, stand_in in gone.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    yield folder, importlib.import_module("ragen.trainer.agent_trainer")
    for name in [name for name in sys.modules if name.startswith("ragen.trainer.")]:
        monkeypatch.delitem(sys.modules, name)


def logged(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("step:")]


def test_its_loop_runs_with_its_defaults_on_our_proxy_and_context_manager(
    upstream: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, agent_trainer = upstream
    assert agent_trainer.LLMAgentProxy is LLMAgentProxy
    where = f"trainer.default_local_dir={tmp_path / 'checkpoints'}"
    config = command.composed("base", [*SMALL, *OF_OLDER_VERL, where], str(folder / "config"))
    trainer = agent_trainer.RayAgentTrainer(config, load_tokenizer(), {}, None)
    trainer.init_workers()
    trainer.init_agent_proxy()
    trainer.fit()
    trainer.agent_proxy.close()  # which its loop leaves open

    actor, lines = trainer.actor_rollout_wg, logged(capsys)
    assert [line.split(" - ")[0] for line in lines] == ["step:0", "step:1", "step:2", "step:3"]
    assert actor.saved == [STEPS, STEPS]  # the actor's and the critic's, once
    assert len(actor.updates) == STEPS and all(len(batch) % 12 == 0 for batch in actor.updates)
    for batch in actor.updates:
        assert batch.batch["advantages"].shape == batch.batch["response_mask"].shape
        assert torch.isfinite(batch.batch["advantages"]).all() and batch.batch["advantages"].abs().sum() > 0
    for line in (lines[0], lines[2]):
        assert "val-env/CoordSokoban/success:" in line
    for line in lines[1:]:
        assert "train/CoordSokoban/success:" in line and "rollout/empty_after_filter:0.0" in line
    for sample in ("trajectory", "first_turn"):
        assert [f"collapse_{sample}_sample/mi_estimate:" in line for line in lines[1:]] == [True, False, True]
    starts, ends = actor.modes.count("multiturn-start"), actor.modes.count("multiturn-end")
    assert starts == ends == STEPS + 3  # a rollout each: as many validations, before, at step 2 and last


# Its parts, on random batches


ROWS = 4  # of a group
WIDTH = 99  # the most tokens of a reply


def random_step(draws: Any, count: int) -> tuple[Any, Any, Any]:
    """Scores and entropies ``(count, ROWS)`` of a step's groups, those of one group equal, and lengths of replies."""
    scores, entropies, lengths = draws.random((count, ROWS)), draws.random((count, ROWS)), draws.random((count, ROWS))
    scores[0] = scores[0, 0] if draws.random() < 0.5 else 0.0
    entropies[0] = 0.0
    return scores, entropies, (1 + WIDTH * lengths).astype(int)


def as_batch(scores: Any, entropies: Any, lengths: Any) -> verl.DataProto:
    mask = (np.arange(WIDTH) < lengths.reshape(-1, 1)).astype(int)
    last = np.arange(WIDTH) == lengths.reshape(-1, 1) - 1
    columns = {
        "input_ids": np.ones_like(mask),
        "attention_mask": mask,
        "loss_mask": mask,
        "original_rm_scores": scores.reshape(-1, 1) * last,
        "entropys": entropies.reshape(-1, 1) * np.ones(WIDTH),
    }
    kept = {name: torch.tensor(value) for name, value in columns.items()}
    return verl.DataProto.from_dict(kept, {"group_ids": np.arange(len(scores)).repeat(ROWS)})


def as_groups(scores: Any, entropies: Any, lengths: Any) -> list[Group]:
    return [
        Group(
            str(number),
            [
                Trajectory(at, "Lake", score, score, [TokenRow([1] * size, [1] * size)], entropy=entropy)
                for at, (score, entropy, size) in enumerate(zip(*members, strict=True))
            ],
        )
        for number, members in enumerate(zip(scores.tolist(), entropies.tolist(), lengths.tolist(), strict=True))
    ]


STRATEGIES = [("top_p", 0.7), ("top_p", 0.9), ("top_k", 0.5), ("top_k_abs", 2)]


@pytest.mark.parametrize("metric", ["reward_variance", "reward", "length", "entropy", "entropy_variance"])
def test_groups_are_chosen_as_it_chooses_them_on_random_batches(upstream: Any, metric: str) -> None:
    build = importlib.import_module("ragen.trainer.rollout_filter").build_rollout_filter
    draws = np.random.default_rng(11)
    for number in range(80):
        strategy, value = STRATEGIES[number % 4]
        kind, count = ("largest", "smallest")[number // 4 % 2], int(draws.integers(2, 9))
        step, zeros = random_step(draws, count), bool(number % 3)
        theirs = build(value, kind, count, ROWS, metric, lambda batch: batch, zeros, strategy, "linear")
        ours = GroupFilter(value, strategy, kind, metric, zeros)
        groups = as_groups(*step)
        measures = ours.measures(groups)
        batch, logged = theirs.filter(as_batch(*step))
        kept = ours.chosen(measures)
        assert kept == sorted(set(batch.non_tensor_batch["group_ids"].tolist())), (number, measures)
        named = ours.metrics(groups, kept)
        assert len(named.keys() & logged.keys()) >= 3
        for name in named.keys() & logged.keys():
            assert named[name] == pytest.approx(float(logged[name]), abs=1e-5), name
