"""OpenEnv's own validator, unmodified, against ``ragen serve`` as it is typed."""

import json
import re
import subprocess
import sys

import pytest

pytest.importorskip("websockets")
pytest.importorskip("openenv")
pytestmark = pytest.mark.timeout(240)  # its import looks for a network


@pytest.fixture
def start(tmp_path):
    """A function that starts a server on a port, 0 for a free one; the process and the port."""
    processes = []

    def begin(port=0):
        words = ["serve", "--env", "frozen_lake", "--port", str(port), "--journal-dir", str(tmp_path)]
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


def test_a_check_of_a_server_is_a_report_that_openenv_reads(start, capsys):
    from openenv.validation.policy import load_policy
    from openenv.validation.report import CheckResult

    from ragen.tools.check import main

    assert main([f"http://127.0.0.1:{start()[1]}", "--json", "--turns", "3"]) == 0
    known = {entry.check_id for entry in load_policy("v2").entries}
    results = [CheckResult.model_validate(each) for each in json.loads(capsys.readouterr().out)["results"]]
    assert {result.check_id for result in results} <= known and len(results) == 6


def test_the_mcp_client_of_openenv_plays_with_tools(start):
    from openenv.core.mcp_client import MCPToolClient

    url = f"http://127.0.0.1:{start()[1]}"
    with MCPToolClient(base_url=url).sync() as env:
        assert [tool.name for tool in env.list_tools()] == ["begin", "act"]
        assert env.call_tool("begin", seed=5)["reward"] is None
        assert env.call_tool("act", text="Right")["reward"] == 0
        assert env.state().step_count == 1
        with pytest.raises(RuntimeError, match="act takes text"):
            env.call_tool("act", move="Right")


def test_another_client_of_openenv_goes_on_under_the_same_address(start):
    from openenv import GenericEnvClient

    url = f"http://127.0.0.1:{start()[1]}/s/mine"
    with GenericEnvClient(base_url=url).sync() as first, GenericEnvClient(base_url=url).sync() as second:
        first.reset(seed=5)
        assert first.step({"text": "Right"}).metadata["turn"] == 1
        second.connect()
        assert second.step({"text": "Right"}).metadata["turn"] == 2
