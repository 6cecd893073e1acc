"""Calls ``Allocate`` and measures its time, in a process that does nothing else.

Reads a line with device IDs, separated by spaces, and prints a line of JSON: seconds and environment.
Usage: ``python -m benchmarks.allocate_caller SOCKET``.
"""

import json
import sys
import time

import grpc

from gpushare.kubeletapi.deviceplugin_pb2 import AllocateRequest, ContainerAllocateRequest
from gpushare.kubeletapi.deviceplugin_pb2_grpc import DevicePluginStub

if __name__ == "__main__":
    with grpc.insecure_channel(f"unix://{sys.argv[1]}") as channel:
        stub = DevicePluginStub(channel)
        for line in sys.stdin:
            request = AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=line.split())])
            started = time.perf_counter()
            answer = stub.Allocate(request, timeout=10.0)
            took_s = time.perf_counter() - started
            envs = dict(answer.container_responses[0].envs)
            print(json.dumps({"seconds": took_s, "envs": envs}), flush=True)
