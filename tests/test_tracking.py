"""The loggers of a training."""

import importlib.util

import pytest

from ragen import tracking
from ragen.errors import ConfigError
from ragen.tracking import check_loggers, open_loggers


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the extra `train` is missing")
def test_tensorboard_has_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_loggers(["console", "tensorboard"], tmp_path) as loggers:
        loggers.log({"val/success": 0.5}, 7)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (scalar,) = events.Scalars("val/success")
    assert (scalar.step, scalar.value) == (7, 0.5)


def test_a_logger_that_cannot_be_used_is_refused_with_its_key(monkeypatch):
    monkeypatch.setitem(tracking.PACKAGES, "tensorboard", "no_such_package")
    for name in ("tensorboard", "paper"):
        with pytest.raises(ConfigError, match=name):
            check_loggers(["console", name], "trainer.logger")
