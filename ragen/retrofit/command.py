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
from pathlib import Path

from ragen.commands import CommandParser
from ragen.errors import RetrofitError
from ragen.retrofit import backup
from ragen.retrofit.checkout import LIGHT, MANAGER, Adapted, Checkout, adapt, recognise
from ragen.retrofit.imports import PACKAGE, needed_modules

DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 130
_PROVEN, _NOTHING_PLAYED = 0, 3  # what the suite returns
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
    options = parser(prog).parse_args(arguments)
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
        print("interrupted", file=sys.stderr)
        return STOPPED


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
    if PACKAGE.parent == root:
        if (PACKAGE / "cli").is_dir():
            raise RetrofitError(f"{root} is a clone of this package; expected a checkout of RAGEN.")
        raise RetrofitError(
            f"the command runs from {root} itself, where it can only --undo. Start it in another folder, with this "
            "package on Python's path."
        )
    state = backup.state(root)
    if state == backup.BEFORE:
        raise RetrofitError(
            f"an earlier retrofit of {root} was interrupted half-way. Bring back every byte with "
            f"`{_undo_line(root, prog)}`, then begin again."
        )
    checkout = recognise(root, needed_modules())
    adapted = adapt(checkout, needed_modules())
    _describe(checkout, adapted)
    if options.check:
        print("Nothing was changed.")
        return DONE
    if state is not None and _is_in_place(root, adapted):
        print("This is in place already; nothing was changed.")
    else:
        if state is not None:
            backup.undo(root)
        backup.place(root, adapted.files)
        print(f"Done. Git keeps the originals in {root / backup.FOLDER}.")
    return DONE if options.no_suite else _prove(root, options, _undo_line(root, prog))


def _undo(root: Path, force: bool) -> int:
    brought_back, removed = backup.undo(root, force)
    print(f"{root} is as it was: {brought_back} files brought back, {removed} removed.")
    return DONE


def _undo_line(root: Path, prog: str) -> str:
    return f"{prog} {shlex.quote(str(root))} --undo"


def _describe(checkout: Checkout, adapted: Adapted) -> None:
    replaced = [path for path in adapted.files if checkout.read(path) is not None]
    print(f"{checkout.root}: RAGEN of {'September 2025' if checkout.generation == 2025 else 'April 2026'}.")
    print(f"  replaced, with a copy kept: {', '.join(replaced)}")
    print(f"  added: {len(adapted.files) - len(replaced)} files, of them {_folders(adapted, replaced)}")
    print(f"  environments, all the checkout's own: {', '.join(adapted.envs)}")
    for note in adapted.notes:
        print(f"  {note}")
    for env_type, why in adapted.in_main.items():
        print(f"  {env_type} stays in the main process: {why}")
    for env_type, why in adapted.salted.items():
        print(f"  {env_type} stays in the main process unless Python is started with PYTHONHASHSEED=0: {why}")
    outside = sorted(needed_modules().outside - set(sys.stdlib_module_names))
    print(
        f"  needs {', '.join(_NEEDED[name] for name in outside if name in _NEEDED)}, and uses others if they are there"
    )


def _folders(adapted: Adapted, replaced: list[str]) -> str:
    counts: dict[str, int] = {}
    for path in adapted.files:
        if path not in replaced:
            folder = "/".join(path.split("/")[:2])
            counts[folder] = counts.get(folder, 0) + 1
    return ", ".join(f"{count} in {folder}" for folder, count in sorted(counts.items()))


def _is_in_place(root: Path, adapted: Adapted) -> bool:
    return backup.originals(root).keys() == adapted.files.keys() and all(
        (root / path).is_file() and (root / path).read_bytes() == content for path, content in adapted.files.items()
    )


def _prove(root: Path, options: argparse.Namespace, undo_line: str) -> int:
    """Run the suite in the checkout; restore everything if it fails."""
    print("Playing what its configurations play, in the main process, in workers, and by its own manager:", flush=True)
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", LIGHT: "1", **_OFFLINE}
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, Path(MANAGER).name)
        own.write_bytes(backup.originals(root)[MANAGER] or b"")
        command = [sys.executable, "-m", _SUITE, "--own", str(own), "--workers", str(options.workers)]
        for name in options.config_name or ():
            command += ["--config-name", name]
        try:
            code = subprocess.run(command, cwd=root, env={**os.environ, **environ}, check=False).returncode
        except BaseException:
            if not options.keep:
                backup.undo(root)
            raise
    if code == _PROVEN:
        print(f"To undo: {undo_line}")
        return DONE
    if code == _NOTHING_PLAYED:
        reason = "none of its environments can be played here (run this where you train, or add --no-suite)"
    else:
        reason = "rollouts differ" if code == 1 else f"the suite ended with exit code {code}"
    if options.keep:
        print(f"Kept, though {reason}. To undo: {undo_line}")
        return FAILED
    backup.undo(root)
    print(f"Everything was restored: {reason}. Use --keep to keep the changes.")
    return FAILED
