"""``ragen doctor``: what it finds, and what it says where something is missing."""

from pathlib import Path

from ragen.cli import doctor
from ragen.errors import install_command
from ragen.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[2]


def test_a_machine_that_runs_these_tests_is_sound(capsys):
    assert doctor.main([]) == doctor.SOUND
    told = capsys.readouterr().out
    assert "MISSING" not in told
    for topic in ("ragen", "python", "numpy", "[verl]", "processors", "memory", "start methods", "worker: process"):
        assert f"\n{topic}" in f"\n{told}"


def test_a_worker_of_each_kind_is_started():
    (executor,) = [line for line in doctor.workers() if line.topic == "worker: executor"]
    assert executor.status == "ok" and "started and reset" in executor.text


def test_a_worker_that_does_not_start_is_told_with_what_plays_without(monkeypatch):
    from ragen.errors import LaneStartError

    class Broken:
        def __init__(self, *_):
            raise LaneStartError("no processes here")

    monkeypatch.setattr("ragen.parallel.engine.EnvEngine", Broken)
    line = doctor._started("process")
    assert line.status == "note" and "no processes here" in line.text and "use_multiprocessing=false" in line.cure


def test_what_is_needed_and_not_installed_is_the_exit_code(monkeypatch, capsys):
    real = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda package: None if package == "gymnasium" else real(package))
    monkeypatch.setattr(doctor, "missing", lambda extra: ["mujoco"] if extra == "meta" else [])
    monkeypatch.setattr(doctor, "LOOKS", (doctor.versions, doctor.extras))
    assert doctor.main([]) == doctor.UNSOUND
    told = capsys.readouterr().out
    assert install_command() in told and install_command("meta") in told
    assert told.count("MISSING") == 1


def test_little_of_something_is_told_with_what_helps(monkeypatch):
    monkeypatch.setattr(doctor, "LITTLE_SHARED", 1e18)
    monkeypatch.setattr(doctor, "FEW_FILES", 1 << 40)
    found = {line.topic: line for line in doctor.machine()}
    assert "--shm-size" in found["/dev/shm"].cure and "ulimit -n" in found["open files"].cure


def test_what_is_looked_up_is_what_the_package_names():
    setup = (ROOT / "setup.py").read_text("utf-8")
    for extra in EXTRAS:
        assert f'"{extra}": ' in setup
    for package in doctor.NEEDED:
        assert f'"{package}>=' in setup
