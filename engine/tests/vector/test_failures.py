"""Sub-environments that raise, hang or end their process, and all others beside them."""

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import SyncVectorEnv

from envlanes.errors import ConfigError, DivergenceError, LaneDiedError, LaneTimeoutError, StateError
from envlanes.gym import LaneVectorEnv
from support.gym_envs import Obeys, TellsItsProcess, Walk, kill, same, walks

pytestmark = pytest.mark.processes
RAISE, HANG, EXIT = 1, 2, 3


WAYS = {RAISE: ValueError, HANG: LaneTimeoutError, EXIT: LaneDiedError}


@pytest.mark.parametrize("action", WAYS)
@pytest.mark.parametrize("backend", ["process", "executor"])
def test_an_error_is_raised_and_everything_stays_usable(lanes, backend, action):
    envs, other = lanes(walks(3, Obeys), backend=backend, step_timeout=1.0), SyncVectorEnv(walks(3, Obeys))
    same(envs.reset(seed=0), other.reset(seed=0))
    with pytest.raises(WAYS[action]) as caught:
        envs.step(np.array([0, action, 0]))
    assert "env 1" in str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    other.step(np.zeros(3, int))
    observations, expected = envs.step(np.zeros(3, int))[0], other.step(np.zeros(3, int))[0]
    same(observations[[0, 2]], expected[[0, 2]])
    assert observations[1, 1] == 0  # the one that failed begins anew
    same(envs.reset(seed=1), other.reset(seed=1))


def test_an_environment_that_does_not_replay_is_told(lanes):
    envs = lanes(walks(2, TellsItsProcess))
    envs.reset(seed=0)
    kill(envs)
    with pytest.raises(DivergenceError):
        envs.step(np.array([0, 0]))


@pytest.mark.parametrize("action", WAYS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_an_environment_that_fails_is_truncated_where_so_asked(lanes, mode, action):
    envs = lanes(walks(2, Obeys), on_env_failure="truncate", step_timeout=1.0, autoreset_mode=mode)
    before, _ = envs.reset(seed=0)
    observations, rewards, terminated, truncated, infos = envs.step(np.array([0, action]))
    assert truncated.tolist() == [False, True] and not terminated.any() and rewards[1] == 0
    assert infos["_env_error"].tolist() == [False, True] and isinstance(infos["env_error"][1], str)
    same(infos["final_obs"][1] if mode == "SameStep" else observations[1], before[1])
    if mode == "Disabled":
        envs.reset(options={"reset_mask": truncated})
    assert not envs.step(np.zeros(2, int))[3].any()


class NeedsAServer(Walk):
    """Holds a file that only one may hold, and cannot play while its server is away."""

    def __init__(self, folder=None):
        super().__init__()
        self.held, self.away, self.once = (folder / name for name in ("held", "away", "once"))
        self.held.touch(exist_ok=False)

    def reset(self, *, seed=None, options=None):
        if self.away.exists():
            raise ConnectionError("the server is away")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.away.exists() or self.once.exists():
            self.once.unlink(missing_ok=True)
            raise ConnectionError("the server is away")
        return super().step(action)

    def close(self):
        self.held.unlink()


@pytest.mark.parametrize("failure", ["raise", "truncate", "fallback"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_environment_fails_for_as_long_as_its_server_is_away(lanes, mode, failure, tmp_path):
    functions = [Walk, lambda: NeedsAServer(tmp_path)]
    envs = lanes(functions, autoreset_mode=mode, on_env_failure=failure)
    envs.reset(seed=0)
    (tmp_path / "away").touch()
    for _ in range(3):
        if failure == "raise":
            with pytest.raises(ConnectionError):
                envs.step(np.zeros(2, int))
        else:
            assert envs.step(np.zeros(2, int))[3].tolist() == [False, True]
    (tmp_path / "away").unlink()
    assert not any(envs.step(np.zeros(2, int))[3].any() for _ in range(2))


@pytest.mark.parametrize("action", WAYS)
def test_an_environment_that_fails_once_is_not_noticed_with_fallback(lanes, tmp_path, action):
    envs = lanes(walks(2, Obeys, lives=str(tmp_path / "died")), on_env_failure="fallback", step_timeout=1.0)
    other = SyncVectorEnv(walks(2, Obeys))
    same(envs.reset(seed=0), other.reset(seed=0))
    for given in (0, action):
        same(envs.step(np.array([0, given])), other.step(np.zeros(2, int)))


def test_calls_out_of_order_are_refused(lanes):
    envs = lanes(walks(2))
    with pytest.raises(StateError):
        envs.step(np.zeros(2, int))
    with pytest.raises(NoAsyncCallError, match="step_async"):
        envs.step_wait()
    envs.reset_async(seed=0)
    for call in (envs.reset, lambda: envs.step([0, 0]), lambda: envs.call("gain"), lambda: envs.set_attr("gain", 1)):
        with pytest.raises(AlreadyPendingCallError, match="pending call to `reset`"):
            call()
    envs.reset_wait()
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.step(np.zeros(2, int))


def test_close_ends_a_call_that_is_under_way(lanes):
    envs = lanes(walks(2, Obeys))
    envs.reset(seed=0)
    envs.step_async(np.array([HANG, 0]))
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close(timeout=0.2)


REFUSED = {
    "worker": print,
    "context": "thread",
    "workers": -1,
    "max_concurrency": 0,
    "on_env_failure": "no",
    "autoreset_options": {"level": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_cannot_work_are_refused_before_anything_starts(name):
    with pytest.raises(ConfigError, match=name):
        LaneVectorEnv(walks(2), **{name: REFUSED[name]})
