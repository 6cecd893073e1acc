"""The example scheduler plugin, installed as a user installs it, in a running scheduler."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from benchmarks.api_server import Cluster, Connection, node_name, pod_object
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.auth.access import Access
from gpushare.options.option import InvalidSettings
from gpushare.scheduler.__main__ import main
from gpushare.scheduler.main import serve
from gpushare.scheduler.settings import Settings

CHECKOUT = Path(__file__).parents[3]
DEADLINE_S = 60.0
ARGUMENTS: dict[str, dict[str, Any]] = {"prefer-label": {"label": "disk", "value": "ssd", "weight": 3}}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder))
    example = CHECKOUT / "examples" / "scheduler-plugin"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(example)], check=True, timeout=DEADLINE_S
    )
    return folder


async def test_the_example_scores_nodes_with_its_label_highest(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    cluster = Cluster(4, 0, 1, 3, 81920, MemoryUnit.GIB)
    labelled = json.loads(cluster.nodes[2])
    labelled["metadata"]["labels"]["disk"] = "ssd"
    cluster.nodes[2] = orjson.dumps(labelled)
    api = await asyncio.get_running_loop().create_server(lambda: Connection(cluster), "127.0.0.1", 0)
    access = Access(f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}")
    port_file = tmp_path / "port"
    settings = Settings(port=0, port_file=port_file, plugins=ARGUMENTS)
    serving = asyncio.create_task(serve(access, settings))
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as http:
        while not port_file.exists():
            assert not serving.done(), await serving
            await asyncio.sleep(0)
        url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        while (await http.get(f"{url}/readyz")).status != 200:
            await asyncio.sleep(0)
        body = {"Pod": pod_object(0, 1, 3, None), "NodeNames": [node_name(number) for number in range(4)]}
        async with http.post(f"{url}/gpushare/filter", json=body) as answer:
            assert (await answer.json())["NodeNames"] == body["NodeNames"]
        async with http.post(f"{url}/gpushare/prioritize", json=body) as answer:
            scores = {one["Host"]: one["Score"] for one in await answer.json()}
        assert scores == {node_name(2): 8}  # three quarters of the score are the plugin's
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, DEADLINE_S)
    api.close()


async def test_arguments_rejected_by_the_plugin_stop_the_start_with_its_message(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    settings = Settings(port=0, plugins={"prefer-label": {"label": "disk"}})
    with pytest.raises(InvalidSettings, match="plugin prefer-label: give label and value"):
        await asyncio.wait_for(serve(Access("http://127.0.0.1:1"), settings), DEADLINE_S)


def test_a_missing_plugin_is_reported_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    options = ["--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", "--plugins", '{"absent": {}}']
    assert main(options) == 2
    assert "plugin absent is not installed" in capsys.readouterr().err
