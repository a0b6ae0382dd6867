"""A search: what it keeps, when a training ends, that it reproduces, and that a stopped one goes on to the same end."""

import importlib.util
import json
import math

import numpy as np
import pytest

from ragen.cage2.order_search import OrderSearch
from ragen.cage2.results import Comparison, Episode, WorkflowResult, over_last
from ragen.cage2.settings import SearchSettings, settings_of
from ragen.cage2.workflow import EpisodeCompliance
from ragen.errors import CheckpointError, ConfigError, EnvsFailedError
from support.cage2_stand_in import StandInEnvs
from support.later import cage2_trainer, cage2_training, torch

SMALL = {
    **{"n_envs": 3, "n_workflows": 3, "train_episodes_per_env": 4, "max_steps": 6, "update_every_steps": 6},
    **{"min_episodes": 2, "seed": 7},
}
ORDER = ("op_server", "enterprise", "user", "defender", "op_host")


def searched(folder, on_update=lambda progress: None, should_stop=lambda: False, make_envs=StandInEnvs, **settings):
    arguments = {**SMALL, "checkpoint_dir": str(folder), "make_envs": make_envs, **settings}
    trainer = cage2_trainer.ParallelWorkflowRLTrainer(**arguments)
    trainer.run_workflow_search(on_update, should_stop)
    return trainer


def weights(trainer, iteration):
    state = torch.load(trainer.folder / "policies" / f"workflow_{iteration:03d}.pt", weights_only=True)
    return {name: value.tolist() for name, value in state["policy"].items()}


def asked(times):
    """Says once, at the given question, that it is to stop."""
    answers = iter([False] * (times - 1) + [True])
    return lambda: next(answers)


@pytest.fixture(autouse=True)
def one_thread_and_no_pictures(monkeypatch):
    """Pictures take longer than everything else; one test looks at one."""
    torch.set_num_threads(1)
    monkeypatch.setattr("ragen.cage2.trainer.draw_search", lambda path, results: path)


def test_a_search_draws_a_picture(tmp_path, monkeypatch):
    monkeypatch.undo()
    searched(tmp_path, n_workflows=1, update_every_steps=24)
    assert (tmp_path / "returns_by_order.png").read_bytes().startswith(b"\x89PNG")


def test_a_search_writes_what_it_says(tmp_path):
    trainer = searched(tmp_path)
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    wanted = {"iteration", "workflow", "train_reward", "train_compliance", "avg_episodes_trained", "n_envs"}
    assert wanted | {"simulator", "coverage", "noise"} <= rows[0].keys()
    for row, result in zip(rows, trainer.results, strict=True):
        assert row["workflow"] == result.workflow and sorted(row["workflow"]) == sorted(ORDER)
        assert (row["avg_episodes_trained"], row["n_envs"], row["simulator"]) == (4.0, 3, "stand-in")
        assert 0 <= row["train_compliance"] <= 1 and row["coverage"] >= 0 and row["failed_episodes"] == 0
        assert len(result.updates) == 4
    assert {path.name for path in (tmp_path / "policies").iterdir()} == {f"workflow_00{i}.pt" for i in range(3)}
    assert trainer.is_done and StandInEnvs.built[-1].is_closed


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_a_search_is_written_to_trackers_as_well_and_what_was_written_before_is_not_again(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    searched(tmp_path, n_workflows=2, logger=["tensorboard"])
    trainer = searched(tmp_path, n_workflows=3, logger=["tensorboard"])
    rewards = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train_reward")
    assert [each.step for each in rewards] == [0, 1, 2]
    assert [each.value for each in rewards] == pytest.approx([each.train_reward for each in trainer.results])


def test_the_search_is_told_the_returns_and_proposes_by_them(tmp_path):
    trainer = searched(tmp_path)
    again = OrderSearch(2.0, 7)
    for result in trainer.results:
        assert tuple(result.workflow) == again.propose()[0]
        again.observe(result.workflow, result.train_reward, result.noise)
    assert trainer.search.observations == again.observations


def test_environments_are_reset_before_each_workflow_and_episodes_end(tmp_path):
    # The seed never reset an environment after the first workflow, and no episode ever ended.
    class Counting(StandInEnvs):
        resets, ended = 0, 0

        def reset(self, seed=None):
            Counting.resets += 1
            return super().reset(seed)

        def step(self, actions):
            found = super().step(actions)
            Counting.ended += int(found[2].sum())
            return found

    searched(tmp_path, make_envs=Counting)
    assert (Counting.resets, Counting.ended) == (3, 3 * 3 * 4)


@pytest.mark.parametrize("parallel_workflows", [1, 2])
def test_a_seed_reproduces_a_search(tmp_path, parallel_workflows):
    one, other = (searched(tmp_path / name, parallel_workflows=parallel_workflows) for name in ("one", "other"))
    third = searched(tmp_path / "third", parallel_workflows=parallel_workflows, seed=8)
    assert one.results == other.results != third.results
    assert [weights(one, i) for i in range(3)] == [weights(other, i) for i in range(3)]


@pytest.mark.parametrize(("parallel_workflows", "stops"), [(1, (1, 9)), (2, (6,))])
def test_a_search_that_was_stopped_goes_on_to_the_same_end(tmp_path, parallel_workflows, stops):
    settings = {"parallel_workflows": parallel_workflows, "n_workflows": 4}
    whole = searched(tmp_path / "whole", **settings)
    for stop_at in stops:
        folder = tmp_path / f"stopped at {stop_at}"
        stopped = searched(folder, should_stop=asked(stop_at), **settings)
        assert not stopped.is_done and len(stopped.results) < 4
        resumed = searched(folder, **settings)
        assert resumed.results == whole.results
        assert [weights(resumed, i) for i in range(4)] == [weights(whole, i) for i in range(4)]
        assert (folder / "search.json").read_text() == (tmp_path / "whole" / "search.json").read_text()


def test_what_breaks_a_search_off_costs_the_training_under_way_alone(tmp_path):
    def breaks(progress):
        if progress.iteration == 1 and progress.played == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "broken", on_update=breaks)
    assert StandInEnvs.built[-1].is_closed
    resumed = searched(tmp_path / "broken")
    assert resumed.results == searched(tmp_path / "whole").results


def test_a_search_can_be_made_longer(tmp_path):
    searched(tmp_path / "one", n_workflows=1)
    assert searched(tmp_path / "one").results == searched(tmp_path / "whole").results


def test_a_search_goes_on_only_as_it_was_begun(tmp_path):
    searched(tmp_path, n_workflows=1)
    with pytest.raises(CheckpointError, match=r"had lr = 0\.002, and now it is 0\.1.*another checkpoint_dir"):
        searched(tmp_path, lr=0.1)

    class Other(StandInEnvs):
        simulator = "another"

    with pytest.raises(CheckpointError, match="'stand-in', and here plays 'another'"):
        searched(tmp_path, make_envs=Other)
    assert StandInEnvs.built[-1].is_closed
    (tmp_path / "search.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"search\.json cannot be read"):
        searched(tmp_path)


def test_workflows_that_train_at_once_are_different_and_get_their_own_rows(tmp_path):
    trainer = searched(tmp_path, parallel_workflows=3)
    assert len({tuple(each.workflow) for each in trainer.results}) == 3
    assert StandInEnvs.built[-1].n_envs == 9
    alone = searched(tmp_path / "alone", n_workflows=1)
    assert alone.results[0].workflow == trainer.results[0].workflow
    assert alone.results[0].updates == trainer.results[0].updates


def training(**settings):
    return cage2_training.WorkflowTraining(settings_of({**SMALL, **settings}), ORDER, 0)


def episode(compliant, fixes, reward=0.0):
    return Episode(reward, EpisodeCompliance(fixes, compliant))


def test_a_training_ends_early_only_where_all_three_conditions_hold():
    one = training(min_episodes=4, compliance_threshold=0.95)
    one.episodes = [[episode(0, 2)] + [episode(2, 2)] * 5 for _ in range(3)]  # only the last five count
    one._fixes = 10
    assert one.complies()
    one._fixes = 9
    assert not one.complies()
    one._fixes = 10
    one.episodes[2] = [episode(2, 2)] * 3
    assert not one.complies()  # one environment has played less than four
    one.episodes[2] = [episode(2, 2)] * 4 + [episode(0, 2)]
    assert not one.complies()  # 0.8 in one of three: 0.933
    one.episodes[2] = [episode(0, 0)] * 5
    assert not one.complies()  # who never fixes counts one half, not full


def test_who_complies_ends_early_and_who_does_not_plays_to_the_cap(tmp_path):
    early = searched(tmp_path / "early", compliance_threshold=0.0, train_episodes_per_env=8).results
    late = searched(tmp_path / "late", compliance_threshold=1.0).results
    assert [(each.stopped_early, each.avg_episodes_trained) for each in late] == [(False, 4.0)] * 3
    ended = [each for each in early if each.stopped_early]
    assert ended and all(2 <= each.avg_episodes_trained < 8 for each in ended)


def test_results_are_of_the_environments_rewards_alone(tmp_path):
    seen = []

    class Recording(StandInEnvs):
        def step(self, actions):
            found = super().step(actions)
            seen.extend((env_id, info["episode"]["r"]) for env_id, info in enumerate(found[3]) if "episode" in info)
            return found

    (result,) = searched(tmp_path, make_envs=Recording, n_workflows=1, alignment_alpha=1000.0).results
    means = [np.mean([reward for who, reward in seen if who == env_id]) for env_id in range(3)]
    assert result.train_reward == pytest.approx(np.mean(means))
    assert result.noise == pytest.approx(np.std(means, ddof=1) / math.sqrt(3))


def test_means_are_over_environments_of_their_last_five():
    episodes = [[episode(0, 4, reward=100.0)] + [episode(1, 2, reward=3.0)] * 5, [episode(0, 0, reward=1.0)], []]
    found = over_last(episodes)
    assert found == {"reward": 2.0, "noise": 1.0, "compliance": 0.5, "coverage": 1.0}
    assert all(math.isnan(each) for each in over_last([[], []]).values())


def test_the_best_and_the_worst_are_compared_with_their_noise():
    def result(reward, noise):
        return WorkflowResult(0, list(ORDER), reward, noise, 0.5, 1.0, 4.0, False, 0, 3, "stand-in")

    found = Comparison.of([result(-5.0, 3.0), result(-20.0, 4.0), result(-9.0, 1.0)])
    assert (found.best.train_reward, found.worst.train_reward, found.difference) == (-5.0, -20.0, 15.0)
    assert found.noise == pytest.approx(9.8, abs=1e-3)
    assert "more than the noise of 9.8" in found.lines() and "not more" not in found.lines()


def test_episodes_that_failed_count_for_nothing(tmp_path):
    def one_fails(*arguments, **others):
        return StandInEnvs(*arguments, **others, failing=(1,))

    (result,) = searched(tmp_path / "one", make_envs=one_fails, n_workflows=1).results
    assert result.failed_episodes == sum(
        result.failures.values()
    ) == 4 and result.avg_episodes_trained == pytest.approx(8 / 3)

    def two_fail(*arguments, **others):
        return StandInEnvs(*arguments, **others, failing=(0, 1))

    with pytest.raises(EnvsFailedError, match="it failed"):
        searched(tmp_path / "two", make_envs=two_fail)
    assert not (tmp_path / "two" / "search.json").exists()


def test_updates_need_not_fit_episodes(tmp_path):
    (result,) = searched(tmp_path, n_workflows=1, update_every_steps=4).results
    assert result.avg_episodes_trained == 4.0 and len(result.updates) == 6
    assert result.updates[0]["reward"] is None  # no episode had ended


def test_torch_computes_on_as_many_threads_as_before(tmp_path):
    torch.set_num_threads(2)
    seen = []
    searched(tmp_path, on_update=lambda progress: seen.append(torch.get_num_threads()), n_workflows=1)
    assert set(seen) == {1} and torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_defaults_are_those_with_which_trainings_comply():
    found = SearchSettings()
    assert (found.n_envs, found.n_workflows, found.train_episodes_per_env, found.max_steps) == (25, 20, 50, 100)
    assert (found.alignment_alpha, found.alignment_beta, found.gp_beta) == (50, 50, 2)
    assert (found.compliance_threshold, found.min_episodes, found.update_every_steps) == (0.95, 10, 25)
    assert (found.k_epochs, found.eps_clip, found.lr, found.gamma) == (8, 0.2, 0.002, 0.99)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_workflow": 3}, "'n_workflow'. Did you mean 'n_workflows'"),
        ({"n_envs": 1}, "'n_envs' is 1; expected at least 2"),
        ({"n_envs": 2.5}, r"'n_envs' is 2\.5; expected a whole number"),
        ({"max_steps": 0}, "'max_steps' is 0"),
        ({"seed": -1}, "seed = -1"),
        ({"compliance_threshold": 95}, r"'compliance_threshold' is 95\.0; expected a number from 0 to 1"),
        ({"gp_beta": -1.0}, "'gp_beta' is -1"),
        ({"compliance_definition": "strict"}, "'compliance_definition' is 'strict'"),
        ({"update_every_steps": 25}, "expected at most train_episodes_per_env"),
        ({"use_multiprocessing": "yes"}, "'use_multiprocessing' is 'yes'"),
    ],
)
def test_a_setting_that_cannot_work_is_named_before_anything_is_built(tmp_path, settings, said):
    built = len(StandInEnvs.built)
    with pytest.raises(ConfigError, match=said):
        searched(tmp_path, **settings)
    assert len(StandInEnvs.built) == built and not list(tmp_path.iterdir())
