"""A search: what it keeps, when a training ends, that it reproduces, and that a stopped one goes on to the same end."""

import json
import math

import numpy as np
import pytest

from ragen.cage2 import ParallelEnvWrapper
from ragen.errors import CheckpointError, ConfigError, EnvsFailedError
from support.later import cage2_trainer, torch

SMALL = {
    **{"n_envs": 3, "n_workflows": 3, "train_episodes_per_env": 4, "max_steps": 6, "update_every_steps": 6},
    **{"min_episodes": 2, "seed": 7, "simulator": "embedded", "use_multiprocessing": False},
    "compliance_definition": "fixed_before",  # which random actions do not keep to
}
ORDER = ("op_server", "enterprise", "user", "defender", "op_host")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def searched(folder, on_update=lambda training: None, **settings):
    trainer = cage2_trainer.ParallelWorkflowRLTrainer(**{**SMALL, "checkpoint_dir": str(folder), **settings})
    return trainer.run_workflow_search(on_update)


def weights(folder, iteration):
    state = torch.load(folder / "policies" / f"workflow_{iteration:03d}.pt", weights_only=True)
    return {name: value.tolist() for name, value in state["policy"].items()}


def recording(failing=()):
    """Environments of which some fail; and their resets, and the returns of their episodes by reset and environment."""
    resets, ended = [], []

    class Recording(ParallelEnvWrapper):
        def reset(self, seed=None):
            resets.append(seed)
            return super().reset(seed)

        def step(self, actions):
            found = super().step(actions)
            for env_id in np.flatnonzero(found[2]):
                ended.append((len(resets), env_id, found[3][env_id]["episode"]["r"]))
                found[3][env_id] |= {"env_error": "it failed"} if env_id in failing else {}
            return found

    return Recording, resets, ended


def test_a_search_writes_what_it_says(tmp_path):
    results, rows = searched(tmp_path), json.loads((tmp_path / "results.json").read_text())
    wanted = {"iteration", "workflow", "train_reward", "train_compliance", "avg_episodes_trained", "n_envs"}
    assert wanted | {"simulator", "coverage", "noise"} <= rows[0].keys()
    for number, (row, result) in enumerate(zip(rows, results, strict=True)):
        assert row["workflow"] == result.workflow and sorted(row["workflow"]) == sorted(ORDER)
        assert (row["iteration"], row["n_envs"], row["simulator"]) == (number, 3, "embedded")
        assert 0 <= row["train_compliance"] <= 1 and row["avg_episodes_trained"] == 4 and row["failed_episodes"] == 0
    assert {path.name for path in (tmp_path / "policies").iterdir()} == {f"workflow_00{i}.pt" for i in range(3)}


def test_environments_are_reset_before_each_workflow_and_results_are_of_their_rewards_alone(tmp_path, monkeypatch):
    # The seed never reset an environment after the first workflow, and no episode ever ended.
    envs, resets, ended = recording()
    monkeypatch.setattr("ragen.cage2.trainer.ParallelEnvWrapper", envs)
    first, *_ = searched(tmp_path, alignment_alpha=1000.0)
    assert (len(set(resets)), len(ended)) == (3, 3 * 3 * 4)
    means = [np.mean([reward for number, who, reward in ended if (number, who) == (1, i)]) for i in range(3)]
    assert first.train_reward == pytest.approx(np.mean(means))
    assert first.noise == pytest.approx(np.std(means, ddof=1) / math.sqrt(3))


def test_a_seed_reproduces_a_search_also_one_that_was_broken_off_or_is_made_longer(tmp_path):
    def breaks(training):
        if training.iteration == 1 and training.played == 2:
            raise KeyboardInterrupt

    whole, other = searched(tmp_path / "whole"), searched(tmp_path / "other", seed=8)
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "broken", on_update=breaks)
    searched(tmp_path / "short", n_workflows=2)
    for name in ("broken", "short"):
        assert searched(tmp_path / name) == whole != other
        for place in ("search.json", "results.json"):
            assert (tmp_path / name / place).read_text() == (tmp_path / "whole" / place).read_text()
        assert [weights(tmp_path / name, i) for i in range(3)] == [weights(tmp_path / "whole", i) for i in range(3)]
    with pytest.raises(CheckpointError):
        searched(tmp_path / "whole", lr=0.1)
    (tmp_path / "whole" / "search.json").write_text("{}")
    with pytest.raises(CheckpointError):
        searched(tmp_path / "whole")


def episodes(count, compliant, fixes):
    return [(0.0, compliant / fixes if fixes else 0.5, fixes)] * count


ENDS = [  # the episodes of the third of three environments, and how many fixes each of the others' has
    (episodes(5, 2, 2), 2, True),
    (episodes(1, 0, 2) + episodes(5, 2, 2), 2, True),  # only the last five count
    (episodes(3, 2, 2), 2, False),  # it has played less than four
    (episodes(4, 2, 2) + episodes(1, 0, 2), 2, False),  # 0.8 in one of three: 0.933
    (episodes(5, 0, 0), 2, False),  # who never fixes counts one half, not full
    (episodes(1, 1, 1) + episodes(5, 0, 0), 0, False),  # less than ten fixes
]


@pytest.mark.parametrize(("third", "fixes", "ends"), ENDS)
def test_a_training_ends_early_only_where_all_three_conditions_hold(third, fixes, ends):
    given = {**SMALL, "min_episodes": 4, "compliance_threshold": 0.95 if fixes else 0.5}
    training = cage2_trainer.WorkflowTraining(cage2_trainer.SearchSettings(**given), ORDER, 0)
    played = [*[episodes(5, fixes, fixes)] * 2, third]
    training.episodes = [[cage2_trainer.Episode(*one) for one in each] for each in played]
    assert training.complies() is ends


def test_who_complies_ends_early_and_who_does_not_plays_to_the_cap(tmp_path):
    early = searched(tmp_path / "early", compliance_threshold=0.0, train_episodes_per_env=8)
    late = searched(tmp_path / "late", compliance_threshold=1.0, update_every_steps=4)
    assert [(each.stopped_early, each.avg_episodes_trained) for each in late] == [(False, 4.0)] * 3
    ended = [each for each in early if each.stopped_early]
    assert ended and all(2 <= each.avg_episodes_trained < 8 for each in ended)


def test_episodes_that_failed_count_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("ragen.cage2.trainer.ParallelEnvWrapper", recording([1])[0])
    (result,) = searched(tmp_path / "one", n_workflows=1)
    assert (result.failed_episodes, result.avg_episodes_trained) == (4, pytest.approx(8 / 3))
    monkeypatch.setattr("ragen.cage2.trainer.ParallelEnvWrapper", recording([0, 1])[0])
    with pytest.raises(EnvsFailedError):
        searched(tmp_path / "two")
    assert not (tmp_path / "two" / "search.json").exists()


DEFAULTS = {
    **{"n_envs": 25, "n_workflows": 20, "train_episodes_per_env": 50, "max_steps": 100, "gp_beta": 2},
    **{"alignment_alpha": 50, "alignment_beta": 50, "compliance_threshold": 0.95, "min_episodes": 10},
    **{"update_every_steps": 25, "k_epochs": 8, "eps_clip": 0.2, "lr": 0.002, "gamma": 0.99},
}


def test_defaults_are_those_with_which_trainings_comply():
    assert cage2_trainer.SearchSettings().model_dump().items() >= DEFAULTS.items()


WRONG = [
    *({"n_workflow": 3}, {"n_envs": 1}, {"n_envs": 2.5}, {"max_steps": 0}, {"seed": -1}, {"gp_beta": -1}),
    *({"compliance_threshold": 95}, {"compliance_definition": "strict"}, {"use_multiprocessing": "perhaps"}),
    *({"simulator": "real"}, {"red_agent_type": "Nobody"}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_setting_that_cannot_work_is_named_before_anything_is_written(tmp_path, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        cage2_trainer.ParallelWorkflowRLTrainer(checkpoint_dir=str(tmp_path), **wrong)
    assert not list(tmp_path.iterdir())
