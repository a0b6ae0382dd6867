"""Heavy environments in a worker: its folder for temporary files, and the programs that they start."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from envlanes.temporary import temporary_folder
from support import scripts
from support.episodes import EnvStateManager, config, inputs
from support.leftovers import is_over, until

TAGS = {"Heavy": {"env_type": "support.heavy_envs:Heavy"}}
pytestmark = pytest.mark.cold  # what is left behind ends with the supervisor at the latest, and that is to be seen


def heavy(**es_manager):
    """Four environments, in two workers unless something else is asked for."""
    return config(TAGS, [("Heavy", 4)], **{"use_multiprocessing": True, **es_manager})


def told(manager, turn=0):
    """The text of each environment in a turn."""
    manager.step(inputs(range(4), turn))
    return {entry["env_id"]: entry["history"][turn]["info"]["told"] for entry in manager.rollout_cache}


def test_each_worker_has_a_folder_which_tempfile_uses_and_which_goes_with_it(backend):
    with EnvStateManager(heavy()) as manager:
        manager.reset()
        said = told(manager)
        homes = {each["home"] for each in said.values()}
        assert len(homes) == 2 and str(temporary_folder()) not in homes
        assert all(Path(each["folder"]).parent == Path(each["home"]) for each in said.values())
        assert all(Path(each["folder"], "file").exists() for each in said.values())
    assert until(lambda: not any(map(os.path.exists, homes)))


def test_what_a_killed_worker_had_goes_at_once_and_its_successor_has_its_own(kill_lanes):
    with EnvStateManager(heavy()) as manager:
        manager.reset()
        before = told(manager)
        kill_lanes(manager)
        after = told(manager, 1)
        assert not any(os.path.exists(each["home"]) for each in before.values())
        assert all(is_over(each["program"]) for each in before.values())
        assert len({each["program"] for each in after.values()}) == 2
        assert all(Path(each["folder"], "file").exists() for each in after.values())


@pytest.mark.parametrize("victims", [["worker"], ["supervisor"], ["main"]])
def test_temporary_files_are_removed_by_what_outlives_their_worker(tmp_path, victims):
    folder = tmp_path / "temporary"
    folder.mkdir()
    body = f"""
        import signal, tempfile
        tempfile.tempdir = {str(folder)!r}
        from test_heavy_environments import *
        from support.leftovers import titled
        if __name__ == "__main__":
            manager = EnvStateManager(heavy(max_workers=1))
            manager.reset()
            told(manager)
            print(*titled("envlanes supervisor"), manager.lane_stats()[-1].pid, flush=True)
            sys.stdin.readline()
            manager.close()
    """
    main = scripts.start(scripts.write(tmp_path, body), stdin=-1)
    assert main.stdout is not None
    supervisor, worker = map(int, main.stdout.readline().split())
    assert len(list(folder.glob("envlanes-*/*/*/file"))) == 4
    pids = {"main": main.pid, "supervisor": supervisor, "worker": worker}
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    main.communicate("go on\n")
    assert until(lambda: not list(folder.iterdir()))
