"""Runs as data frames, and as Parquet, CSV and JSON lines."""

import csv
import json
import subprocess
import sys

import pytest

import ragen
from ragen.errors import ConfigError, InputError
from ragen.llm_agent.evaluation.frames import columns_of, main
from ragen.llm_agent.rollout import command


def row(env_id, success=True, turns=2, **more):
    chat = [{"role": "system", "content": "Play."}]
    for turn in range(turns):
        chat += [
            {"role": "user", "content": f"You are at {turn}."},
            {"role": "assistant", "content": "<think>so</think><answer>Up</answer>"},
        ]
    infos = [{"action_is_valid": turn > 0, "success": success} for turn in range(turns)]
    return {
        "env_id": env_id, "group_id": env_id // 2, "tag": "A/B", "seed": 7 + env_id // 2, "mode": "val",
        "messages": chat, "actions": [[3], ["go"]][:turns], "rewards": [-0.5, 2][:turns], "infos": infos,
        "raw_replies": [" so </think> <answer>Up</answer>"] * turns, "penalty": 0, "success": success,
        "metrics": {"A/B/success": float(success), "A/B/num_actions": 2, "A/B/traj_sum/x": 1.5, "A/B/pass@2": 1.0},
    } | more  # fmt: skip


def write(folder, rows, **about):
    folder.mkdir(exist_ok=True)
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (folder / "run.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def run(tmp_path):
    used = [{"prompt_tokens": 10, "completion_tokens": 2, "finish_reason": "stop"}] * 2
    rows = [row(0, replies=[used[0], used[1] | {"cut_off": True}]), row(1, False, error="down"), row(2, turns=0)]
    return write(tmp_path / "run", rows, **{"actor.model": "a-model"})


def test_a_row_is_a_trajectory(run):
    table = columns_of([run])
    assert table["run"] == [str(run)] * 3 and table["model"] == ["a-model"] * 3 and table["seed"] == [7, 7, 8]
    assert table["outcome"] == ["judged", "missing reply", "judged"] and table["success"] == [True, False, True]
    assert table["reward"] == [1.5, 1.5, 0.0] and table["turns"] == [2, 2, 0] and table["actions"] == [2, 2, 0]
    assert table["metrics.num_actions"] == [2.0] * 3 and table["metrics.traj_sum/x"] == [1.5] * 3
    assert (table["prompt_tokens"], table["cut_off"]) == ([20, None, None], [1, None, None])
    assert table["messages"][2] == [{"role": "system", "content": "Play."}] and "metrics.success" not in table


def test_a_row_is_a_turn(run):
    table = columns_of([run], "turn")
    assert table["turn"] == [1, 2, 1, 2] and table["env_id"] == [0, 0, 1, 1]
    assert table["state"][:2] == ["You are at 0.", "You are at 1."] and table["actions"][:2] == [["3"], ["go"]]
    assert table["reply"][0].startswith(" so </think>") and table["thought"][0] == "so"
    assert table["reward"][:2] == [-0.5, 2.0] and table["action_is_valid"][:2] == [False, True]
    assert table["invalid_reply"][:2] == [False, False] and table["action_is_effective"][0] is None
    assert table["cut_off"] == [False, True, None, None] and json.loads(table["info"][0])["success"] is True


def test_actions_with_names_are_named(tmp_path):
    run = write(tmp_path / "run", [row(0, action_names={"3": "Right"}), row(1)])
    assert columns_of([run], "turn")["actions"] == [["Right"], ["go"], ["3"], ["go"]]


def test_a_reply_without_an_action_is_invalid_and_so_is_its_turn_as_in_the_table(tmp_path, capsys):
    games = ["es_manager.val.env_groups=4", "es_manager.val.env_configs.tags=[SimpleSokoban]"]
    keys = [*games, "es_manager.val.env_configs.n_groups=[4]", "es_manager.use_multiprocessing=false"]
    malformed = ["actor.scripted.malformed=0.3", "es_manager.val.group_size=1", "agent_proxy.max_turn=4"]
    assert command.main(["--config-name", "base", *keys, *malformed, f"output_dir={tmp_path}"]) == 0
    turns, rows = columns_of([tmp_path], "turn"), columns_of([tmp_path])
    share = sum(turns["invalid_reply"]) / len(turns["invalid_reply"])
    assert 0 < share < 1 and f"{share:.1%}" in capsys.readouterr().out
    assert sum(rows["invalid_replies"]) == sum(turns["invalid_reply"]) and None not in turns["action_is_valid"]
    nothing = [at for at, actions in enumerate(turns["actions"]) if not actions]
    assert nothing and not any(turns["action_is_valid"][at] for at in nothing)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_several_runs_are_one_data_frame_of_either_library(run, tmp_path, library):
    pytest.importorskip(library)
    other = write(tmp_path / "other", [row(0, parent=None), row(1, parent=0)])
    table = ragen.frames(run, str(other / "rollouts.jsonl"), library=library)
    assert type(table).__module__.startswith(library) and len(table) == 5
    assert list(table["reward"]) == [1.5, 1.5, 0.0, 1.5, 1.5] and "parent" in table.columns
    assert len(ragen.frames(run, per="turn", library=library)) == 4


def test_rows_without_texts_and_half_characters_are_rows_too(tmp_path):
    bare = {name: value for name, value in row(0).items() if name not in ("messages", "infos", "raw_replies")}
    run = write(tmp_path / "run", [bare, row(1, error="odd \ud800 text")])
    table = columns_of([run])
    assert table["messages"][0] is None and table["error"][1] == "odd \N{REPLACEMENT CHARACTER} text"
    turns = columns_of([run], "turn")
    assert (turns["state"][0], turns["reply"][0], turns["info"][0], turns["reward"][0]) == (None, None, None, -0.5)


def test_parquet_csv_and_json_lines_hold_the_same(run, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    for kind in ("parquet", "csv", "jsonl"):
        assert main([str(run), "-o", str(tmp_path / f"table.{kind}")]) == 0
    assert "3 rows in" in capsys.readouterr().out
    columns = columns_of([run])
    assert parquet.read_table(tmp_path / "table.parquet").to_pydict() == columns
    lines = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()]
    assert {name: [line[name] for line in lines] for name in columns} == columns
    with (tmp_path / "table.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [each["reward"] for each in cells] == ["1.5", "1.5", "0.0"] and json.loads(cells[0]["messages"])


def test_parquet_goes_to_standard_output(run):
    parquet = pytest.importorskip("pyarrow.parquet")
    import io

    ran = subprocess.run([sys.executable, "-m", "ragen", "frame", str(run), "--turns"], capture_output=True, check=True)
    assert parquet.read_table(io.BytesIO(ran.stdout)).num_rows == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere cannot be read"),
        (["run", "-o", "table.xlsx"], "expected .parquet, .csv, .jsonl, or --format"),
        (["run", "-o", "run/rollouts.jsonl/x.csv"], "cannot be written"),
    ],
)
def test_what_makes_no_table_is_one_sentence(run, words, said, capsys, monkeypatch):
    monkeypatch.chdir(run.parent)
    assert main(words) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_without_pyarrow_the_format_that_needs_no_package_is_named(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main([str(run), "-o", str(tmp_path / "rows.parquet")]) == 2
    assert capsys.readouterr().err.endswith(" CSV needs no package: --format csv.\n")
    assert main([str(run), "--format", "csv", "-o", str(tmp_path / "rows")]) == 0


def test_bad_arguments_are_named(run):
    with pytest.raises(InputError, match="per = 'episode'"):
        ragen.frames(run, per="episode")
    with pytest.raises(InputError, match="library = 'excel'"):
        ragen.frames(run, library="excel")
    with pytest.raises(InputError, match="no run"):
        ragen.frames()
    with pytest.raises(ConfigError, match="cannot be read"):
        ragen.frames(run / "nothing")
