"""``python -m ragen.retrofit``: what it does to a checkout, and that every byte comes back."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ragen.errors import RetrofitError
from ragen.retrofit import backup, command
from ragen.retrofit.checkout import METHODS, adapt, digests, edits_of_manager, recognise
from ragen.retrofit.imports import KEPT, LEFT_OUT, modules, needed_modules, references
from support.checkouts import ROOT, bytes_of, python, retrofit, write_checkout

GENERATIONS = (2025, 2026)
ARCHIVES = os.environ.get("RAGEN_CHECKOUTS")  # a folder with archives of RAGEN's own two generations


@pytest.fixture(params=GENERATIONS)
def generation(request):
    return request.param


@pytest.fixture
def checkout(tmp_path, generation):
    return write_checkout(tmp_path / "RAGEN", generation)


of_one = pytest.mark.parametrize("generation", [2026], indirect=True)  # where files are all the same


def put(checkout: Path, *arguments: str) -> int:
    return command.main([str(checkout), "--no-suite", *arguments])


# What is put into a checkout


def test_modules_that_a_checkout_needs_import_no_others():
    files = needed_modules().files
    known = modules()
    names = {name for name, path in known.items() if path in files.values()}
    for name in names:
        for target, inner in references(known[name]):
            wanted = f"{target}.{inner}" if f"{target}.{inner}" in known else target
            assert (
                wanted in names or wanted.startswith((*LEFT_OUT,)) or wanted in KEPT or not wanted.startswith("ragen")
            ), f"{name} wants {wanted}"


def test_modules_that_a_checkout_needs_need_few_packages():
    allowed = {"numpy", "PIL", "omegaconf", "cloudpickle", "setproctitle", "rich", "yaml", "psutil"}
    allowed |= {"ray", "websockets"}  # only with `backend: ray`, and to check a server
    assert needed_modules().outside - set(sys.stdlib_module_names) <= allowed
    assert {
        "engine/envlanes/kinds/process/worker_main.py",
        "ragen/llm_agent/es_manager.py",
    } <= needed_modules().files.keys()
    assert not [path for path in needed_modules().files if path.startswith(("ragen/training", "engine/envlanes/gym"))]


NEWER = {
    *("datetime.UTC", "enum.StrEnum", "enum.ReprEnum", "typing.Self", "typing.Never", "typing.assert_never", "tomllib"),
    *("typing.NotRequired", "typing.Required", "typing.LiteralString", "typing.override", "contextlib.chdir"),
    *("asyncio.TaskGroup", "asyncio.timeout", "asyncio.Runner", "hashlib.file_digest", "itertools.batched"),
}
"""Names that Python 3.10 does not have."""


def test_modules_that_a_checkout_needs_are_python_3_10():
    for path in needed_modules().files.values():
        tree = ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 10))
        used = {f"{target}.{name}" if name else target for target, name in references(path)}
        used |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not used & NEWER, path
        noted = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "add_note"]
        assert not noted or path.name == "errors.py", f"{path}:{noted}: ragen.errors.add_note does it in 3.10 too"
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.TryStar)], path


def test_the_command_imports_the_standard_library_alone(tmp_path):
    code = (
        "import sys; before = set(sys.modules); import ragen.retrofit.command; "
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(tops - set(sys.stdlib_module_names)))"
    )
    assert python("-c", code, cwd=tmp_path, path=ROOT).stdout.strip() == "['ragen']"


# Doing and undoing


def test_a_check_tells_and_changes_nothing(checkout, generation, capsys):
    before = bytes_of(checkout)
    assert command.main([str(checkout), "--check"]) == 0
    told = capsys.readouterr().out
    assert ("September 2025" if generation == 2025 else "April 2026") in told
    assert "counted stays in the main process: CountedEnv keeps state in its class" in told
    assert told.rstrip().endswith("Nothing was changed.") and bytes_of(checkout) == before


def test_undo_brings_back_every_byte(checkout):
    before = bytes_of(checkout)
    assert put(checkout) == 0
    there = bytes_of(checkout)
    assert (
        there.keys() > before.keys()
        and there["ragen/llm_agent/es_manager.py"] != before["ragen/llm_agent/es_manager.py"]
    )
    assert there["train.py"] == before["train.py"] and there["config/base.yaml"] == before["config/base.yaml"]
    assert command.main([str(checkout), "--undo"]) == 0
    assert bytes_of(checkout) == before


@of_one
def test_a_second_time_changes_nothing_and_an_older_one_is_replaced(checkout, capsys, monkeypatch):
    before = bytes_of(checkout)
    assert put(checkout) == 0
    there = bytes_of(checkout)
    assert put(checkout) == 0
    assert "in place already" in capsys.readouterr().out and bytes_of(checkout) == there
    monkeypatch.setattr(command, "adapt", lambda *given: _newer(adapt(*given)))
    assert put(checkout) == 0
    assert (checkout / "ragen/errors.py").read_bytes().endswith(b"# newer\n")
    assert command.main([str(checkout), "--undo"]) == 0
    assert bytes_of(checkout) == before


def _newer(adapted):
    adapted.files["ragen/errors.py"] += b"# newer\n"
    return adapted


@of_one
def test_undo_refuses_to_lose_an_edit(checkout, capsys):
    before = bytes_of(checkout)
    put(checkout)
    (checkout / "ragen/env/__init__.py").write_text("# mine\n")
    assert command.main([str(checkout), "--undo"]) == 2
    told = capsys.readouterr().err
    assert "ragen/env/__init__.py. Move them away" in told and f" {backup.HOW_TO_ADD}." in told
    assert (checkout / "ragen/env/__init__.py").read_text() == "# mine\n"
    assert command.main([str(checkout), "--undo", "--force"]) == 0
    assert bytes_of(checkout) == before


@of_one
@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--workers", "0"], "the proof needs 1 or more worker processes"),
        (["--force"], "use it with --undo"),
        (["--config-name", "bass"], "has no configuration 'bass'. Did you mean 'base'?"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_installed(checkout, options, advice):
    before = bytes_of(checkout)
    ran = retrofit(checkout, *options)
    assert ran.returncode == 2 and advice in " ".join(ran.stderr.split())
    assert bytes_of(checkout) == before


@of_one
@pytest.mark.parametrize("was_in_place", [False, True])
def test_an_interrupted_proof_says_what_became_of_the_checkout(checkout, capsys, monkeypatch, was_in_place):
    if was_in_place:
        put(checkout)
    before, run = bytes_of(checkout), subprocess.run

    def interrupted(line, **options):
        if "ragen.retrofit.suite" in line:
            raise KeyboardInterrupt
        return run(line, **options)

    monkeypatch.setattr(subprocess, "run", interrupted)
    assert command.main([str(checkout)]) == 130
    told = "the retrofit stays in place." if was_in_place else "everything is as it was before the retrofit."
    assert capsys.readouterr().err == f"interrupted; {told}\n"
    assert bytes_of(checkout) == before


@of_one
def test_undo_leaves_alone_what_others_put_beside_ours_and_names_it(checkout, capsys):
    put(checkout)
    (checkout / "engine/envlanes/notes.txt").write_text("mine")
    (checkout / "engine/envlanes/__pycache__").mkdir()
    assert command.main([str(checkout), "--undo"]) == 0
    assert capsys.readouterr().out.endswith(", since they are not its own: engine/envlanes/notes.txt.\n")
    assert [path.name for path in (checkout / "engine/envlanes").iterdir()] == ["notes.txt"]


@of_one
def test_what_is_in_the_way_of_a_file_brings_everything_back(checkout, capsys):
    (checkout / "engine/envlanes").write_text("a file where a folder has to go")
    before = bytes_of(checkout)
    assert put(checkout) == 2
    told = capsys.readouterr().err
    assert "engine/envlanes" in told and "Everything was restored" in told
    assert bytes_of(checkout) == before


@pytest.mark.parametrize("failing", ["init", "fast-import", "read-tree", "checkout"])
def test_a_failure_half_way_changes_nothing(tmp_path, monkeypatch, capsys, failing):
    checkout = write_checkout(tmp_path / "RAGEN", 2026)
    before = bytes_of(checkout)
    git, failed = backup._git, []

    def fail(root, *arguments, **more):
        done = git(root, *arguments, **more)
        if arguments[0] == failing and not failed:
            failed.append(failing)
            raise RetrofitError("No space left on device")
        return done

    monkeypatch.setattr(backup, "_git", fail)
    assert put(checkout) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert failed and bytes_of(checkout) == before


KILL = """
import os, signal
from pathlib import Path
from ragen.retrofit import backup, command
git = backup._git
def killing(root, *arguments, **more):
    done = git(root, *arguments, **more)
    if arguments[0] == {after!r}:
        half = Path(root, "ragen/errors.py")
        if half.exists():
            half.write_bytes(half.read_bytes()[:10])
            Path(root, backup.FOLDER, "index.lock").touch()
            git(root, "symbolic-ref", "HEAD", "refs/heads/before")
        os.kill(os.getpid(), signal.SIGKILL)
    return done
backup._git = killing
command.main([{checkout!r}, *{arguments!r}])
"""


def killed(checkout: Path, after: str, *arguments: str) -> None:
    code = KILL.format(after=after, checkout=str(checkout), arguments=list(arguments))
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert ran.returncode == -signal.SIGKILL


@pytest.mark.parametrize("after", ["fast-import", "read-tree"])
def test_a_run_that_is_killed_is_reported_by_the_next_one_and_undone(tmp_path, capsys, after):
    checkout = write_checkout(tmp_path / "RAGEN", 2026)
    before = bytes_of(checkout)
    killed(checkout, after, "--no-suite")
    if after == "fast-import":  # before its copies were whole, and so before anything was touched
        assert put(checkout) == 0
    else:
        assert put(checkout) == 2
        assert "interrupted half-way" in capsys.readouterr().err
    assert command.main([str(checkout), "--undo"]) == 0
    assert bytes_of(checkout) == before


@of_one
@pytest.mark.parametrize("after", ["symbolic-ref", "read-tree", "reset"])
def test_an_undo_that_is_killed_can_be_made_again(checkout, after):
    before = bytes_of(checkout)
    put(checkout)
    killed(checkout, after, "--undo")
    assert command.main([str(checkout), "--undo"]) == 0
    assert bytes_of(checkout) == before


@of_one
def test_two_at_a_time_are_refused(checkout, capsys):
    with backup.locked(checkout):
        assert put(checkout) == 2
    assert "another retrofit" in capsys.readouterr().err


@of_one
def test_a_checkout_that_is_a_git_repository_keeps_its_index_history_and_line_endings(checkout):
    (checkout / ".gitattributes").write_text("* text eol=crlf\n")
    envs = checkout / "ragen/env/__init__.py"
    envs.write_bytes(envs.read_bytes().replace(b"\n", b"\r\n", 3))
    own = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for line in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "x"], ["add", "ragen/utils.py"]):
        subprocess.run([*own, *line], cwd=checkout, check=True, capture_output=True)
    before = bytes_of(checkout)
    assert put(checkout) == 0
    status = subprocess.run([*own, "status", "--porcelain"], cwd=checkout, check=True, capture_output=True, text=True)
    assert backup.FOLDER not in status.stdout and "A  ragen/utils.py" in status.stdout
    assert command.main([str(checkout), "--undo"]) == 0
    after = bytes_of(checkout)
    assert after.pop(".git/index") and before.pop(".git/index") and after == before


@of_one
def test_without_git_it_is_refused_before_anything_is_changed(checkout, capsys, monkeypatch):
    before = bytes_of(checkout)
    monkeypatch.setenv("PATH", "")
    assert put(checkout) == 2
    assert "git is needed" in capsys.readouterr().err and bytes_of(checkout) == before


# What is refused


def refused(checkout: Path) -> str:
    before = bytes_of(checkout)
    with pytest.raises(RetrofitError) as error:
        adapt(recognise(checkout, needed_modules()), needed_modules())
    assert bytes_of(checkout) == before
    return str(error.value)


def test_what_is_no_checkout_is_refused(tmp_path):
    assert "lacks ragen/llm_agent/es_manager.py" in refused(tmp_path)
    assert "engine already" in _refusal(ROOT)


def _refusal(folder: Path) -> str:
    with pytest.raises(RetrofitError) as error:
        recognise(folder, needed_modules())
    return str(error.value)


def test_a_manager_with_methods_of_its_own_is_refused(checkout):
    manager = checkout / "ragen/llm_agent/es_manager.py"
    manager.write_text(manager.read_text() + "\n    def curriculum(self):\n        pass\n")
    assert "curriculum (line" in refused(checkout)


def test_edits_of_the_manager_are_told_since_they_have_no_effect(checkout, generation, capsys, monkeypatch):
    manager = checkout / "ragen/llm_agent/es_manager.py"
    monkeypatch.setitem(METHODS, generation, digests(manager.read_bytes()))
    manager.write_bytes(b"\xef\xbb\xbf" + manager.read_bytes().replace(b"\n", b" \r\n"))
    for old, told in (
        ("", None),
        ("base + self.counter if", " in reset: "),
        ("truncated: bool", " in the rest of the file, reset: "),
    ):
        manager.write_bytes(manager.read_bytes().replace(old.encode(), f"{old} ".encode() if old else b""))
        assert command.main([str(checkout), "--check"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "es_manager.py differs" in line]
        assert [told in line and "have no effect" in line for line in lines] == [True] * (told is not None)


@of_one
def test_a_linked_folder_is_refused_since_git_would_replace_the_link(checkout):
    os.rename(checkout / "ragen/env", checkout / "envs")
    (checkout / "ragen/env").symlink_to("../envs")
    assert "ragen/env is a link, to ../envs" in refused(checkout)


def test_a_clone_of_this_package_is_no_checkout_of_ragen(capsys):
    assert command.main([str(ROOT)]) == 2
    assert "is a clone of this package; expected a checkout of RAGEN" in capsys.readouterr().err


@of_one
@pytest.mark.parametrize("added_too", [True, False])
def test_remains_of_a_retrofit_are_refused_with_what_to_do(checkout, capsys, added_too):
    put(checkout)
    shutil.rmtree(checkout / backup.FOLDER)
    if added_too:  # as `git clean -x` does
        for name in ("parallel", "retrofit", "tools"):
            shutil.rmtree(checkout / "ragen" / name)
    for options in ((), ("--check",), ("--undo",)):
        assert command.main([str(checkout), *options]) == 2
        assert "`git checkout ragen` brings the originals back" in capsys.readouterr().err
    if not added_too:
        write_checkout(checkout, 2026)
        assert command.main([str(checkout)]) == 2
        assert "`git clean -nd ragen` lists" in capsys.readouterr().err


@of_one
def test_a_checkout_undoes_itself_without_the_packages_that_its_own_imports_need(checkout):
    package = checkout / "ragen/__init__.py"
    package.write_text("import verl_of_this_test\n")
    before = bytes_of(checkout)
    put(checkout)
    ran = python("-m", "ragen.retrofit", ".", "--undo", cwd=checkout, path=checkout)
    assert ran.returncode == 0, ran.stderr
    assert bytes_of(checkout) == before


@of_one
def test_the_line_that_undoes_works_in_any_folder(checkout, tmp_path, capsys):
    before = bytes_of(checkout)
    killed(checkout, "checkout", "--no-suite")
    assert put(checkout) == 2
    line = capsys.readouterr().err.split("`")[1]
    elsewhere = write_checkout(tmp_path / "other", 2025)  # its package of this name would come first
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ran = subprocess.run(line, shell=True, cwd=elsewhere, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert bytes_of(checkout) == before


# What becomes of the checkout's files


def test_environments_are_imported_when_they_are_asked_for(checkout):
    put(checkout)
    code = (
        "import sys, ragen.env as e; print(sorted(e.REGISTERED_ENVS), 'ragen.env.walk' in sys.modules); "
        "print(e.REGISTERED_ENVS['walk'].__name__, e.WalkConfig().length, 'ragen.env.counted' in sys.modules); "
        "print(hasattr(e, 'Nothing'))"
    )
    ran = python("-c", code, cwd=checkout, path=checkout, RAGEN_IMPORT_LIGHT="1")
    assert ran.stdout.splitlines() == ["['absent', 'counted', 'walk'] False", "WalkEnv 4 False", "False"], ran.stderr


@pytest.mark.parametrize(
    ("generation", "head", "tail"),
    [
        (2025, b"\xef\xbb\xbf", b"REGISTERED_ENVS.update(())\n"),  # more than a table
        (2026, b"\xef\xbb\xbf", b""),
        (2026, b"# -*- coding: latin-1 -*-\n# caf\xe9\n", b"REGISTERED_ENVS.update(())\n"),
    ],
    ids=["2025, byte order mark", "2026, byte order mark", "2026, Latin-1"],
    indirect=["generation"],
)
def test_sources_may_be_in_any_encoding_that_python_reads(checkout, head, tail):
    for path in ("ragen/env/__init__.py", "ragen/__init__.py", "ragen/llm_agent/es_manager.py", "ragen/utils.py"):
        place = checkout / path
        place.write_bytes(head + place.read_bytes() + (tail if "env/" in path else b""))
    assert put(checkout) == 0
    code = "import ragen.llm_agent.es_manager, ragen.env as e; print(e.REGISTERED_ENVS['walk'].__name__)"
    ran = python("-c", code, cwd=checkout, path=checkout)
    assert ran.stdout.strip() == "WalkEnv", ran.stderr


def test_a_table_that_is_not_understood_is_kept_and_handed_over(checkout):
    envs = checkout / "ragen/env/__init__.py"
    text = (
        envs.read_text()
        + "for name in list(REGISTERED_ENVS):\n    REGISTERED_ENVS[name.upper()] = REGISTERED_ENVS[name]\n"
    )
    envs.write_text(text)
    put(checkout)
    assert envs.read_text().startswith(text)
    code = (
        "import ragen.env as e; from ragen.env.registry import resolve_env; print(resolve_env('WALK')[0] is e.WalkEnv)"
    )
    assert python("-c", code, cwd=checkout, path=checkout).stdout.strip() == "True"


def test_workers_leave_out_what_the_package_imports(tmp_path):
    checkout = write_checkout(tmp_path / "RAGEN", 2026)
    put(checkout)
    code = "import sys, ragen; print('a_heavy_package' in sys.modules, getattr(ragen, 'APPLIED', None))"
    assert python("-c", code, cwd=checkout, path=checkout).stdout.strip() == "True True"
    assert python("-c", code, cwd=checkout, path=checkout, ENVLANES_SUPERVISOR="x").stdout.strip() == "False None"


def test_what_depends_on_salted_hashes_stays_in_main_unless_they_are_not_salted(checkout, capsys):
    walk = checkout / "ragen/env/walk/env.py"
    walk.write_text(walk.read_text().replace("random.Random(seed)", "random.Random(hash(str(seed)))"))
    put(checkout)
    assert "workers play walk only where Python is started with PYTHONHASHSEED=0" in capsys.readouterr().out
    code = (
        "import ragen.env; from ragen.env.registry import staying_in_main as s; print(s(['walk', 'counted', 'other']))"
    )
    told = python("-c", code, cwd=checkout, path=checkout, PYTHONHASHSEED="random")
    assert told.stdout.strip() == "['counted', 'walk']" and "ragen/env/walk/env.py:" in told.stderr
    assert python("-c", code, cwd=checkout, path=checkout, PYTHONHASHSEED="0").stdout.strip() == "['counted']"
    late = f"import os; os.environ['PYTHONHASHSEED'] = '42'; {code}"
    for started_with in ("random", "", "7"):
        told = python("-c", late, cwd=checkout, path=checkout, PYTHONHASHSEED=started_with)
        assert told.stdout.strip() == "['counted', 'walk']", f"it was set by the script, after {started_with!r}"
    assert python("-c", late, cwd=checkout, path=checkout, PYTHONHASHSEED="42").stdout.strip() == "['counted']"


def test_a_checkout_that_proves_itself_refuses_environments_that_depend_on_their_process_since(checkout):
    assert put(checkout) == 0
    walk = checkout / "ragen/env/walk/env.py"
    walk.write_text("# moved by a line\n" + walk.read_text())
    assert python("-m", "ragen.retrofit", ".", "--no-suite", cwd=checkout, path=checkout).returncode == 0
    walk.write_text(walk.read_text().replace("random.Random(seed)", "random.Random(hash(str(seed)))"))
    before = bytes_of(checkout)
    ran = python("-m", "ragen.retrofit", ".", "--no-suite", cwd=checkout, path=checkout)
    assert ran.returncode == 2 and "Traceback" not in ran.stderr
    assert "walk: ragen/env/walk/env.py:" in ran.stderr and f"`ragen retrofit {checkout}`" in ran.stderr
    assert bytes_of(checkout) == before
    assert put(checkout) == 0, "from outside it is looked at anew"
    assert python("-m", "ragen.retrofit", ".", "--no-suite", cwd=checkout, path=checkout).returncode == 0


# The proof


@pytest.mark.processes
def test_the_suite_proves_it(checkout):
    (checkout / "ragen/env/absent").mkdir()
    (checkout / "ragen/env/absent/env.py").write_text("import absent_a\n\ndef late():\n    from absent_b.c import d\n")
    tags, entry = checkout / "config/envs.yaml", "  Mine: {env_type: mine, max_actions_per_traj: 3}\n"
    tags.write_text(tags.read_text() + entry)
    base = checkout / "config/base.yaml"
    base.write_text(
        base.read_text().replace("[Walk, Absent], n_groups: [1, 1]", "[Walk, Absent, Mine], n_groups: [1, 1, 1]")
    )
    before = bytes_of(checkout)
    ran = retrofit(checkout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = {line.split()[0]: line for line in ran.stdout.splitlines() if line.startswith("  ") and line.split()}
    assert "val   equal, also to its own manager's" in lines["Walk"]
    assert "stays in the main process" in lines["Counted"] and "not played: ModuleNotFoundError" in lines["Absent"]
    assert f"not played: ragen/env/__init__.py registers no 'mine'. {backup.HOW_TO_ADD}." in lines["Mine"]
    lacked = f"Their sources import absent_a, absent_b, which {sys.executable} lacks."
    assert f"3 equal, 0 different, 2 not compared.\n{lacked}" in ran.stdout
    assert "\nNote: ragen/llm_agent/es_manager.py differs from" in ran.stdout
    assert backup.state(checkout) == backup.AFTER
    assert retrofit(checkout, "--undo").returncode == 0
    assert bytes_of(checkout) == before


EDITS = {  # of a manager, each for the tag of its name
    "mode=self.mode": "mode='train' if entry['tag'] == 'Moded' else self.mode",
    "entry['env'].reset(seed=seed": "entry['env'].reset(seed=seed + 5 * (entry['tag'] == 'Shifted')",
    "given - base + 1": "given * (self.config.env_configs.tags[0] != 'Rewound') - base + 1",
    "seed[self.mode]": "seed.get('train' if self.config.env_configs.tags[0] == 'Seeded' else self.mode, 123)",
    "reward + gained": "(reward + gained) * (1 + (entry['tag'] == 'Doubled'))",
    "for action in known[": "for action in [] if entry['tag'] == 'Tamed' else known[",
    'cache["penalty"] += ': "cache['penalty'] += (1 + (entry['tag'] == 'Strict')) * ",
}


BUG = """
        self.turns = getattr(self, "turns", 0) + 1
        if self.config.length == 99 and self.turns > 2:
            raise RuntimeError("bug of mine")
"""


@pytest.mark.processes
def test_rollouts_that_differ_in_training_or_validation_bring_everything_back(tmp_path):
    checkout = write_checkout(tmp_path / "RAGEN", 2025)
    manager = checkout / "ragen/llm_agent/es_manager.py"
    text = manager.read_text().replace('entry["env"]', "entry['env']")
    for old, new in EDITS.items():
        assert old in text
        text = text.replace(old, new)
    manager.write_text(text)
    walk = checkout / "ragen/env/walk/env.py"
    text = walk.read_text().replace("Random(seed)", "Random(seed + 50 * (mode == 'val'))")
    walk.write_text(text.replace("        self.place +=", BUG + "        self.place +="))
    tags = "Moded", "Shifted", "Seeded", "Strict", "Rewound", "Doubled", "Walk", "Tamed", "Raising"
    config = (checkout / "config/base.yaml").read_text().replace("[Walk, Counted]", "[Rewound, Doubled]")
    (checkout / "config/base.yaml").write_text(
        config.replace("[Walk, Absent]", "[Moded, Shifted, Seeded, Strict, Walk, Tamed, Raising]")
    )
    entry = "  {}: {{env_type: walk, max_actions_per_traj: 6, env_config: {{length: {}}}}}\n".format
    entries = [entry(tag, 99 if tag in ("Tamed", "Raising") else 9) for tag in tags if tag != "Strict"]
    entries.append("  Strict: {env_type: counted, max_actions_per_traj: 6}\n")  # takes any text: none is invalid
    (checkout / "config/envs.yaml").write_text("custom_envs:\n" + "".join(entries))
    before = bytes_of(checkout)
    ran = retrofit(checkout)
    told = {line.split()[0]: line for line in ran.stdout.splitlines() if line.startswith("  ")}
    for tag, mode in zip(tags, ["val"] * 4 + ["train"] * 2, strict=False):
        assert f" {mode:5} DIFFERS from its own EnvStateManager's: " in told[tag], ran.stdout + ran.stderr
    assert told["Walk"].endswith("val   equal, also to its own manager's")
    assert "DIFFERS its own EnvStateManager did not raise RuntimeError: bug of mine" in told["Tamed"]
    same = "not compared in workers: raises in episode 1: RuntimeError: bug of mine; its own manager does so too"
    assert told["Raising"].endswith(same)
    assert "1 equal, 7 different, 1 not compared." in ran.stdout
    assert ran.returncode == 1 and "Everything was restored: rollouts differ." in ran.stdout
    assert bytes_of(checkout) == before


@of_one
def test_a_misspelled_tag_of_a_named_configuration_is_refused(checkout):
    (checkout / "config/mine.yaml").write_text(
        "defaults: [base]\nes_manager: {train: {env_configs: {tags: [Wlak], n_groups: [1]}}}\n"
    )
    ran = retrofit(checkout, "--config-name", "mine")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "config/mine.yaml: tag 'Wlak' is not a key of custom_envs. Did you mean 'Walk'?" in ran.stdout + ran.stderr


@of_one
@pytest.mark.parametrize(
    "source",
    [
        "from ragen.env.counted.env import CountedEnv\n\n\nclass MineEnv(CountedEnv):\n    pass\n",
        "from ..counted.env import CountedEnv as Base\n\n\nclass MineEnv(Base):\n    pass\n",
        "import ragen.env.counted.env as counted\n\n\nclass MineEnv(counted.CountedEnv):\n    pass\n",
        "import ragen.env.counted.env\n\n\nclass MineEnv(ragen.env.counted.env.CountedEnv):\n    pass\n",
        "from ragen.env.counted import env\n\n\nclass MineEnv(env.CountedEnv):\n    pass\n",
        "from ragen.env import CountedEnv\n\n\nclass A(CountedEnv):\n    pass\n\n\nclass MineEnv(A):\n    pass\n",
    ],
)
def test_what_a_base_class_counts_keeps_an_environment_in_main(source, checkout, capsys):
    mine, envs = checkout / "ragen/env/mine", checkout / "ragen/env/__init__.py"
    mine.mkdir()
    (mine / "__init__.py").write_text("from .env import MineEnv\n")
    (mine / "env.py").write_text(source)
    added = ("from .mine import MineEnv", "REGISTERED_ENVS['mine'] = MineEnv", "REGISTERED_ENV_CONFIGS['mine'] = None")
    envs.write_text("\n".join((envs.read_text(), *added, "")))
    assert command.main([str(checkout), "--check"]) == 0
    told = capsys.readouterr().out
    line = 1 + (checkout / "ragen/env/counted/env.py").read_text().partition("CountedEnv.built += 1")[0].count("\n")
    assert f"mine stays in the main process: MineEnv keeps state in its class (ragen/env/counted/env.py:{line})" in told
    assert "walk stays" not in told


@of_one
def test_what_a_base_class_hashes_keeps_an_environment_in_main_unless_hashes_are_not_salted(checkout, capsys):
    walk, envs, mine = (checkout / f"ragen/env/{each}" for each in ("walk/env.py", "__init__.py", "mine.py"))
    walk.write_text(walk.read_text().replace("random.Random(seed)", "random.Random(hash(str(seed)))"))
    mine.write_text("from ragen.env.walk.env import WalkEnv\n\n\nclass MineEnv(WalkEnv):\n    pass\n")
    added = ("from .mine import MineEnv", "REGISTERED_ENVS['mine'] = MineEnv", "REGISTERED_ENV_CONFIGS['mine'] = None")
    envs.write_text("\n".join((envs.read_text(), *added, "")))
    assert command.main([str(checkout), "--check"]) == 0
    told = capsys.readouterr().out
    assert "workers play walk, mine only where" in told and told.count("ragen/env/walk/env.py:") == 1


@of_one
@pytest.mark.processes
def test_an_environment_that_does_not_repeat_itself_is_named_and_not_the_manager(checkout):
    walk = checkout / "ragen/env/walk/env.py"
    walk.write_text(walk.read_text().replace("random.Random(seed)", "random.Random()"))
    envs = checkout / "config/envs.yaml"
    envs.write_text(envs.read_text().replace("length: 3", "length: 999"))
    before = bytes_of(checkout)
    ran = retrofit(checkout)
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("  Walk") and " train " in line)
    assert "NOT REPRODUCIBLE walk: its own EnvStateManager played it twice with the same seeds and replies, " in line
    assert "DIFFERS" not in ran.stdout and "draw from no global generator in step" in line
    assert "`python -m ragen.tools.check walk length=999` in the checkout" in line
    assert "1 equal, 0 different, 2 not reproducible, 1 not compared." in ran.stdout
    assert "Everything was restored: environments are not reproducible." in ran.stdout
    assert ran.returncode == 1 and bytes_of(checkout) == before


@pytest.mark.processes
def test_the_whole_proof_is_repeated_by_the_checkout_itself(tmp_path):
    checkout = write_checkout(tmp_path / "RAGEN", 2026)
    (checkout / "ragen/__init__.py").write_text("from ragen.patches import patched\n")
    (checkout / "ragen/patches").mkdir()
    (checkout / "ragen/patches/__init__.py").write_text("from .config import patched\n")
    (checkout / "ragen/patches/config.py").write_text("from verl_of_this_test.utils import patched\n")
    walk = checkout / "ragen/env/walk/env.py"
    walk.write_text(walk.read_text().replace("random.Random(seed)", "random.Random(hash(str(seed)))"))
    assert put(checkout) == 0
    ran = python("-m", "ragen.retrofit", ".", cwd=checkout, path=checkout, PYTHONHASHSEED="random")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = {line.split()[0]: line for line in ran.stdout.splitlines() if line.startswith("  ")}
    assert lines["Walk"].endswith("equal, also to its own manager's")
    assert "3 equal, 0 different, 1 not compared." in ran.stdout
    assert f"need verl_of_this_test, which {sys.executable} lacks: ragen/_own_init.py imports it; RAGEN_" in ran.stdout
    ran = python("-m", "ragen.llm_agent.es_manager", cwd=checkout, path=checkout, RAGEN_IMPORT_LIGHT="1")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1) and "is unavailable until --undo" in ran.stderr


@of_one
def test_a_proof_that_cannot_be_run_is_not_called_a_difference(checkout):
    before = bytes_of(checkout)
    (checkout / "numpy").mkdir()
    (checkout / "numpy/__init__.py").write_text("import datasets_of_this_test\n")
    ran = retrofit(checkout)
    shutil.rmtree(checkout / "numpy")
    assert ran.returncode == 1 and "rollouts differ" not in ran.stdout
    assert "could not be run (ModuleNotFoundError: No module named 'datasets_of_this_test')" in ran.stdout
    assert bytes_of(checkout) == before


# Real checkouts


@pytest.mark.parametrize(("name", "generation"), [("ragen-up25", 2025), ("ragen-up26", 2026)])
def test_real_checkouts_are_known_and_come_back(tmp_path, name, generation):
    if ARCHIVES is None:
        pytest.skip("RAGEN_CHECKOUTS names no folder with archives of RAGEN")
    with tarfile.open(Path(ARCHIVES, f"{name}.tar.gz")) as packed:
        packed.extractall(tmp_path, filter="data")
    checkout = tmp_path / name
    before = bytes_of(checkout)
    known = recognise(checkout, needed_modules())
    assert known.generation == generation
    adapted = adapt(known, needed_modules())
    assert edits_of_manager(known) == ""
    assert {"sokoban", "frozen_lake"} <= adapted.salted.keys()
    assert adapted.in_main.keys() == ({"bandit"} if generation == 2026 else set())
    assert put(checkout) == 0
    code = (
        "from ragen.llm_agent.es_manager import EnvStateManager as M; from ragen.retrofit.suite import composed; "
        "from pathlib import Path; c = composed(Path('config'), '_1_bandit'); m = M(c, 'val'); s = m.reset(); "
        "ask = [dict(env_id=0, actions=['x'], llm_response='', llm_raw_response='')]; print(len(s), len(m.step(ask))); "
        "print('manager_invalid_action' in s[0]['history'][-1]); m.close()"
    )
    ran = python("-c", code, cwd=checkout, path=checkout, RAGEN_IMPORT_LIGHT="1")
    assert ran.stdout.splitlines() == ["512 1", str(generation == 2026)], ran.stderr
    assert command.main([str(checkout), "--undo"]) == 0
    assert bytes_of(checkout) == before
