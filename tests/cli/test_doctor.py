"""``ragen doctor``: what it finds."""

from ragen.cli import doctor


def test_a_machine_that_runs_these_tests_is_sound(capsys):
    assert doctor.main([]) == doctor.SOUND
    printed = capsys.readouterr().out
    assert "MISSING" not in printed and printed.count("started and reset") == 2


def test_a_required_package_that_is_missing_is_the_exit_code(monkeypatch, capsys):
    real = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda package: None if package == "gymnasium" else real(package))
    monkeypatch.setattr(doctor, "facts", lambda: [])
    assert doctor.main([]) == doctor.UNSOUND and "gymnasium" in capsys.readouterr().out
    assert {"numpy", "gymnasium", "openai"} <= set(doctor.required()) and "torch" not in doctor.required()
