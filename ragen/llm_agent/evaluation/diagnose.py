"""The command ``ragen diagnose RUN``: why trajectories failed, whether thoughts depend on prompts, and what to look at.

It reads what a run has written so far, by any backend, and asks a scorer how likely each sampled thought is after
each sampled prompt; :mod:`~ragen.llm_agent.evaluation.collapse` says what is computed of that, and how pairs are
sampled.

A training has measured this itself, with the policy as scorer; its steps are printed from its ``metrics.jsonl``.

A prompt is the chat up to the reply's thinking tag. Where the model was shown less than the whole chat, prompts are not
known and nothing is scored. Without a scorer the rates and scanners are printed alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.commands import counted
from ragen.errors import ConfigError
from ragen.extras import needs
from ragen.llm_agent.backends.prompt import text_of
from ragen.llm_agent.evaluation.collapse import (
    FIRST_TURNS,
    PREFIXES,
    TRAJECTORIES,
    VALID_THINKING,
    Thought,
    measured,
    sampled,
)
from ragen.llm_agent.evaluation.failures import FailureKind, described, failures_of, faults_of, told_invalid
from ragen.llm_agent.evaluation.scanners import Finding, Scan, scan, scanners_of
from ragen.llm_agent.evaluation.tables import plain_table
from ragen.llm_agent.prompting.replies import THINK, thought_of
from ragen.llm_agent.report.contents import About, episodes_of
from ragen.llm_agent.rollout.rollout_file import read_records, rows_of, unfinished
from ragen.output import new_console, print_table, printable
from ragen.statistics import ALL
from ragen.tracking import METRICS_FILE

if TYPE_CHECKING:
    from rich.console import Console

    from ragen.llm_agent.evaluation.scanners import Record
    from ragen.llm_agent.evaluation.scorers import Scorer

SAMPLES = 64  # the most pairs of a sample
_SHOWN = 3  # examples of each scanner
_COLUMNS = {
    "MI": "mi_estimate",
    "at most": "mi_upper_bound",
    "H(Z|X)": "conditional_entropy_est",
    "H(Z)": "reasoning_entropy_est",
    "z": "mi_zscore",
    "MI whole": "mi_seq_estimate",
    "top 1": "retrieval_accuracy",
    "chance": "retrieval_chance_level",
    "top 8": "retrieval_accuracy@8",
    "chance@8": "retrieval_chance_level@8",
}


@dataclass(frozen=True)
class Pair:
    """A prompt and the thought that came of it.

    Attributes:
        trajectory: Place of the trajectory among those that are looked at.
        group_id: Of the trajectory.
        turn: From 1.
        prompt: The chat up to the reply.
        thought: Without tags.
    """

    trajectory: int
    group_id: int
    turn: int
    prompt: Sequence[Mapping[str, Any]]
    thought: str


def pairs_of(records: Sequence[Record]) -> list[Pair]:
    """All turns that have a thought.

    Args:
        records: With their chats.
    """
    found = []
    for trajectory, record in enumerate(records):
        chat = record["messages"]
        places = [place for place, message in enumerate(chat) if message["role"] == "assistant"]
        for turn, place in enumerate(places, 1):
            if thought := thought_of(text_of(chat[place])):
                found.append(Pair(trajectory, record["group_id"], turn, chat[:place], thought))
    return found


def scored(scorer: Scorer, pairs: Sequence[Pair], by_group: bool) -> dict[str, Any]:
    """The measures of some pairs.

    Args:
        scorer: Says how likely thoughts are.
        pairs: The sample.
        by_group: Whether pairs of one group with equal prompts share a column; else each pair has its own.

    Returns:
        ``scorer``, and what :func:`~ragen.llm_agent.evaluation.collapse.measured` returns.
    """
    prompts, thoughts = _tokens(scorer, pairs)
    each = zip(pairs, prompts, thoughts, strict=True)
    found = [Thought(pair.trajectory, pair.group_id, pair.turn, prompt, ids) for pair, prompt, ids in each if ids]
    return {"scorer": scorer.name, **measured(found, scorer.log_probs, by_group, scorer.context)}


def _tokens(scorer: Scorer, pairs: Sequence[Pair]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    from ragen.llm_agent.prompting.chat_template import ChatTemplate

    template = ChatTemplate(scorer.tokenizer)
    texts = template.render([[dict(message) for message in pair.prompt] for pair in pairs], add_generation_prompt=True)
    opened = [text if text.rstrip().endswith(THINK) else text + THINK for text in texts]

    def ids(text: str) -> tuple[int, ...]:
        return tuple(scorer.tokenizer(text, add_special_tokens=False)["input_ids"])

    return [ids(text) for text in opened], [ids(pair.thought) for pair in pairs]


def diagnose(
    records: Sequence[Record], scorer: Scorer | None = None, samples: int = SAMPLES, seed: int = 0
) -> list[dict[str, Any]]:
    """What each tag's thoughts are worth, and those of all tags if there are several.

    Args:
        records: Of trajectories, with their chats.
        scorer: Says how likely thoughts are; without, only rates are told.
        samples: The most pairs of each sample.
        seed: Decides which.

    Returns:
        For each tag ``tag``, ``trajectories``, ``replies``, ``thoughts``, ``valid_thinking_rate`` (None without
        replies) and, with a scorer, ``samples``, ``first turns`` and ``trajectories`` to what :func:`scored` returns.
    """
    tags: dict[str, list[Record]] = {}
    for record in records:
        tags.setdefault(record["tag"], []).append(record)
    parts = list(tags.items())
    parts += [(ALL, records)] if len(tags) > 1 else []
    return [_tag(tag, members, scorer, samples, seed) for tag, members in parts]


def _tag(tag: str, records: Sequence[Record], scorer: Scorer | None, samples: int, seed: int) -> dict[str, Any]:
    pairs = pairs_of(records)
    replies = sum(message["role"] == "assistant" for record in records for message in record["messages"])
    told: dict[str, Any] = {
        "tag": tag,
        "trajectories": len(records),
        "replies": replies,
        "thoughts": len(pairs),
        "valid_thinking_rate": len(pairs) / replies if replies else None,
    }
    if scorer is None:
        return told
    later = any(pair.turn > 1 for pair in pairs)
    return told | {
        "samples": {
            how: scored(scorer, sampled(pairs, len(records), how, samples, seed), how == FIRST_TURNS)
            for how in (FIRST_TURNS, *([TRAJECTORIES] if later else []))
        }
    }


def run(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Args:
        options: What :func:`ragen.llm_agent.evaluation.diagnose_command.parser` has read.
        prog: The program's name.

    Returns:
        The exit code: 0 whatever is found.

    Raises:
        ConfigError: There is nothing to look at, or no scorer where one was named.
    """
    if options.samples < 2:
        raise ConfigError(f"--samples is {options.samples}; expected at least 2.")
    scanners = scanners_of(options.scanner, "--scanner")
    path = rows_of(options.run)
    if not path.exists() and (measured_steps := options.run / METRICS_FILE).exists():
        return _training(measured_steps, options)
    records = read_records(path)
    if not records:
        raise ConfigError(f"{path} has no trajectory yet.")
    unknown = _unknown_prompts(records, path)
    scorer = _scorer(options.scorer, options.overrides) if _wants_scorer(options) and not unknown else None
    has_chats = all("messages" in record for record in records)
    tags = diagnose(records, scorer, options.samples, options.seed) if has_chats else []
    episodes, configuration = episodes_of(records, path), About.of_folder(path).configuration
    failures, faults = failures_of(episodes, configuration), faults_of(episodes, configuration)
    found = scan(records, scanners)
    notes = [told] if (told := unfinished(path, records)) else []
    notes += unknown
    notes += _notes(tags, _wants_scorer(options), prog) if has_chats else []
    if options.json:
        about = {"run": str(path), "scorer": scorer.name if scorer else None, "seed": options.seed}
        scanned = {"scanners": found.as_json, "failed_scanners": found.failed, "without_texts": list(found.blind)}
        failed = [{"what": each.what, "said": each.said, "env_ids": _env_ids(each, records)} for each in failures]
        print(
            json.dumps(
                about | {"failures": failed, "invalid_replies": faults, "tags": tags, "notes": notes} | scanned,
                indent=1,
            )
        )
        return 0
    console = new_console(is_plain=True)
    _print_failures(console, failures, records)
    for told in filter(None, (described(faults), told_invalid(episodes))):
        console.print(f"\n{told}", soft_wrap=True)
    _print(console, tags, scorer, notes, found, len(records))
    return 0


def _env_ids(kind: FailureKind, records: Sequence[Record]) -> list[int]:
    return [records[number]["env_id"] for number in kind.numbers]


def _print_failures(console: Console, failures: Sequence[FailureKind], records: Sequence[Record]) -> None:
    if not failures:
        console.print(f"None of {counted(len(records), 'trajectory', 'trajectories')} failed.")
        return
    failed = sum(len(kind.numbers) for kind in failures)
    table = plain_table(
        f"Why {failed} of {len(records)} trajectories failed", "what happened", "trajectories", "example"
    )
    table.add_column("tags", overflow="fold")
    for kind in failures:
        what = f"{kind.what}: {kind.said}" if kind.said else kind.what
        example = f"env {_env_ids(kind, records)[0]}"
        table.add_row(printable(what), str(len(kind.numbers)), example, printable(kind.named))
    print_table(console, table)


def _wants_scorer(options: argparse.Namespace) -> bool:
    return options.scorer is not None or bool(options.overrides)


def _scorer(model: str | None, overrides: Sequence[str]) -> Scorer:
    """The scorer that the command line names.

    Raises:
        ConfigError: It names two, none, or one that cannot be had.
    """
    from omegaconf import OmegaConf

    from ragen.llm_agent.backends.factory import create_tokenizer
    from ragen.llm_agent.config.loading import load_config
    from ragen.llm_agent.evaluation.scorers import HfScorer, ServerScorer
    from ragen.settings import override_key, setting

    if wrong := [word for word in overrides if not override_key(word).startswith("actor.")]:
        if "=" not in wrong[0]:
            raise ConfigError(
                f"ragen diagnose takes one run, and {wrong[0]!r} is named besides; diagnose it separately."
            )
        raise ConfigError(f"{wrong[0]!r} is no key of a scorer; expected keys that begin with 'actor.'.")
    config = load_config("base", overrides)
    address = setting(config, "actor.base_url", str, None)
    if (model is None) == (address is None):
        raise ConfigError("name one scorer: --scorer MODEL, or a server with actor.base_url=ADDRESS.")
    OmegaConf.update(config, "actor.backend", "openai" if model is None else "hf")
    OmegaConf.update(config, "actor_rollout_ref.rollout.max_model_len", None)  # the scorer's own context counts
    if model is not None:
        OmegaConf.update(config, "actor.model", model)
    if model is None:
        return ServerScorer.from_config(config, create_tokenizer(config))
    with needs("hf", f"--scorer {model}"):
        import torch  # noqa: F401
        import transformers  # noqa: F401
    try:
        return HfScorer.from_config(config, create_tokenizer(config))
    except ConfigError as error:
        raise ConfigError(f"--scorer {model}: {error}") from error


def _unknown_prompts(records: Sequence[Record], path: Path) -> list[str]:
    """Why nothing can be scored, as sentences; empty where it can."""
    if any("messages" not in record for record in records):
        return ["The run was written with raw=false: without texts there are no thoughts to score."]
    about = About.of_folder(path).configuration
    window, mode = about.get("agent_proxy.max_context_window"), about.get("agent_proxy.context_window_mode")
    if mode in (None, "full") and not (isinstance(window, int) and window > 0):
        return []
    return [
        "The model was shown only the last turns of each chat, so its prompts are not in the file: nothing is scored, "
        "as RAGEN-2 measures collapse in context mode 'full' alone."
    ]


def _notes(tags: Sequence[Mapping[str, Any]], wants_scorer: bool, prog: str) -> list[str]:
    notes = []
    if not any(tag["thoughts"] for tag in tags):
        notes.append(
            "No thought between <think> and </think> was read: where none is asked for (enable_think=false) or given "
            "(as by many scripted policies), nothing can collapse."
        )
    elif not wants_scorer:
        notes.append(f"To measure MI, entropies and retrieval, name a scorer: {prog} RUN --scorer MODEL.")
    for tag in tags:
        for how, figures in tag.get("samples", {}).items():
            where = f"{tag['tag']}, {how}"
            if count := figures["too_long"]:
                told = "1 pair is" if count == 1 else f"{count} pairs are"
                notes.append(f"{where}: {told} left out, longer than the scorer's context.")
            if tag["thoughts"] and figures["prompts"] < 2:
                notes.append(f"{where}: fewer than two prompts are left, so there is nothing to measure.")
    return notes


# A training


def steps_of(path: Path) -> list[dict[str, Any]]:
    """What a training has measured of thoughts so far.

    Args:
        path: Its ``metrics.jsonl``; a last line that is still written is passed over.

    Returns:
        For each step that was measured ``step``, ``valid_thinking_rate`` (None where it was not) and ``samples``:
        ``first turns`` and ``trajectories`` to measures by RAGEN's names, moving averages included.

    Raises:
        ConfigError: The file is not a training's.
    """
    try:
        lines = path.read_text("utf-8").split("\n")[:-1]
        steps = [json.loads(line) for line in lines]
        found = [{"step": step["step"], **_thoughts(step)} for step in steps]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read as the metrics of a training: {error}.") from error
    return [step for step in found if step["samples"]]


def _thoughts(step: Mapping[str, Any]) -> dict[str, Any]:
    samples = {}
    for how, prefix in PREFIXES.items():
        if f"{prefix}/mi_estimate" in step:
            names = (name for name in step if name.startswith(f"{prefix}/"))
            samples[how] = {name.removeprefix(f"{prefix}/"): step[name] for name in names}
    return {"valid_thinking_rate": step.get(VALID_THINKING), "samples": samples}


def _training(path: Path, options: argparse.Namespace) -> int:
    """Print what a training has measured; the exit code."""
    if _wants_scorer(options) or options.scanner:
        raise ConfigError(
            f"{path.parent} is a training, which keeps no trajectories to score or scan. Play its model, with the "
            "training's own keys, and diagnose that run: ragen rollout --config-name tiny actor.backend=hf "
            f"actor.model={path.parent / 'model'}."
        )
    steps, scorer = steps_of(path), "the policy itself"
    notes = ["A training keeps no trajectories, so there is nothing to scan."]
    if not steps:
        notes.insert(
            0,
            "No step has measured thoughts yet: that takes collapse_detection.first_turn_enabled=true or "
            "multi_turn_enabled=true, agent_proxy.enable_think=true, and prompts with the whole history.",
        )
    if options.json:
        print(json.dumps({"run": str(path), "scorer": scorer, "steps": steps, "notes": notes}, indent=1))
        return 0
    console = new_console(is_plain=True)
    heads = [
        head for head, name in _COLUMNS.items() if any(name in each for s in steps for each in s["samples"].values())
    ]
    table = plain_table(f"Do thoughts depend on prompts? Scorer: {scorer}", "step", "sample", "valid thinking", *heads)
    table.caption, table.caption_justify = _CAPTION, "left"
    for step in steps:
        rate = step["valid_thinking_rate"]
        for how, figures in step["samples"].items():
            cells = [f"{figures[_COLUMNS[head]]:.3f}" if _COLUMNS[head] in figures else "-" for head in heads]
            table.add_row(str(step["step"]), how, "-" if rate is None else f"{rate:.1%}", *cells)
    if table.row_count:
        print_table(console, table)
    for note in notes:
        console.print(note, soft_wrap=True)
    return 0


def _print(
    console: Console,
    tags: Sequence[Mapping[str, Any]],
    scorer: Scorer | None,
    notes: Sequence[str],
    scanned: Scan,
    count: int,
) -> None:
    if tags:
        table = plain_table("Thoughts", "tag", "trajectories", "replies", "valid thinking")
        for tag in tags:
            rate = tag["valid_thinking_rate"]
            shown = "-" if rate is None else f"{rate:.1%}"
            table.add_row(tag["tag"], str(tag["trajectories"]), str(tag["replies"]), shown)
        print_table(console, table)
    if scorer is not None:
        _print_collapse(console, tags, scorer)
    for note in notes:
        console.print(note, soft_wrap=True)
    console.print(f"\nScanners, over {counted(count, 'trajectory', 'trajectories')}")
    for name, findings in scanned.found.items():
        among = counted(len({each.env_id for each in findings}), "trajectory", "trajectories")
        told = f"{counted(len(findings), 'finding')} in {among}" if findings else "none"
        blind = " (without texts it finds less)" if name in scanned.blind else ""
        console.print(f"{name}: {told}{blind}", soft_wrap=True)
        for each in findings[:_SHOWN]:
            console.print(printable(f"  {finding_line(each)}"), soft_wrap=True)
        if len(findings) > _SHOWN:
            console.print(f"  and {len(findings) - _SHOWN} more; --json lists them all")
    for failed in scanned.failed:
        console.print(failed, soft_wrap=True)


def finding_line(finding: Finding) -> str:
    """A finding as words, such as ``env 3, turn 2: the reply refuses: I cannot help``."""
    where = f"env {finding.env_id}" + ("" if finding.turn is None else f", turn {finding.turn}")
    return f"{where}: {finding.why}" + (f": {finding.excerpt}" if finding.excerpt else "")


def _print_collapse(console: Console, tags: Sequence[Mapping[str, Any]], scorer: Scorer) -> None:
    table = plain_table(f"Do thoughts depend on prompts? Scorer: {scorer.name}", "tag", "sample", "pairs", *_COLUMNS)
    table.caption, table.caption_justify = _CAPTION, "left"
    for tag in tags:
        for how, figures in tag.get("samples", {}).items():
            if "collapse/mi_estimate" in figures:
                cells = [f"{figures[f'collapse/{name}']:.3f}" for name in _COLUMNS.values()]
                table.add_row(tag["tag"], how, str(figures["thoughts"]), *cells)
    if table.row_count:
        print_table(console, table)


_CAPTION = (
    "MI, H(Z|X), H(Z) and z: per token, in nats; MI whole: of whole thoughts. top k: how often the k likeliest prompts "
    "have the thought's own. chance@8: 8 x chance, more than guessing reaches if prompts are equal. Another model than "
    "the player gives cross-entropies: compare within one scorer."
)
