"""The command ``ragen push RUN``: a run as a dataset folder in the Hugging Face hub's format, uploaded where one may.

The folder has a card (``README.md``, whose head tells the hub which file is which split), the rows as they are
(``rollouts.jsonl``, which ``ragen score``, ``report`` and ``frame`` read again), the same as tables of trajectories and
of turns (Parquet where pyarrow is installed, else JSON lines), ``results.json`` and ``run.json``. Keys are in none of
these files; the addresses of servers are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError
from ragen.extras import needs

PROG = "ragen push"
FOLDER = "dataset"
CARD = "README.md"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PRIVATE = ("actor.base_url",)  # keys of run.json that say where, and nothing of what was played


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Write a run as a dataset folder in the Hugging Face hub's format: a card, the rows, and tables. "
        "With --to it is uploaded, which needs huggingface_hub and a login (hf auth login); nothing else is sent.",
        examples=(f"{prog} outputs/evaluate/NAME", f"{prog} outputs/evaluate/NAME --to me/sokoban-runs --private"),
    )
    top.add_argument("run", type=Path, metavar="RUN", help="the output_dir of a run")
    top.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="the dataset (default: RUN/dataset)")
    top.add_argument("--to", metavar="OWNER/NAME", help="upload it as this dataset of the hub")
    top.add_argument("--private", action="store_true", help="create the dataset as a private one")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0, or 2 where there is nothing to push, or no way to.
    """
    hub = None if options.to is None else _hub(options.to)
    folder = write_dataset(options.run, options.output)
    print(f"dataset in {folder}")
    if hub is None:
        print(f"to upload it: {prog} {options.run} --to OWNER/NAME")
        return 0
    try:
        hub.create_repo(options.to, repo_type="dataset", private=options.private or None, exist_ok=True)
        hub.upload_folder(folder_path=str(folder), repo_id=options.to, repo_type="dataset")
    except Exception as error:  # the client's own, and those of what it is built on
        what = " ".join(str(error).split())[:500] or type(error).__name__
        raise ConfigError(f"--to {options.to}: the hub did not take it: {what}; the dataset is in {folder}.") from error
    print(f"uploaded to {hub.endpoint}/datasets/{options.to}")
    return 0


def _hub(name: str) -> Any:
    """The hub's client, logged in.

    Raises:
        ConfigError: The name is invalid, or no user is logged in.
        MissingExtraError: The client is not installed.
    """
    if not _REPOSITORY.fullmatch(name):
        raise ConfigError(f"--to is {name!r}; expected OWNER/NAME.")
    with needs("hub", "an upload"):
        import huggingface_hub

    if not huggingface_hub.get_token():
        raise ConfigError("--to needs a login: run `hf auth login`, or set HF_TOKEN. Without --to nothing is uploaded.")
    return huggingface_hub.HfApi()


def write_dataset(run: Path, folder: Path | None = None) -> Path:
    """Write a run as a dataset folder; files of an earlier one are replaced.

    Args:
        run: The folder of a run, or its ``rollouts.jsonl``.
        folder: Where to; None is ``dataset`` in the run's folder.

    Raises:
        ConfigError: The run cannot be read, has no trajectory, or the folder cannot be written or has files of
            something else.
    """
    from ragen.files import replacing, write_whole
    from ragen.llm_agent.evaluation.frames import JSONL, PARQUET, PER, columns_of, write_table
    from ragen.llm_agent.evaluation.results import RESULTS, evaluate
    from ragen.llm_agent.report.contents import About
    from ragen.llm_agent.rollout.rollout_file import ABOUT, ROWS, name_of, read_records, rows_of, unfinished

    rows = rows_of(run)
    records = read_records(rows)
    if not records:
        raise ConfigError(f"{rows} has no trajectory.")
    folder = rows.with_name(FOLDER) if folder is None else folder
    there = [folder / name for name in (ROWS, ABOUT, RESULTS, CARD) if (folder / name).exists()]
    if there and not any((folder / "data").glob("trajectory.*")):
        raise ConfigError(
            f"{there[0]} is not of a dataset of ragen push, and would be overwritten; name another folder with "
            "--output."
        )
    kind = PARQUET if find_spec("pyarrow") is not None else JSONL
    tables = {per: columns_of([run], per) for per in PER}
    for columns in tables.values():
        columns["run"] = [name_of(run)] * len(columns["run"])
    about = About.of_folder(rows, [record["seed"] for record in records])
    facts = {**about.facts, **({"note": told} if (told := unfinished(rows, records)) else {})}
    try:
        files = {per: f"{per}.{kind}" for per, columns in tables.items() if columns.get("run")}
        for per, name in files.items():
            with replacing(folder / "data" / name) as file:
                write_table(tables[per], file, kind)
        for old in [folder / "data" / f"{per}.{ending}" for per in PER for ending in (PARQUET, JSONL)]:
            if old.name not in files.values():
                old.unlink(missing_ok=True)
        shutil.copyfile(rows, folder / ROWS)
        settings = {key: value for key, value in about.configuration.items() if key not in _PRIVATE}
        write_whole(folder / ABOUT, json.dumps(settings, indent=1, ensure_ascii=False) + "\n")
        if (results := rows.with_name(RESULTS)).is_file():
            shutil.copyfile(results, folder / results.name)
        write_whole(folder / CARD, card_of(name_of(run), facts, evaluate(records), files))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; name another with --output.") from error
    return folder


def card_of(name: str, facts: Mapping[str, Any], results: Sequence[Any], files: Mapping[str, str]) -> str:
    """The card of a dataset, in Markdown with the hub's YAML head.

    Args:
        name: Of the run.
        facts: What is known of it.
        results: Of its tags; see :class:`~ragen.llm_agent.evaluation.results.TagResult`.
        files: What a row is (``trajectory``, ``turn``), and the file below ``data/``.
    """
    configs = "".join(f'- config_name: {per}\n  data_files: "data/{file}"\n' for per, file in files.items())
    head = f"---\npretty_name: {json.dumps(name)}\ntags:\n- ragen\n- agent\n- rollouts\nconfigs:\n{configs}---\n"
    known = "".join(
        f"| {_cell(key)} | {_cell(value)} |\n" for key, value in facts.items() if key not in ("file", "server")
    )
    rows = "".join(
        f"| {_cell(one.tag)} | {one.judged} | {'-' if one.success is None else f'{one.success:.1%}'} | "
        f"{one.low:.1%} - {one.high:.1%} | {one.reward:z.3f} |\n"
        for one in results
    )
    return (
        f"{head}\n# {_cell(name)}\n\n"
        "Trajectories of a language-model agent, played with RAGEN-compatible environments.\n\n"
        f"| run | |\n|---|---|\n{known}\n"
        f"| tag | judged episodes | success | 95 % interval | mean reward |\n|---|---|---|---|---|\n{rows}\n"
        "```python\nfrom datasets import load_dataset\n\n"
        'rows = load_dataset("OWNER/NAME", "trajectory")\n```\n\n'
        "`data/` has a row for each trajectory and a row for each turn; `rollouts.jsonl` has the rows as they were "
        "written, and `run.json` what was played.\n"
    )


def _cell(value: object) -> str:
    """A value as a cell of a table, which nothing in it can end."""
    return " ".join(str(value).split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
