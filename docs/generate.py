"""Writes the pages of the reference from the code: ``python docs/generate.py``, or ``--check`` to see that they are so.

``tests/test_docs.py`` checks it, so that no page goes stale.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

from ragen import errors  # noqa: E402
from ragen.cli.commands import COMMANDS  # noqa: E402
from ragen.config.loading import described  # noqa: E402
from ragen.config.schema import Config  # noqa: E402

GENERATED = "<!-- Written by docs/generate.py from the code; changes made here are lost. -->\n\n"

CURES = {
    "EnvLanesError": "Catch it to catch all of these. The message says what happened, where, and what to do.",
    "ConfigError": "Set the key that the message names to what it expects. `ragen rollout --cfg` prints the whole "
    "configuration as it is read.",
    "UnknownEnvError": "Register the type, install the plug-in that provides it, or name the class itself: "
    "`env_type: my_package.my_module:MyEnv`. The class must be importable from where the command runs.",
    "CacheError": "Remove the file that the message names; it is rebuilt. If the folder is not writable, set "
    "`RAGEN_CACHE` to another one.",
    "ResourceError": "Ignore it: the engine rebuilds the environment, which acquires the resource again. If it "
    "recurs, `close` was called, or the resource discarded, while the environment was still playing.",
    "TemplateError": "Use an instruction-tuned model's tokenizer, or set `tokenizer.chat_template` to one that shows "
    "every message of a chat as it is.",
    "EnvsFailedError": "Mend the environments, or bring their service back; the message counts the failures by type. "
    "Then start the run again; it resumes from its newest checkpoint. See [failures](../failures.md).",
    "InputError": "Correct the argument that the message names; the manager is as it was before the call.",
    "ContextFullError": "Raise the model's context, or shorten the instruction or the observation.",
    "StateError": "Call the methods in order: `reset`, then `step`, `close` last; one thread at a time for the same "
    'environments. A script that starts workers needs `if __name__ == "__main__":`.',
    "EpisodeOverError": "Step only what `reset` or the last `step` returned as active; reset the others first.",
    "WorkflowError": "Name each of the five types of hosts once, as in `defender > enterprise > op_server > op_host > "
    "user`.",
    "EnvError": "Read the cause, which is the environment's own exception. `ragen play --replay FILE --pdb` opens a "
    "debugger where it was raised.",
    "ReturnError": "Return what the message expects: `step` returns observation, reward, done and info, "
    "`render` text or images. `ragen check TYPE` plays the environment and detects it too.",
    "DivergenceError": "Make everything follow from configuration, seed and actions: `ragen check TYPE` finds "
    "what does not. A live service declares `replayable = False`.",
    "SandboxError": "Install what the message names. In a container, allow user namespaces.",
    "LaneError": "Check the resource that the message names: memory, processes, files.",
    "ForkError": "Branch from a turn that the message names; make the environment replayable (`ragen check "
    "TYPE` finds what prevents it), or declare `save` and `load`; see [Branching](../branching.md).",
    "LaneStartError": "If processes cannot be started, use `es_manager.backend=executor` or "
    "`es_manager.use_multiprocessing=false`.",
    "LaneDiedError": "The exit signal is in the message. SIGKILL usually means that the system ran out of "
    "memory: use fewer workers (`es_manager.max_workers`) or smaller environments.",
    "LaneTimeoutError": "Increase `es_manager.step_timeout` or `reset_timeout` if the environment is slow; if "
    "it hangs, the stacks in the message show where.",
    "LevelError": "Relax the environment's configuration: a larger room, fewer boxes, more tries.",
    "CrashReportError": "Replay it with the version of the package that wrote it. Name an environment of your own: "
    "`ragen play my_env:MyEnv --replay FILE`.",
    "SearchError": "Check that the server at `retrieval_server_url` is running; increase `retrieval_timeout` if "
    "it is slow.",
    "OpenEnvError": "Check that the server at `url` is running; increase `timeout` if it is slow. "
    "`CAPACITY_REACHED`: let it "
    "accept more sessions (`max_concurrent_envs`).",
    "BackendError": "Check the server or the worker group: the first reply's error is in the message. With "
    "`resume=true` and the same `output_dir`, no reply is requested twice.",
    "LimitReachedError": "Run the printed command: it resumes with as much again, and requests no reply twice.",
    "LimitUnmeasuredError": "Have the server send `usage`, or run the printed command, which resumes without the "
    "limit; `limit.minutes` needs no counts.",
    "StorageError": "Free some space on the folder's disk, and run the same command with `resume=true`: no "
    "reply that was paid for is lost.",
    "CollectError": "Increase `algorithm.filter_groups.max_num_gen_batches`, or use tasks that are sometimes solved.",
    "CheckpointError": "Use another `output_dir`, or remove the folder to start over.",
    "SessionLostError": "Open the environment again; a client must use its session before it expires, or close it.",
    "ServiceTimeoutError": "Add workers (`es_manager.max_workers`), increase `agent_loop.queue_timeout`, or fix the "
    "environment that hangs.",
    "ServiceFullError": "Close sessions that are over, or start the server with a higher `--max-sessions`.",
    "TaskError": "Request an existing task; the message says how many there are.",
    "MissingExtraError": "Install the extra that the message names: `pip install -e '.[EXTRA]'` in the clone.",
}
"""What to do about each error."""

API = {
    "ragen.env": ("ragen.env.base", "ragen.env.registry"),
    "envlanes": (
        "envlanes.engine",
        "envlanes.settings",
        "envlanes.episode.spec",
        "envlanes.ragen.turn",
        "envlanes.environments",
        "envlanes.stats",
        "envlanes.workers.handle",
    ),
    "envlanes.gym": ("envlanes.gym.lane_vector_env", "envlanes.gym.make", "envlanes.gym.sb3"),
    "ragen.llm_agent": (
        "ragen.llm_agent",
        "ragen.llm_agent.rollout",
        "ragen.llm_agent.backends",
        "ragen.config",
        "ragen.llm_agent.filtering",
        "ragen.results",
    ),
}
"""The modules of each page of the reference of Python; of a package, the names in ``__all__`` are shown."""


def errors_page() -> str:
    """Every class of error: cause and cure."""
    lines = [
        "# Errors\n",
        "All errors that the packages raise on purpose derive from `EnvLanesError`, which `ragen.errors` also calls "
        "`RagenError`. "
        "The message says what happened, where, and what to do; this page explains each kind.\n",
    ]
    for name, kind in error_classes().items():
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        lines += [f"## {name}\n", f"*Derives from {bases}.*\n", f"**Cause.** {inspect.getdoc(kind)}\n"]
        lines.append(f"**Cure.** {CURES[name]}\n")
    return "\n".join(lines)


def error_classes() -> dict[str, type]:
    """The classes of :mod:`envlanes.errors` and :mod:`ragen.errors`, in their order."""
    texts = [(ROOT / path).read_text("utf-8") for path in ("engine/envlanes/errors.py", "ragen/errors.py")]
    nodes = (node for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    return {node.name: getattr(errors, node.name) for node in nodes}


def configuration_page() -> str:
    """Every key of the schema, by section."""
    lines = [
        "# Configuration\n",
        "Every key, as `ragen/config/schema.py` lists it. The default applies if the key is absent or null; "
        "`config/base.yaml` sets most of them; `ragen rollout --cfg` prints the composed configuration. In sections "
        "that verl's trainers share, other keys are passed on to these; any other unknown key is refused. `<tag>` is a "
        "tag of `custom_envs`.\n",
    ]
    return "\n".join([*lines, *_section_lines(Config)])


def _section_lines(model: Any, key: str = "") -> Iterator[str]:
    rows, inner = [], []
    for name, field in model.model_fields.items():
        within = next((each for each in (field.annotation, *get_args(field.annotation)) if _is_section(each)), None)
        path = f"{key}.{name}".strip(".")
        if within is not None:
            inner += _section_lines(within, f"{path}.<tag>" if get_origin(field.annotation) is dict else path)
            continue
        default = "" if field.is_required() else json.dumps(field.default)
        kind = described(field.annotation, field.metadata)
        rows.append(f"| `{path}` | {_cell(kind)} | {_code(default)} | {_cell(' '.join(field.description.split()))} |")
    title, about = (f"`{key}`", inspect.getdoc(model)) if key else ("Top level", "")
    table = ["| key | value | default | meaning |", "|---|---|---|---|", *rows, ""] if rows else []
    yield from [f"## {title}\n", *([f"{about}\n"] if about else []), *table, *inner] if rows or about else inner


def _is_section(hint: Any) -> bool:
    return hasattr(hint, "model_fields")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands_page() -> str:
    """Every command, its arguments and its example."""
    lines = [
        "# Commands\n",
        "`ragen COMMAND --help` shows the same in the terminal; `python -m ragen` is `ragen`.\n",
    ]
    for command in COMMANDS.values():
        parser = command.parser()
        lines += [f"## ragen {command.name}\n", f"{parser.description}\n", "| argument | |", "|---|---|"]
        lines += [f"| {names} | {_cell(words)} |" for names, words in _arguments(parser)]
        examples = "; ".join(f"`{example}`" for example in getattr(parser, "examples", ()))
        lines += ["", *(f"{line.strip()}\n" for line in _paragraphs(parser.epilog or ""))]
        lines += [f"Examples: {examples}\n"] if examples else []
    return "\n".join(lines)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
            continue
        value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
        shown = value if isinstance(value, str) else " ".join(value)
        names = [f"{name} {shown}" if action.nargs != 0 else name for name in action.option_strings] or [shown]
        words = (action.help or "").replace("%(default)s", str(action.default))
        yield ", ".join(f"`{name}`".replace("|", "\\|") for name in names), words


def _paragraphs(epilog: str) -> Iterable[str]:
    return [part for part in re.split(r"\n\s*\n", epilog) if part.strip()]


def api_page(package: str) -> Callable[[], str]:
    """A page on a package's public modules; their docstrings are put in when the site is built."""

    def page() -> str:
        blocks = [f"## {module}\n\n::: {module}\n" for module in API[package]]
        return "\n".join([f"# {package}\n", *blocks])

    return page


PAGES: dict[str, Callable[[], str]] = {
    "reference/errors.md": errors_page,
    "reference/configuration.md": configuration_page,
    "reference/commands.md": commands_page,
    **{f"reference/{package}.md": api_page(package) for package in API},
}
"""Path below ``docs/`` to what writes it."""


def stale() -> list[str]:
    """The pages that are not what the code says."""
    return [path for path, write in PAGES.items() if not _is_as(HERE / path, GENERATED + write())]


def _is_as(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text


def main() -> int:
    """Write the pages; with ``--check`` only name those that are stale, which is exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page is stale")
    if parser.parse_args().check:
        print("\n".join(found := stale()))
        return bool(found)
    for path, write in PAGES.items():
        (HERE / path).parent.mkdir(parents=True, exist_ok=True)
        (HERE / path).write_text(GENERATED + write(), "utf-8")
    return 0


if __name__ == "__main__":
    gc.disable()  # more than half of the time went into looking through syntax trees that stay
    sys.exit(main())
