"""``ragen push``: a run as a dataset folder, and its upload."""

import json
import sys
import types

import pytest
import yaml
from test_frames import row, write

from ragen.cli.main import main as ragen
from ragen.llm_agent.evaluation import push
from ragen.llm_agent.evaluation.push import main


@pytest.fixture
def run(tmp_path):
    rows = [row(0), row(1, False)]
    about = {"actor.model": "a|model", "actor.base_url": "http://inside.example/v1", "mode": "val"}
    return write(tmp_path / "a run", rows, **about)


class Hub:
    """What is called of the hub's client."""

    endpoint = "https://hub.example"
    fails = False

    def __init__(self):
        Hub.calls = []

    def create_repo(self, *words, **more):
        self.calls.append(("create", words, more))

    def upload_folder(self, **more):
        if self.fails:
            raise OSError("no\nnetwork")
        self.calls.append(("upload", more))


@pytest.fixture
def hub(monkeypatch):
    module = types.ModuleType("huggingface_hub")
    module.HfApi, module.get_token = Hub, lambda: "secret"
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(Hub, "fails", False)
    return module


def test_a_dataset_has_a_card_the_rows_and_tables(run, capsys):
    assert main([str(run)]) == 0
    folder = run / "dataset"
    card = (folder / "README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["pretty_name"] == "a run"
    files = {each["config_name"]: folder / each["data_files"] for each in head["configs"]}
    assert list(files) == ["trajectory", "turn"] and all(path.is_file() for path in files.values())
    assert (folder / "rollouts.jsonl").read_bytes() == (run / "rollouts.jsonl").read_bytes()
    assert "a\\|model" in card and "| A/B | 2 | 50.0% |" in card
    assert not any(
        "inside.example" in path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file()
    )
    assert json.loads((folder / "run.json").read_text())["actor.model"] == "a|model"
    assert "--to OWNER/NAME" in capsys.readouterr().out


def test_a_dataset_that_is_written_again_has_tables_of_one_kind(run, monkeypatch):
    has = {"pyarrow": None}
    monkeypatch.setattr(push, "find_spec", has.get)
    for spec, kind in ((None, "jsonl"), ("installed", "parquet"), (None, "jsonl")):
        if spec is not None:
            pytest.importorskip("pyarrow")
        has["pyarrow"] = spec
        assert main([str(run)]) == 0
        assert sorted(path.name for path in (run / "dataset" / "data").iterdir()) == [
            f"trajectory.{kind}",
            f"turn.{kind}",
        ]


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["push", "{run}", "-o", "{run}"], "rollouts.jsonl"),
        (["push", "{run}", "-o", "{project}"], "README.md"),
        (["frame", "{run}", "-o", "{run}/rollouts.jsonl"], "rollouts.jsonl"),
        (["report", "{run}", "-o", "{run}/run.json"], "run.json"),
        (["compare", "{run}", "{run}", "-o", "{run}/rollouts.jsonl"], "rollouts.jsonl"),
    ],
)
def test_no_output_replaces_files_of_a_run_or_of_something_else(run, tmp_path, words, file, capsys):
    project = tmp_path / "project"
    project.mkdir()
    (project / "README.md").write_text("# mine\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert ragen([word.format(run=run, project=project) for word in words]) == 2
    told = capsys.readouterr().err
    assert file in told and "would be overwritten; name another" in told
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_dataset_can_be_loaded_as_the_hub_loads_it(run, tmp_path):
    datasets = pytest.importorskip("datasets")
    assert main([str(run)]) == 0
    turns = datasets.load_dataset(str(run / "dataset"), "turn", cache_dir=str(tmp_path / "cache"))["train"]
    assert turns.num_rows == 4 and turns[1]["reward"] == 2.0 and turns[0]["run"] == "a run"


def test_an_upload_makes_the_dataset_and_sends_the_folder(run, hub, capsys):
    assert main([str(run), "--to", "me/runs", "--private"]) == 0
    assert Hub.calls == [
        ("create", ("me/runs",), {"repo_type": "dataset", "private": True, "exist_ok": True}),
        ("upload", {"folder_path": str(run / "dataset"), "repo_id": "me/runs", "repo_type": "dataset"}),
    ]
    assert "uploaded to https://hub.example/datasets/me/runs" in capsys.readouterr().out


@pytest.mark.parametrize(("to", "token", "said"), [("runs", "key", "OWNER/NAME"), ("me/runs", None, "a login")])
def test_an_upload_that_cannot_be_is_refused_before_anything_is_written(run, hub, to, token, said, capsys):
    hub.get_token = lambda: token
    assert main([str(run), "--to", to]) == 2
    assert said in capsys.readouterr().err and not (run / "dataset").exists()


def test_an_upload_that_fails_is_one_sentence_and_the_dataset_is_there(run, hub, monkeypatch, capsys):
    monkeypatch.setattr(Hub, "fails", True)
    assert main([str(run), "--to", "me/runs"]) == 2
    told = capsys.readouterr().err
    assert "did not take it: no network" in told and told.count("\n") == 1 and (run / "dataset/README.md").is_file()


def test_a_run_without_rows_is_no_dataset(tmp_path, capsys):
    write(tmp_path / "run", [])
    assert main([str(tmp_path / "run")]) == 2
    assert "has no trajectory" in capsys.readouterr().err
