"""Scenarios of a program with PyTorch, one per process: each prints one line of JSON, ``{"good": …, "got": …}`` and more.

Usage: ``python pytorch_scenarios.py SCENARIO LIMIT_BYTES``; 0: no limit.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data

MIB = 1 << 20
PIECE = 64 * MIB
Result = dict[str, Any]


def seen(limit: int) -> Result:
    """The reported memory of its GPU."""
    torch.ones(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0).total_memory
    got = f"mem_get_info: {free / MIB:.0f} of {total / MIB:.0f} MiB; total_memory: {properties / MIB:.0f} MiB"
    return {"good": total == properties == limit and 0 < free < limit, "got": got}


def product_is_right() -> bool:
    """Whether a matrix product on the GPU equals the processor's."""
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    there = (left.cuda() @ right.cuda()).cpu()
    return bool(torch.allclose(there, left @ right, rtol=1e-2, atol=1e-1))


def filled(limit: int) -> int | None:
    """Number of pieces that can be allocated; None: more than the limit."""
    pieces: list[torch.Tensor] = []
    while len(pieces) <= limit // PIECE:
        try:
            pieces.append(torch.empty(PIECE, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            return len(pieces)
    return None


def eager(limit: int) -> Result:
    """Requests more than the limit, in one piece and in many; then it continues."""
    torch.ones(1, device="cuda")
    try:
        torch.empty(limit, dtype=torch.uint8, device="cuda")
        return {"good": False, "got": f"{limit >> 20} MiB were allocated at once"}
    except torch.cuda.OutOfMemoryError:
        pass
    free, _ = torch.cuda.mem_get_info()
    pieces = filled(limit)
    if pieces is None:
        return {"good": False, "got": f"more than {limit >> 20} MiB were allocated in pieces"}
    torch.cuda.empty_cache()
    again = filled(limit)
    torch.cuda.empty_cache()
    right = product_is_right()
    got = f"fails at once; {pieces} pieces of 64 MiB where {free >> 20} MiB were free, then {again}; continues: {right}"
    # What PyTorch itself needs for the first product may have been taken meanwhile.
    return {"good": right and again == pieces and pieces * PIECE > free - 2 * PIECE, "got": got}


def growing(limit: int) -> Result:
    """A growing tensor, the purpose of expandable segments; then all of ``eager``."""
    whole = torch.ones(MIB, dtype=torch.uint8, device="cuda")
    for _ in range(7):
        whole = torch.cat([whole, whole])
    right = int(whole.sum(dtype=torch.int64).item()) == whole.numel()
    del whole
    torch.cuda.empty_cache()
    result = eager(limit)
    return {"good": result["good"] and right, "got": f"grown right: {right}; {result['got']}"}


def graphs(limit: int) -> Result:
    """A captured graph gives the same results as single calls."""
    torch.manual_seed(1)
    weights, static = torch.randn(512, 512, device="cuda"), torch.zeros(512, 512, device="cuda")

    def work() -> torch.Tensor:
        return torch.relu(static @ weights) + torch.ones(512, 512, device="cuda")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    right = 0
    for _ in range(20):
        static.copy_(torch.randn(512, 512, device="cuda"))
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        right += bool(torch.allclose(out, work(), rtol=1e-3, atol=1e-3))
    return {"good": right == 20, "got": f"{right} of 20 right, each after 20 replays"}


def training(limit: int) -> Result:
    """A small network learns; the digest of its parameters is the same with and without a limit."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(2)
    network = torch.nn.Sequential(
        torch.nn.Linear(256, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 16),
    ).cuda()
    inputs = torch.randn(4096, 256, device="cuda")
    wanted = torch.tanh(inputs @ torch.randn(256, 16, device="cuda") / 16)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    losses = []
    for step in range(300):
        part = slice(step % 8 * 512, step % 8 * 512 + 512)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(inputs[part]), wanted[part])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(bytes(parameter.detach().cpu().flatten().view(torch.uint8).tolist()))
    got = f"loss {losses[0]:.4f} to {losses[-1]:.4f}, parameters {digest.hexdigest()[:16]}"
    return {"good": losses[-1] < losses[0] / 2, "got": got, "digest": digest.hexdigest()}


class Squares(torch.utils.data.Dataset):
    """Data generated by worker processes."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(index * index))


def loading(limit: int) -> Result:
    """Workers forked after CUDA was initialized fill pinned memory."""
    total = torch.zeros(64, dtype=torch.float64, device="cuda")
    loader = torch.utils.data.DataLoader(Squares(), batch_size=32, num_workers=2, pin_memory=True)
    for batch in loader:
        total += batch.to("cuda", non_blocking=True).double().sum(0)
    wanted = sum(index * index for index in range(512))
    return {
        "good": bool((total == wanted).all().item()),
        "got": f"sum {total[0].item():.0f}, wanted {wanted}",
    }


def rate(limit: int) -> Result:
    """Matrix products per second, after settling."""
    one = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)

    def until(seconds: float) -> float:
        began, done = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            for _ in range(20):
                one @ one
            torch.cuda.synchronize()
            done += 20
        return done / (time.monotonic() - began)

    until(1.5)
    per_s = until(4)
    return {"good": True, "got": f"{per_s:.0f} products of 4096 × 4096 a second", "per_s": per_s}


SCENARIOS: dict[str, Callable[[int], Result]] = {
    one.__name__: one for one in (seen, eager, growing, graphs, training, loading, rate)
}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](int(sys.argv[2])) | {"torch": torch.__version__}), flush=True)
