"""PyTorch."""

import threading
import time

import torch
import torch.multiprocessing
from reporting import MIB, UNLIMITED, holds, main, reported
from torch.utils.data import DataLoader, TensorDataset

PIECE = 100 * MIB


def memory(limit: int) -> str:
    """Allocates pieces until it is refused, frees them, and continues."""
    total = torch.cuda.get_device_properties(0).total_memory
    before, _ = torch.cuda.mem_get_info()
    got = reported(before, total, limit)
    pieces: list[torch.Tensor] = []
    refused = False
    try:
        while len(pieces) * PIECE < (limit or UNLIMITED):
            pieces.append(torch.empty(PIECE, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        refused = True
    taken = len(pieces) * PIECE
    holds(refused == bool(limit), f"{taken // MIB} MiB were allocated")
    holds(not limit or before - taken < 2 * PIECE, f"refused after {taken // MIB} MiB, with {got}")
    pieces.clear()
    torch.cuda.empty_cache()
    # Code loaded meanwhile stays.
    after, _ = torch.cuda.mem_get_info()
    holds(before - after <= 64 * MIB, f"{(before - after) // MIB} MiB less are free after all")
    copies(limit)
    return (
        f"{got}; {taken // MIB} MiB allocated, {'then OutOfMemoryError, ' if refused else ''}and it goes on"
    )


def copies(_limit: int) -> str:
    """Bytes copied through the GPU's memory come back unchanged."""
    sent = torch.randint(0, 255, (4 * MIB,), dtype=torch.uint8)
    there = sent.pin_memory().to("cuda", non_blocking=True)
    again = torch.empty_like(there)
    again.copy_(there)
    holds(bool(torch.equal(again.cpu(), sent)), "other bytes came back")
    return "4 MiB to the GPU, within it and back are the same"


def training(_limit: int) -> str:
    """Forward, backward and an optimizer's steps: thousands of launches of the wheel's own kernels, and matrix products."""
    network = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)).cuda()
    optimizer = torch.optim.Adam(network.parameters())
    inputs, targets = torch.randn(512, 256, device="cuda"), torch.randn(512, 16, device="cuda")
    for _ in range(50):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(network(inputs), targets).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return "50 steps"


def graph(_limit: int) -> str:
    """A graph that also allocates is captured, and replayed."""
    still, side = torch.zeros(1000, 1000, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.relu(still + 1)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        torch.relu(still + 1)
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").zero_()
    for _ in range(1000):
        captured.replay()
    torch.cuda.synchronize()
    return "1000 replays"


def graph_beside(_limit: int) -> str:
    """Graphs are captured in global mode while another thread keeps the GPU busy."""
    stop, begun = threading.Event(), threading.Event()
    launched = [0]
    problems: list[Exception] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                array = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
                while not stop.is_set():
                    for _ in range(20):
                        array.add_(1)
                    launched[0] += 20
                    begun.set()
        except Exception as problem:  # reported below
            problems.append(problem)
            begun.set()

    still = torch.zeros(1000, 1000, device="cuda")
    background = threading.Thread(target=work)
    background.start()
    # It allocates first, which no driver allows during a capture in global mode.
    begun.wait()
    captures, end = 0, time.monotonic() + 4
    try:
        while time.monotonic() < end:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                torch.relu(still + 1)
            captured.replay()
            captures += 1
    finally:
        stop.set()
        background.join()
    holds(not problems, f"the other thread: {problems}")
    holds(captures > 10 and launched[0] > 0, f"{captures} captures beside {launched[0]} launches")
    return f"{captures} captures beside {launched[0]} launches, none invalidated"


def loader(_limit: int) -> str:
    """Worker processes are forked from a process that uses the GPU and pins memory."""
    rows = 0
    torch.zeros(1, device="cuda")
    for (batch,) in DataLoader(
        TensorDataset(torch.randn(400, 8)), batch_size=10, num_workers=2, pin_memory=True
    ):
        rows += len(batch.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    holds(rows == 400, f"{rows} rows")
    return "400 rows of 2 workers"


def _change(tensors: "torch.multiprocessing.Queue", done: "torch.multiprocessing.Queue") -> None:
    shared = tensors.get()
    shared.zero_()
    torch.cuda.synchronize()
    del shared
    done.put("changed")


def ipc(_limit: int) -> str:
    """Another process changes a tensor that was sent to it."""
    spawning = torch.multiprocessing.get_context("spawn")
    tensors, done = spawning.Queue(), spawning.Queue()
    other = spawning.Process(target=_change, args=(tensors, done))
    other.start()
    shared = torch.full((8 * MIB,), 7, dtype=torch.uint8).to("cuda")
    tensors.put(shared)
    done.get(timeout=60)
    other.join()
    holds(not shared.cpu().any(), "the other process's writes are not seen")
    return "8 MiB that another process filled"


if __name__ == "__main__":
    main(
        {
            "memory": memory,
            "copies": copies,
            "training": training,
            "graph": graph,
            "graph beside": graph_beside,
            "loader": loader,
            "ipc": ipc,
        }
    )
