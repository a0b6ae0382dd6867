"""OpenEnv's own validator, graders and clients, unmodified, against ``ragen serve`` as it is typed."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("websockets")
pytest.importorskip("openenv")
pytestmark = pytest.mark.timeout(240)  # its import looks for a network


@pytest.fixture
def start(tmp_path):
    """A function that starts a server on a port, 0 for a free one; the process and the port."""
    processes = []

    def begin(port=0):
        envs = ["--env", "frozen_lake", "--env", "bandit"]
        words = ["serve", *envs, "--port", str(port), "--journal-dir", str(tmp_path)]
        process = subprocess.Popen([sys.executable, "-m", "ragen", *words], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        told = process.stdout.readline()
        return process, int(re.search(r":(\d+)$", told.strip())[1])

    yield begin
    for process in processes:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_the_validator_of_openenv_is_content(start):
    from openenv.cli._validation import validate_running_environment

    report = validate_running_environment(f"http://127.0.0.1:{start()[1]}")
    assert report["passed"], report


@pytest.mark.parametrize("env", ["frozen_lake", "bandit"])
@pytest.mark.parametrize("path", ["", "/s/mine"])
def test_the_graders_of_openenv_are_content(start, env, path):
    from openenv.validation.graders.runtime import basic
    from openenv.validation.runtime.collector import collect_runtime_evidence
    from openenv.validation.runtime.contracts import RuntimePlan

    reset = {"episode_id": "an-episode", "seed": 2**32 - 1, "options": {"env": env}}
    actions = [{"text": text} for text in ("Right", "nonsense", "<answer>Down</answer>", "Dragon")]
    plan = RuntimePlan.model_validate({"plan_schema_version": "1", "reset": reset, "actions": actions})
    url = f"http://127.0.0.1:{start()[1]}{path}"
    evidence = collect_runtime_evidence(url, plan, episode_timeout_s=60)
    assert evidence.failure_reason is None
    manifest = SimpleNamespace(reward=SimpleNamespace(range=(-1.0, 1.0)))
    subject = SimpleNamespace(runtime_evidence=evidence, manifest=manifest)
    for grader in (basic.ObservationSchemaGrader(), basic.StateContractGrader(), basic.RewardWellFormedGrader()):
        result = grader.run(subject)
        assert result.status.value == "pass", result


def test_another_client_of_openenv_goes_on_under_the_same_address(start):
    from openenv import GenericEnvClient

    url = f"http://127.0.0.1:{start()[1]}/s/mine"
    with GenericEnvClient(base_url=url).sync() as first:
        first.reset(seed=5)
        assert first.step({"text": "Right"}).metadata["turn"] == 1
        with GenericEnvClient(base_url=url).sync() as second:
            assert second.step({"text": "Right"}).metadata["turn"] == 2
