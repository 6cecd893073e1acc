"""A server starts without importing what uvicorn's command line needs."""

import subprocess
import sys

_SERVES = """
import asyncio, sys
from gpushare.httpserver.server import bind, server_of

async def app(scope, receive, send):
    pass

async def serve():
    server = server_of(app, stop_s=1)
    serving = asyncio.create_task(server.serve(sockets=[bind("127.0.0.1", 0)]))
    while not server.started:
        await asyncio.sleep(0)
    print(*sorted({"click", "multiprocessing", "uvicorn.main"} & sys.modules.keys()))
    server.should_exit = True
    await serving

asyncio.run(serve())
"""


def test_a_serving_process_imports_no_command_line_and_no_supervisors() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _SERVES], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "\n", result.stdout
