"""A server starts without what uvicorn's command line would bring along."""

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


def test_a_serving_process_has_not_read_a_command_line_and_its_supervisors() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SERVES], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "\n", done.stdout
