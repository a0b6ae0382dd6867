"""Keeps the files that a retrofit replaces in a git repository of its own, and restores them.

The repository is ``.ragen-retrofit/`` in the checkout, whether or not the checkout is itself a git repository, whose
history, index and settings are never touched. It has two commits: ``before`` with the replaced files, and ``after``
with all installed files. Both are written before the first file of the checkout changes. ``HEAD`` is ``after`` only
while everything is installed; ``before`` means that a process was killed half-way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ragen.errors import RetrofitError

FOLDER = ".ragen-retrofit"
BEFORE, AFTER = "before", "after"
ENVS = "ragen/env/__init__.py"
HOW_TO_ADD = f"To add an environment, undo the retrofit, register it in {ENVS} as usual, and retrofit again"
_NEW, _OLD = f"{FOLDER}.new", f"{FOLDER}.old"  # being made, and being removed
_VERBATIM = "* -text -filter -ident -working-tree-encoding\n"  # whatever the checkout's own .gitattributes say
_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C"}


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock the checkout against concurrent retrofits.

    Raises:
        RetrofitError: Another process holds the lock.
    """
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RetrofitError(f"another retrofit of {root} is running; wait until it has ended.") from None
    finally:
        os.close(descriptor)


def state(root: Path) -> str | None:
    """``"after"`` if a retrofit is installed, ``"before"`` if one was interrupted, else None."""
    if not (root / FOLDER / "HEAD").is_file():
        return None
    return _git(root, "symbolic-ref", "--short", "HEAD").decode().strip()


def originals(root: Path) -> dict[str, bytes | None]:
    """The original contents of every installed file; None where there was no file."""
    if state(root) is None:
        return {}
    replaced = set(_paths(root, BEFORE))
    return {
        path: _git(root, "cat-file", "blob", f"{BEFORE}:{path}") if path in replaced else None
        for path in _paths(root, AFTER)
    }


def place(root: Path, files: Mapping[str, bytes]) -> None:
    """Install files in a checkout without a retrofit, and keep what they replace.

    On any error, and on Ctrl-C, everything is restored first.

    Args:
        root: The checkout.
        files: Contents by path.

    Raises:
        RetrofitError: A file cannot be read or written; nothing has changed.
    """
    clean(root)
    try:
        _git(root, "init", "--quiet", "--bare", "--template=", f"--initial-branch={BEFORE}", folder=_NEW)
        (root / _NEW / "info").mkdir(exist_ok=True)
        (root / _NEW / "info" / "attributes").write_text(_VERBATIM)
        (root / _NEW / ".gitignore").write_text("*\n")
        kept = {path: (root / path).read_bytes() for path in files if (root / path).is_file()}
        modes = {path: "100755" if os.access(root / path, os.X_OK) else "100644" for path in kept}
        commits = _commit(BEFORE, kept, modes) + _commit(AFTER, files, modes)
        _git(root, "fast-import", "--quiet", stdin=commits, folder=_NEW)
        os.replace(root / _NEW, root / FOLDER)
    except (OSError, RetrofitError) as error:
        clean(root)
        raise RetrofitError(f"{root} cannot be written to ({error}); nothing was changed.") from error
    try:
        _git(root, "read-tree", BEFORE)
        _git(root, "checkout", "--quiet", AFTER)
    except BaseException as error:
        undo(root, force=True)
        if isinstance(error, RetrofitError):
            raise RetrofitError(f"{error} Everything was restored.") from error
        raise


def refuse_edits(root: Path) -> None:
    """Refuse a checkout in which installed files were edited.

    Raises:
        RetrofitError: They were.
    """
    if edited := sorted(_different(root, BEFORE) & _different(root, AFTER)):
        how_to_add = f" {HOW_TO_ADD}." if ENVS in edited else ""
        raise RetrofitError(
            f"edited since the retrofit, and would be lost: {', '.join(edited)}. Move them away, or discard the edits "
            f"with --undo --force.{how_to_add} Nothing was changed."
        )


class Undone(NamedTuple):
    """What an undo did.

    Attributes:
        restored: Number of restored files.
        removed: Number of removed ones.
        left: Files of others beside removed ones, in folders that no restored file is in.
    """

    restored: int
    removed: int
    left: list[str]


def undo(root: Path, force: bool = False) -> Undone:
    """Restore all files.

    Args:
        root: The checkout.
        force: Discard later edits of installed files.

    Raises:
        RetrofitError: There is no retrofit, or installed files were edited.
    """
    clean(root)
    was = state(root)
    if was is None:
        raise RetrofitError(f"{root} was not retrofitted: it has no {FOLDER}/. Nothing was changed.")
    try:
        (root / FOLDER / "index.lock").unlink(missing_ok=True)  # left by a killed process: this one holds the lock
    except OSError as error:
        raise RetrofitError(f"{root} cannot be written to ({error}); nothing was changed.") from error
    if was == AFTER and not force:
        refuse_edits(root)
    added = [path for path, content in originals(root).items() if content is None]
    restored = _paths(root, BEFORE)
    _git(root, "symbolic-ref", "HEAD", f"refs/heads/{BEFORE}")
    _git(root, "read-tree", AFTER)
    _git(root, "reset", "--quiet", "--hard", BEFORE)
    for path in added:
        _remove_traces(root, Path(path))
    os.replace(root / FOLDER, root / _OLD)
    clean(root)
    own = {parent for path in restored for parent in Path(path).parents}
    folders = {root / parent for path in added for parent in Path(path).parents if parent not in own}
    left = {path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    return Undone(len(restored), len(added), sorted(path.relative_to(root).as_posix() for path in left))


def clean(root: Path) -> None:
    """Remove what a killed process left of a repository that is not in use."""
    for name in (_NEW, _OLD):
        shutil.rmtree(root / name, ignore_errors=True)


def _git(root: Path, *arguments: str, stdin: bytes = b"", folder: str = FOLDER, index: str = "") -> bytes:
    tree = [f"--work-tree={root}", "-c", "core.bare=false"] if folder == FOLDER else []
    command = ["git", f"--git-dir={root / folder}", *tree, *arguments]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | _SETTINGS
    if index:
        environ["GIT_INDEX_FILE"] = index
    try:
        done = subprocess.run(command, cwd=root, env=environ, input=stdin, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise RetrofitError("git is needed to keep the originals, and is not on PATH; install it.") from error
    if done.returncode != 0:
        raise RetrofitError(f"`git {arguments[0]}` failed: {' '.join(done.stderr.decode(errors='replace').split())}.")
    return done.stdout


def _commit(branch: str, files: Mapping[str, bytes], modes: Mapping[str, str]) -> bytes:
    """A commit in the format of ``git fast-import``."""
    parts = [b"commit refs/heads/%b\ncommitter ragen <> 0 +0000\ndata 0\n" % branch.encode()]
    for path, content in files.items():
        head = f"M {modes.get(path, '100644')} inline {path}\ndata {len(content)}\n".encode()
        parts += [head, content, b"\n"]
    return b"".join(parts) + b"\n"


def _paths(root: Path, branch: str) -> list[str]:
    return _git(root, "ls-tree", "-r", "-z", "--name-only", "--full-tree", branch).decode().split("\0")[:-1]


def _different(root: Path, branch: str) -> set[str]:
    """Files that differ from a commit's, and files that it lacks. Writes nothing in the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        index = os.path.join(folder, "index")
        _git(root, "read-tree", branch, index=index)
        diff = _git(root, "diff", "--no-ext-diff", "--diff-filter=d", "-z", "--name-only", index=index)
    changed = diff.decode().split("\0")[:-1]
    absent = set(_paths(root, AFTER)) - set(_paths(root, branch))
    return {*changed, *(path for path in absent if (root / path).exists())}


def _remove_traces(root: Path, path: Path) -> None:
    """Remove the bytecode of a removed file, and empty folders."""
    for compiled in (root / path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
    for folder in (path.parent / "__pycache__", path.parent, *path.parent.parents):
        with contextlib.suppress(OSError):  # other files are there, or it is gone already
            (root / folder).rmdir()
