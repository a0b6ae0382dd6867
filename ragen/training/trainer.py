"""Trains the tiny model: warm-up, then alternating rollouts and updates, with checkpoints for exact resumption.

A step depends only on the configuration, the weights and optimizers, the step's number, the counter of environment
seeds, and the counter of answered batches, from which the sampling seeds are derived. A checkpoint has all of these, so
a resumed run has the same weights and metrics, bit for bit, as an uninterrupted one. The replies since the checkpoint
are in a journal, so that it goes on at the turn where it stood.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from envlanes.closing import Closing
from ragen.checkpoints import CheckpointFolder, restore_random_states, seed_everything
from ragen.commands import StopRequest
from ragen.config import as_config, changed_settings
from ragen.errors import CheckpointError, ConfigError, one_line, shown_path
from ragen.extras import needs
from ragen.files import why_no_folder
from ragen.llm_agent.backends import ReplyJournal, create_tokenizer
from ragen.llm_agent.filtering import GroupFilter
from ragen.results import REPLIES
from ragen.torch_threads import torch_threads
from ragen.training.collapse import CollapseDetector
from ragen.training.curves import METRICS_FILE, PHASES, TRAIN, WARM_UP, MetricsFile, draw_curve
from ragen.training.filtering import sample_groups
from ragen.training.player import Played, Player, rollout_metrics
from ragen.training.settings import AUTO, about_training, check_training
from ragen.training.tiny_model import build_model
from ragen.training.training_batch import training_batch
from ragen.training.trajectories import Group, all_members
from ragen.training.updates import Learner
from ragen.training.warm_up import WarmUp, demonstrations
from ragen.validity import check_share, env_error, failures_in_words

with needs("train", "`ragen train`"):
    from transformers import PreTrainedModel
    from transformers.utils import logging as hf_logging

CURVE_FILE = "learning_curve.png"


@dataclass(frozen=True)
class TrainingOutcome:
    """The outcome of a run.

    Attributes:
        finished: Whether all steps are done; False if it was interrupted.
        folder: The output folder.
        validations: Validation metrics of this process, by training step.
    """

    finished: bool
    folder: Path
    validations: dict[int, dict[str, float]]


def train(config: Any, quiet: bool = False) -> TrainingOutcome:
    """Train according to the configuration, until the last step is done or a stop is requested.

    Args:
        config: The whole configuration.
        quiet: Print nothing.

    Raises:
        ConfigError: The configuration is invalid; nothing was built.
        EnvsFailedError: More than half of the trajectories failed with their environments.
        RagenError: Training failed; the newest checkpoint is unaffected.
    """
    config = as_config(config)
    check_training(config)
    with StopRequest() as stop, torch_threads(config.trainer.threads), TinyTrainer(config, stop, quiet) as trainer:
        return trainer.run()


class TinyTrainer(Closing):
    """One run; a context manager.

    Attributes:
        model: The model.
        player: Plays rollouts with it.
        step: Number of finished training steps.
    """

    def __init__(self, config: Any, stop: StopRequest, quiet: bool = False) -> None:
        """Check everything, and create model and environments.

        Args:
            config: The whole configuration.
            stop: Checked after every step.
            quiet: Print nothing.

        Raises:
            ConfigError: The checkpoints are of a run with another configuration.
            CheckpointError: There are checkpoints, but none can be read.
        """
        self._config, self._keys = config, config.trainer
        self._folder = Path(config.output_dir).absolute()  # environments may change the working directory
        self._filters = GroupFilter.read(config)
        self._collapse = CollapseDetector(
            config.collapse_detection, self._keys.seed, config.tiny_model.max_position_embeddings
        )
        self._checkpoints = CheckpointFolder(self._folder / "checkpoints", PHASES, self._keys.max_ckpt_to_keep)
        self._about = about_training(config)
        self._found = self._find() if self._keys.resume_mode == AUTO else None
        self._stop, self._quiet = stop, quiet
        self._tokenizer = create_tokenizer(config)
        self.model: PreTrainedModel = build_model(config.tiny_model, self._tokenizer, self._keys.seed)
        self.player = Player(config, self.model, self._tokenizer)
        self.step = 0
        self._tags = list(dict.fromkeys(config.es_manager.train.env_configs.tags))
        self._val_tags = list(dict.fromkeys(config.es_manager.val.env_configs.tags))
        self._validations: dict[int, dict[str, float]] = {}
        self._metrics: MetricsFile | None = None
        self._journal: ReplyJournal | None = None
        self._errors: list[str | None] = []  # of each trajectory of this process

    def close(self) -> None:
        """Close environments and files; may be called twice."""
        self.player.close()
        for file in (self._metrics, self._journal):
            if file is not None:
                file.close()

    def run(self) -> TrainingOutcome:
        """Resume from the newest checkpoint, or start; see :func:`train`."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = why_no_folder(self._folder, error)
            raise ConfigError(f"configuration key 'output_dir' is {shown_path(self._folder)!r}: {why}.") from error
        seed_everything(self._keys.seed)
        self.player.prepare()
        journal = self._folder / REPLIES
        if self._keys.resume_mode != AUTO:
            self._checkpoints.set_aside()
            journal.unlink(missing_ok=True)
        self._journal = ReplyJournal(journal, self._about)
        self.player.record(self._journal)
        state, place = self._found, None
        if state is not None:
            place = PHASES.index(state["phase"]), state["step"]
        self._metrics = MetricsFile(self._folder / METRICS_FILE, place)
        size = sum(parameter.numel() for parameter in self.model.parameters())
        self._say(f"{size:,} parameters; {', '.join(self._tags)}; output folder: {shown_path(self._folder)}")
        if state is not None:
            self._say(f"resuming after step {state['step']} of {state['phase']}")
        if self._journal.replies:
            self._say(f"{self._journal.replies} replies since then are taken from {shown_path(journal)}")
        finished = self._warm_up(state) and self._train(state)
        self._say(self._last_words(finished))
        if failed := failures_in_words(self._errors):
            count = sum(error is not None for error in self._errors)
            self._say(f"{count} of {len(self._errors)} episodes were left out, as their environments failed: {failed}")
        if self.player.proxy.parallel is None:  # joblib's workers measure nothing
            self._say(self.player.work().describe())
        return TrainingOutcome(finished, self._folder, self._validations)

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)

    def _find(self) -> dict[str, Any] | None:
        """The checkpoint to resume from, checked to be of the same training."""
        found = self._checkpoints.newest()
        changed = [] if found is None else changed_settings(found["about"], self._about)
        if changed:
            keys = ", ".join(f"{key} was {old} and is {new}" for key, old, new in changed)
            raise ConfigError(
                f"the training in {shown_path(self._folder)} was started with another configuration ({keys}); "
                "use another output_dir, or trainer.resume_mode=disable to start over."
            )
        return found

    # The two phases

    def _warm_up(self, state: Mapping[str, Any] | None) -> bool:
        """Warm up; returns whether it finished."""
        if state is not None and state["phase"] == TRAIN:
            return True
        settings, done = self._config.warm_up, 0 if state is None else state["step"]
        if done == settings.steps == 0:
            return True
        rows = demonstrations(self._config, self._tokenizer, settings)
        warm_up = WarmUp(self.model, rows, settings, self._tokenizer.pad_token_id, self._keys.seed)
        if state is not None:
            self._load(warm_up.optimizer, state)
        self.model.train()
        while done < settings.steps and not self._stop.wanted:
            metrics = warm_up.step(done)
            done += 1
            self._record(WARM_UP, done, metrics)
            if self._saves(done, settings.steps):
                self._save(WARM_UP, done, warm_up.optimizer)
        self.model.eval()
        return done >= settings.steps and not self._stop.wanted

    def _train(self, state: Mapping[str, Any] | None) -> bool:
        """Train by reinforcement learning; returns whether it finished."""
        steps, learner = self._keys.total_training_steps, Learner(self.model, self._config)
        if state is not None and state["phase"] == TRAIN:
            self._load(learner.optimizer, state)
            self.step = state["step"]
            self.player.seed_counter = state["seed_counter"]
            self.player.backend.position = state["batches"]
            self._collapse.averages.update(state["collapse"])
        else:
            self._record(TRAIN, 0, self._validate(0))
        while self.step < steps and not self._stop.wanted:
            metrics = self._train_step(learner)
            if self.step == steps or _is_due(self.step, self._keys.test_freq):
                metrics |= self._validate(self.step)
            self._record(TRAIN, self.step, metrics)
            check_share(self._errors)
            if self._saves(self.step, steps):
                self._save(TRAIN, self.step, learner.optimizer)
        self._export()
        return self.step >= steps

    def _train_step(self, learner: Learner) -> dict[str, float]:
        start, batches, keys = time.perf_counter(), list[Played](), self._config.algorithm.filter_groups

        def play() -> list[Group]:
            batches.append(self.player.play(with_thoughts=not batches and self._collapse.is_due(self.step + 1)))
            return batches[-1].groups

        useful = sample_groups(play, keys.enable, keys.max_num_gen_batches or 0)
        metrics = {f"train/{name}": value for name, value in rollout_metrics(batches, self._tags).items()}
        metrics["time/rollout"] = time.perf_counter() - start
        if thoughts := batches[0].thoughts:  # measured before groups are left out, and before the update
            metrics |= self._collapse.measure(thoughts, learner.scores_of_thoughts, self.step + 1)
        start = time.perf_counter()
        groups, chosen = self._chosen(learner, useful)
        metrics |= {**chosen, "filter/batches": len(batches), "filter/groups_kept": len(groups), "train/rows": 0.0}
        if any(member.rows for member in all_members(groups)):
            metrics |= learner.update(training_batch(groups, self._tokenizer.pad_token_id), self.step)
        self.step += 1
        self._errors += [env_error(each) for played in batches for each in played.errors]
        return metrics | {"time/update": time.perf_counter() - start}

    def _chosen(self, learner: Learner, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        """The groups to train on, and the filter's metrics."""
        filters = self._filters
        if groups and filters.metric.startswith("entropy") and not filters.keeps_all():
            batch = training_batch(groups, self._tokenizer.pad_token_id)
            rows: dict[int, list[float]] = {}
            for episode, row in zip(batch.episodes, learner.entropies(batch), strict=True):
                rows.setdefault(episode, []).append(fmean(row))
            means = (fmean(rows[place]) if place in rows else 0.0 for place in range(len(all_members(groups))))
            groups = [
                replace(group, members=[replace(member, entropy=next(means)) for member in group.members])
                for group in groups
            ]
        chosen = filters.chosen(filters.measures(groups))
        return [groups[place] for place in chosen], filters.metrics(groups, chosen)

    def _validate(self, step: int) -> dict[str, float]:
        played = self.player.play(val=True)
        errors = [env_error(each) for each in played.errors]
        self._errors += errors
        metrics = {f"val/{name}": value for name, value in rollout_metrics([played], self._val_tags).items()}
        self._validations[step] = metrics
        judged = "no episode could be judged"
        if "val/success" in metrics:
            rates = {tag: metrics[f"val/{tag}/success"] for tag in self._val_tags if f"val/{tag}/success" in metrics}
            details = ", ".join(f"{tag} {rate:.3f}" for tag, rate in rates.items())
            judged = f"success {metrics['val/success']:.3f} ({details}), reward {metrics['val/reward']:+z.3f}"
        failed = failures_in_words(errors)
        self._say(f"step {step:4d}: {judged}{f'; environments failed: {failed}' if failed else ''}")
        return metrics

    # Files

    def _record(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        assert self._metrics is not None
        self._metrics.log(metrics, step, phase)
        if any(name.startswith("val/") for name in metrics):
            draw_curve(self._folder / METRICS_FILE, self._folder / CURVE_FILE, ", ".join(self._tags))

    def _saves(self, step: int, last: int) -> bool:
        is_last = self._stop.wanted or step == last
        return is_last or _is_due(step, self._keys.save_freq)

    def _save(self, phase: str, step: int, optimizer: Any) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "about": self._about,
            "seed_counter": self.player.seed_counter,
            "batches": self.player.backend.position,
            "collapse": self._collapse.averages,
        }
        self._checkpoints.save(phase, step, state)
        if self._journal is not None:
            self._journal.forget()  # the checkpoint has what came of its replies

    def _load(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        try:
            self.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint in {shown_path(self._checkpoints.folder)} does not fit the configuration's model and "
                f"algorithm ({one_line(error)[:160]}); use another output_dir, or trainer.resume_mode=disable."
            ) from error
        restore_random_states(state["random"])

    def _export(self) -> None:
        """The model and its tokenizer as a Hugging Face folder, such as ``actor.backend: hf`` takes."""
        shown = hf_logging.is_progress_bar_enabled()
        hf_logging.disable_progress_bar()
        try:
            self.model.save_pretrained(self._folder / "model")
        finally:
            if shown:
                hf_logging.enable_progress_bar()
        self._tokenizer.save_pretrained(self._folder / "model")

    def _last_words(self, finished: bool) -> str:
        folder = shown_path(self._folder)
        if not finished and self._checkpoints.latest() is None:
            return "stopped before there was anything to save"
        if not finished:
            return f"stopped and saved; to resume: the same command with output_dir={folder}"
        return f"finished; in {folder}: {METRICS_FILE}, {CURVE_FILE}, checkpoints and the model"


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
