"""``ragen retrofit CHECKOUT``: installs the engine and ``EnvStateManager`` in a checkout of RAGEN, and tests them.

The checkout keeps its environments, trainer, context manager and configurations. ``--undo`` restores the replaced files
byte by byte, which also happens automatically if rollouts are not equal.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ragen.commands import CommandParser, beside
from ragen.errors import RetrofitError, did_you_mean
from ragen.retrofit import backup
from ragen.retrofit.checkout import (
    LIGHT,
    MANAGER,
    MONTHS,
    Adapted,
    Checkout,
    adapt,
    edits_of_manager,
    recognise,
    refuse_new_dependences,
    refuse_remains,
)
from ragen.retrofit.imports import PACKAGE, needed_modules

DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 130
_PROVEN, _NOTHING_PLAYED, _DIFFERENT, _UNREPEATED = 0, 3, 4, 5  # what the suite returns; else it failed itself
_SUITE = "ragen.retrofit.suite"
_OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")  # it downloads nothing
_NEEDED = {"numpy": "numpy", "PIL": "pillow", "omegaconf": "omegaconf", "psutil": "psutil"}


PROG = "python -m ragen.retrofit"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command.

    Args:
        arguments: The arguments; None for the process's.
        prog: The program's name.

    Returns:
        0; 1 if the rollouts are not equal, or could not be compared; 2 if the checkout was refused; 130 after Ctrl-C.
    """
    options = _parsed(arguments, prog)
    root = options.checkout.expanduser().resolve()
    try:
        if not root.is_dir():
            raise RetrofitError(f"{root} is not a folder; expected a checkout of RAGEN.")
        with backup.locked(root):
            return _undo(root, options.force) if options.undo else _retrofit(root, options, prog)
    except RetrofitError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print(f"interrupted; {_after_interrupt(root, prog)}", file=sys.stderr)
        return STOPPED


def _parsed(arguments: Sequence[str] | None, prog: str) -> argparse.Namespace:
    commands = parser(prog)
    options = commands.parse_args(arguments)
    if options.workers < 1:
        commands.error(f"--workers {options.workers}: the proof needs 1 or more worker processes")
    if options.force and not options.undo:
        commands.error("--force discards edits of installed files when it undoes: use it with --undo")
    return options


def _after_interrupt(root: Path, prog: str) -> str:
    state = backup.state(root)
    if state == backup.BEFORE:
        return f"half of the files are replaced. Bring back every byte with `{_undo_line(root, prog)}`."
    return "everything is as it was before the retrofit." if state is None else "the retrofit stays in place."


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The argument parser."""
    parser = CommandParser(
        prog=prog,
        description="Install the engine and EnvStateManager into a checkout of RAGEN, and prove that its rollouts stay "
        "equal. Environments, trainer, context manager and configurations of the checkout stay its own; what is "
        "replaced is kept, and --undo restores it byte by byte. Where rollouts differ, it is undone at once.",
        examples=(f"{prog} ~/RAGEN --check", f"{prog} ~/RAGEN", f"{prog} ~/RAGEN --undo"),
    )
    parser.add_argument("checkout", type=Path, help="folder of a checkout of RAGEN (September 2025 or April 2026)")
    parser.add_argument("--check", action="store_true", help="only print what would be done")
    parser.add_argument("--undo", action="store_true", help="restore every byte")
    parser.add_argument("--force", action="store_true", help="with --undo: discard later edits of installed files")
    parser.add_argument("--no-suite", action="store_true", help="skip the proof")
    parser.add_argument("--keep", action="store_true", help="keep it even if rollouts differ or cannot be compared")
    parser.add_argument("--config-name", action="append", help="run the proof with this configuration (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the suite (default: %(default)s)")
    return parser


def _retrofit(root: Path, options: argparse.Namespace, prog: str) -> int:
    runs_from_root = PACKAGE.parent == root
    if runs_from_root and (PACKAGE / "cli").is_dir():
        raise RetrofitError(f"{root} is a clone of this package; expected a checkout of RAGEN.")
    state = backup.state(root)
    if state == backup.BEFORE:
        raise RetrofitError(
            f"an earlier retrofit of {root} was interrupted half-way. Bring back every byte with "
            f"`{_undo_line(root, prog)}`, then begin again."
        )
    refuse_remains(root)
    if runs_from_root:
        backup.refuse_edits(root)
        refuse_new_dependences(root)
        is_in_place = True
    else:
        checkout = recognise(root, needed_modules())
        adapted = adapt(checkout, needed_modules())
        is_in_place = state is not None and _is_in_place(root, adapted)
        if state is not None and not is_in_place:
            backup.refuse_edits(root)
        _describe(checkout, adapted, is_in_place)
    _check_configurations(root, options.config_name or ())
    if not options.no_suite:
        _check_packages()
    if options.check:
        if state is not None:
            print("  in place already" if is_in_place else "  in place already, of another version: it is replaced")
        print("Nothing was changed.")
        return DONE
    if is_in_place:
        print("This is in place already; nothing was changed.")
    else:
        if state is not None:
            backup.undo(root)
        backup.place(root, adapted.files)
        print(beside("", f"Done. Git keeps the originals in {root / backup.FOLDER}."))
    return DONE if options.no_suite else _prove(root, options, _undo_line(root, prog), is_in_place)


def _check_configurations(root: Path, names: Sequence[str]) -> None:
    known = sorted(path.stem for path in (root / "config").glob("*.yaml"))
    for name in names:
        if name not in known:
            advice = did_you_mean(name, known) or f" It has {', '.join(known) or 'none'}."
            raise RetrofitError(f"{root / 'config'} has no configuration {name!r}.{advice} Nothing was changed.")


def _check_packages() -> None:
    if lacking := ", ".join(name for module, name in _NEEDED.items() if find_spec(module) is None):
        raise RetrofitError(
            f"{sys.executable} lacks {lacking}, which the proof needs. Use the Python that you train with, or add "
            "--no-suite. Nothing was changed."
        )


def _undo(root: Path, force: bool) -> int:
    refuse_remains(root)
    undone = backup.undo(root, force)
    print(f"{root} is as it was: {undone.restored} files brought back, {undone.removed} removed.")
    if undone.left:
        print(f"Left in folders of the retrofit, since they are not its own: {', '.join(undone.left)}.")
    return DONE


def _undo_line(root: Path, prog: str) -> str:
    """A command line that undoes it, whatever folder it is entered in."""
    arguments = f"{shlex.quote(str(root))} --undo"
    if prog != PROG:
        return f"{prog} {arguments}"
    # In / no other folder `ragen` hides this package
    path, python = shlex.quote(str(PACKAGE.parent)), shlex.quote(sys.executable)
    return f"(cd / && PYTHONPATH={path} {python} -m ragen.retrofit {arguments})"


def _describe(checkout: Checkout, adapted: Adapted, is_in_place: bool) -> None:
    print(f"{checkout.root}: RAGEN of {MONTHS[checkout.generation]}.")
    lines = []
    if not is_in_place:
        replaced = [path for path in adapted.files if checkout.read(path) is not None]
        lines.append(f"replaced, with a copy kept: {', '.join(replaced)}")
        lines.append(f"added: {len(adapted.files) - len(replaced)} files, of them {_folders(adapted, replaced)}")
        lines += adapted.notes
    lines.append(f"environments, all the checkout's own: {', '.join(adapted.envs)}")
    lines += filter(None, [edits_of_manager(checkout)])
    lines += [f"{env_type} stays in the main process: {why}" for env_type, why in adapted.in_main.items()]
    if adapted.salted:
        places = ", ".join(dict.fromkeys(why.partition(" ")[0] for why in adapted.salted.values()))
        lines.append(
            f"workers play {', '.join(adapted.salted)} only where Python is started with PYTHONHASHSEED=0, as for the "
            f"proof: they hash strings, and Python salts such hashes in each process ({places})"
        )
    outside = sorted(needed_modules().outside - set(sys.stdlib_module_names))
    needs = ", ".join(_NEEDED[name] for name in outside if name in _NEEDED)
    for line in (*lines, f"needs {needs}; optional packages are used if they are installed"):
        print(beside("  ", line))


def _folders(adapted: Adapted, replaced: list[str]) -> str:
    counts: dict[str, int] = {}
    for path in adapted.files:
        if path not in replaced:
            folder = "/".join(path.split("/")[:-1][:2])
            counts[folder] = counts.get(folder, 0) + 1
    return ", ".join(f"{count} in {folder}" for folder, count in sorted(counts.items()))


def _is_in_place(root: Path, adapted: Adapted) -> bool:
    return backup.originals(root).keys() == adapted.files.keys() and all(
        (root / path).is_file() and (root / path).read_bytes() == content for path, content in adapted.files.items()
    )


def _prove(root: Path, options: argparse.Namespace, undo_line: str, was_in_place: bool) -> int:
    """Run the suite in the checkout; restore everything if it fails.

    What was in place before stays if nothing was compared.
    """
    keeps_unproven = options.keep or was_in_place
    whose = ", ".join(options.config_name or ()) or "its configurations"
    title = f"Playing every tag of {whose} in the main process, in workers, and with its own manager:"
    print(beside("", title), flush=True)
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", LIGHT: "1", **_OFFLINE}
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, Path(MANAGER).name)
        own.write_bytes(backup.originals(root)[MANAGER] or b"")
        command = [sys.executable, "-m", _SUITE, "--own", str(own), "--workers", str(options.workers)]
        for name in options.config_name or ():
            command += ["--config-name", name]
        with open(Path(folder, "errors"), "w+", encoding="utf-8", errors="replace") as stream:
            try:
                code = subprocess.run(
                    command, cwd=root, env={**os.environ, **environ}, stderr=stream, check=False
                ).returncode
            except BaseException:
                if not keeps_unproven:
                    backup.undo(root)
                raise
            stream.seek(0)
            errors = stream.read()
    sys.stderr.write(errors)
    if code == _PROVEN:
        if edits := edits_of_manager(Checkout(root)):
            print(beside("", f"Note: {edits}."))
        print(f"To undo: {undo_line}")
        return DONE
    if code == _DIFFERENT:
        reason = "rollouts differ"
    elif code == _UNREPEATED:
        reason = "environments are not reproducible"
    elif code == _NOTHING_PLAYED:
        reason = "none of its environments could be compared here (run this where you train, or add --no-suite)"
    else:
        why = (errors.strip().splitlines() or [f"exit code {code}"])[-1].removeprefix("error: ").rstrip(".")
        reason = f"the proof could not be run ({why}). Use the Python that you train with, or add --no-suite"
    if options.keep or (was_in_place and code not in (_DIFFERENT, _UNREPEATED)):
        print(beside("", f"Kept, though {reason}."))
        print(f"To undo: {undo_line}")
        return FAILED
    backup.undo(root)
    print(beside("", f"Everything was restored: {reason}. Use --keep to keep the changes."))
    return FAILED
