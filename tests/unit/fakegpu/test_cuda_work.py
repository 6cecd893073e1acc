"""Modules, streams, events, copies and graphs, call by call."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_playground import gpus
from tests.unit.fakegpu.building import build
from tests.unit.fakegpu.cuda_process import MIB, OUT, CudaProcess, Out, Processes, Whole, pack

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
/* a comment with .entry nobody( */
.visible .global .align 4 .u32 table[10];
.extern .global .u32 elsewhere;
.const .align 8 .b8 constants[24] = {1, 2};
// fakegpu: duration 20000 ns
.visible .entry fixed(.param .u32 fixed_a, .param .align 16 .b8 fixed_b[20], .param .u64 fixed_c)
{ .reg .u32 %r<4>; .shared .align 4 .b8 scratch[64]; ret; }
.entry plain()
{ ret; }
// fakegpu: duration param 0 ns
.visible .entry lasting(.param .u64 lasting_ns) { ret; }
\0"""
HOST, DEVICE = 1, 2
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, UNMATCHED, UNJOINED, CAPTURE_IMPLICIT, CAPTURED_EVENT = (
    900,
    901,
    903,
    904,
    906,
    907,
)
KERNEL, COPY, SET = 0, 1, 2


@pytest.fixture
def cuda(tmp_path: Path) -> Iterator[CudaProcess]:
    build("programs")
    node = tmp_path / "node.gpus"
    gpus.write(node, gpus.preset("v100-16160", "n1"))
    with Processes(node).closing() as started:
        yield started.opened()


@pytest.fixture
def module(cuda: CudaProcess) -> int:
    return int(cuda.good("cuModuleLoadData", OUT, PTX))


def function(cuda: CudaProcess, module: int, name: bytes) -> int:
    return int(cuda.good("cuModuleGetFunction", OUT, module, name + b"\0"))


def launch(cuda: CudaProcess, kernel: int, stream: int = 0, block: int = 1, shared: int = 0) -> object:
    return cuda.cu("cuLaunchKernel", kernel, 1, 1, 1, block, 1, 1, shared, stream, None, None)


def stream(cuda: CudaProcess) -> int:
    return int(cuda.good("cuStreamCreate", OUT, 1))


def number(written: bytes) -> int:
    return int.from_bytes(written, "little", signed=True)


def test_entries_and_globals_are_found_in_any_ptx(cuda: CudaProcess, module: int) -> None:
    for name in (b"fixed", b"plain", b"lasting"):
        assert launch(cuda, function(cuda, module, name)) == (
            "SUCCESS" if name != b"lasting" else "INVALID_VALUE"
        )
    assert cuda.cu("cuModuleGetFunction", OUT, module, b"nobody\0")[0] == 500
    assert number(cuda.good("cuModuleGetFunctionCount", Out(4), module)) == 3
    assert cuda.good("cuModuleGetGlobal_v2", OUT, OUT, module, b"table\0")[1] == 40
    assert cuda.good("cuModuleGetGlobal_v2", OUT, OUT, module, b"constants\0")[1] == 24
    assert cuda.cu("cuModuleGetGlobal_v2", OUT, OUT, module, b"elsewhere\0")[0] == 500
    cuda.good("cuModuleUnload", module)
    assert cuda.cu("cuModuleUnload", module) == "INVALID_HANDLE"


def test_a_functions_parameters_and_attributes_can_be_queried(cuda: CudaProcess, module: int) -> None:
    kernel = function(cuda, module, b"fixed")
    layout = [cuda.good("cuFuncGetParamInfo", kernel, i, OUT, OUT) for i in range(3)]
    assert layout == [(0, 4), (16, 20), (40, 8)]
    assert cuda.cu("cuFuncGetParamInfo", kernel, 3, OUT, OUT)[0] == "INVALID_VALUE"
    assert number(cuda.good("cuFuncGetAttribute", Out(4), 0, kernel)) == 1024
    blocks = cuda.good("cuOccupancyMaxActiveBlocksPerMultiprocessor", Out(4), kernel, 256, 0)
    assert number(blocks) == 8


def test_an_impossible_launch_is_refused(cuda: CudaProcess, module: int) -> None:
    kernel = function(cuda, module, b"fixed")
    assert launch(cuda, kernel, block=1025) == "INVALID_VALUE"
    assert launch(cuda, kernel, shared=60 << 10) == "INVALID_VALUE"
    cuda.good("cuFuncSetAttribute", kernel, 8, 64 << 10)
    assert launch(cuda, kernel, shared=60 << 10) == "SUCCESS"
    too_large = ("cuLaunchCooperativeKernel", kernel, 1 << 20, 1, 1, 1, 1, 1, 0, None, None)
    assert cuda.cu(*too_large) == 720
    cuda.good("cuModuleUnload", module)
    assert launch(cuda, kernel) == "INVALID_HANDLE"


def test_an_invalid_program_cannot_be_loaded_as_a_module(cuda: CudaProcess) -> None:
    assert cuda.cu("cuModuleLoadData", OUT, b"hello\0")[0] == 218
    assert cuda.cu("cuModuleLoadData", OUT, b"\x50\xed\x55\xba" + bytes(60))[0] == 200
    assert cuda.cu("cuModuleLoad", OUT, b"/nowhere\0")[0] == 301
    for cut in (b"fixed_a,", b"fixed_b[", b".entry", b"/*"):
        cuda.cu("cuModuleLoadData", OUT, PTX.partition(cut)[0] + cut + b"\0")  # any result: it does not crash
    assert cuda.cu("cuModuleLoadData", OUT, PTX.replace(b".u64 lasting", b".u32 lasting"))[0] == 218


def test_kernels_of_a_cubin_and_of_a_fat_binary_are_found_by_name(cuda: CudaProcess) -> None:
    fat = fat_binary(cubin(b"one"), cubin(b"two"))
    for image, names in ((cubin(b"one"), [b"one"]), (fat, [b"one", b"two"])):
        module = int(cuda.good("cuModuleLoadData", OUT, image))
        for name in names:
            assert launch(cuda, function(cuda, module, name)) == "SUCCESS"
        assert cuda.cu("cuModuleGetFunction", OUT, module, b"three\0")[0] == 500


def test_a_linked_image_has_the_kernels_of_all_parts(cuda: CudaProcess) -> None:
    state = cuda.good("cuLinkCreate_v2", 0, None, None, OUT)
    for kind, data in ((1, PTX), (0, cubin(b"one")), (1, PTX.replace(b"fixed", b"other"))):
        cuda.good("cuLinkAddData_v2", state, kind, data, len(data), None, 0, None, None)
    assert cuda.cu("cuLinkAddData_v2", state, 1, b"hello\0", 6, None, 0, None, None) == 218
    image, _ = cuda.good("cuLinkComplete", state, OUT, OUT)
    module = int(cuda.good("cuModuleLoadData", OUT, image))
    cuda.good("cuLinkDestroy", state)
    for name in (b"one", b"fixed", b"other"):
        assert launch(cuda, function(cuda, module, name)) == "SUCCESS"


def test_many_copies_in_one_call(cuda: CudaProcess) -> None:
    device, host = cuda.good("cuMemAlloc_v2", OUT, 64), cuda.good("cuMemAllocHost_v2", OUT, 64)
    cuda.ask("write", host, bytes(range(64)))
    there, back = pack("QQ", device, device + 8), pack("QQ", host, host + 8)
    halves = pack("QQ", 8, 8)
    none = (None, None, 0)
    cuda.good("cuMemcpyBatchAsync_v2", there, back, halves, 2, *none, None)
    cuda.good(
        "cuMemcpyBatchAsync", pack("Q", host + 32), pack("Q", device), pack("Q", 16), 1, *none, OUT, None
    )
    cuda.good("cuStreamSynchronize", None)
    assert cuda.ask("read", host + 32, 16) == bytes(range(16))


def cubin(kernel: bytes) -> bytes:
    """An ELF file with a section for one kernel."""
    names = b"\0.shstrtab\0.text." + kernel + b"\0"
    names += bytes(-len(names) % 8)
    sections = [
        bytes(64),
        struct.pack("IIQQQQIIQQ", 1, 3, 0, 0, 64, len(names), 0, 0, 1, 0),
        struct.pack("IIQQQQIIQQ", 11, 1, 6, 0, 64, 0, 0, 0, 1, 0),
    ]
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(names), 0, 64, 0, 0, 64, 3, 1)
    return head + names + b"".join(sections)


def fat_binary(*cubins: bytes) -> bytes:
    entries = b"".join(
        struct.pack("HHIQIIHHIIIQ", 2, 0x101, 64, len(image), 0, 0, 0, 1, 70, 0, 0, 0) + bytes(16) + image
        for image in cubins
    )
    return struct.pack("IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def test_a_library_is_loaded_without_a_context(cuda: CudaProcess) -> None:
    library = cuda.good("cuLibraryLoadData", OUT, PTX, None, None, 0, None, None, 0)
    kernel = cuda.good("cuLibraryGetKernel", OUT, library, b"fixed\0")
    assert launch(cuda, kernel) == "SUCCESS"
    assert launch(cuda, cuda.good("cuKernelGetFunction", OUT, kernel)) == "SUCCESS"
    cuda.good("cuLibraryUnload", library)
    assert launch(cuda, kernel) == "INVALID_HANDLE"


def test_misused_events_give_the_matching_error(cuda: CudaProcess) -> None:
    timed, untimed = cuda.good("cuEventCreate", OUT, 0), cuda.good("cuEventCreate", OUT, 2)
    assert cuda.cu("cuEventQuery", timed) == "SUCCESS"
    assert cuda.cu("cuEventElapsedTime", Out(4), timed, timed)[0] == "INVALID_HANDLE"
    cuda.good("cuEventRecord", timed, None)
    cuda.good("cuEventRecord", untimed, None)
    assert cuda.cu("cuEventElapsedTime", Out(4), timed, untimed)[0] == "INVALID_HANDLE"
    assert cuda.cu("cuEventCreate", OUT, 4)[0] == "INVALID_VALUE"
    shared = cuda.good("cuEventCreate", OUT, 6)
    assert cuda.cu("cuIpcGetEventHandle", Out(64), timed)[0] == "INVALID_HANDLE"
    assert cuda.cu("cuIpcGetEventHandle", Out(64), shared)[0] == "SUCCESS"
    assert cuda.cu("cuIpcOpenEventHandle", OUT, Whole(bytes(64)))[0] == "INVALID_HANDLE"
    cuda.good("cuEventDestroy_v2", timed)
    assert cuda.cu("cuEventQuery", timed) == "INVALID_HANDLE"


def test_a_stream_waits_for_a_value_and_others_do_not(cuda: CudaProcess, module: int) -> None:
    flag = cuda.good("cuMemAllocHost_v2", OUT, 8)
    cuda.ask("write", flag, bytes(8))
    waiting, free = stream(cuda), stream(cuda)
    cuda.good("cuStreamWaitValue32_v2", waiting, flag, 5, 1)
    assert launch(cuda, function(cuda, module, b"plain"), waiting) == "SUCCESS"
    assert launch(cuda, function(cuda, module, b"plain"), free) == "SUCCESS"
    cuda.good("cuStreamSynchronize", free)
    assert cuda.cu("cuStreamQuery", waiting) == "NOT_READY"
    cuda.good("cuStreamWriteValue32_v2", free, flag, 5, 0)
    cuda.good("cuStreamSynchronize", waiting)
    assert cuda.cu("cuStreamQuery", waiting) == "SUCCESS"


def test_the_legacy_stream_is_in_order_with_blocking_ones_only(cuda: CudaProcess, module: int) -> None:
    flag = cuda.good("cuMemAllocHost_v2", OUT, 8)
    cuda.ask("write", flag, bytes(8))
    blocking, own = int(cuda.good("cuStreamCreate", OUT, 0)), stream(cuda)
    cuda.good("cuStreamWaitValue32_v2", blocking, flag, 1, 1)
    assert launch(cuda, function(cuda, module, b"plain")) == "SUCCESS"
    assert launch(cuda, function(cuda, module, b"plain"), own) == "SUCCESS"
    cuda.good("cuStreamSynchronize", own)
    assert cuda.cu("cuStreamQuery", None) == "NOT_READY"
    cuda.ask("write", flag, b"\1")
    cuda.good("cuStreamSynchronize", None)
    assert cuda.cu("cuStreamQuery", blocking) == "SUCCESS"


def test_a_context_ends_although_its_work_waits_forever(cuda: CudaProcess, module: int) -> None:
    flag = cuda.good("cuMemAllocHost_v2", OUT, 8)
    cuda.ask("write", flag, bytes(8))
    waiting, event, follower = stream(cuda), cuda.good("cuEventCreate", OUT, 2), stream(cuda)
    cuda.good("cuStreamWaitValue32_v2", waiting, flag, 5, 1)
    assert launch(cuda, function(cuda, module, b"plain"), waiting) == "SUCCESS"
    cuda.good("cuEventRecord", event, waiting)
    cuda.good("cuStreamWaitEvent", follower, event, 0)
    context = cuda.good("cuCtxGetCurrent", OUT)
    cuda.good("cuCtxDestroy_v2", context)
    assert cuda.cu("cuStreamQuery", waiting) != "SUCCESS"
    assert cuda.cu("cuCtxSetCurrent", context) == "INVALID_CONTEXT"


def test_stale_and_invalid_streams_are_refused(cuda: CudaProcess) -> None:
    made = stream(cuda)
    cuda.good("cuStreamDestroy_v2", made)
    assert cuda.cu("cuStreamQuery", made) == "INVALID_HANDLE"
    assert cuda.cu("cuStreamDestroy_v2", 2) == "INVALID_HANDLE"
    assert cuda.cu("cuStreamCreate", OUT, 8)[0] == "INVALID_VALUE"
    prior = cuda.good("cuStreamCreateWithPriority", OUT, 1, -100)
    assert number(cuda.good("cuStreamGetPriority", prior, Out(4))) == -5
    assert cuda.good("cuStreamGetCtx", prior, OUT) == cuda.good("cuCtxGetCurrent", OUT)


def shape(source: tuple[int, int, int], target: tuple[int, int, int], width: int, height: int) -> bytes:
    """A two-dimensional copy; an end is its kind, address and pitch in bytes."""

    def end(kind: int, address: int, pitch: int) -> bytes:
        host, device = (address, 0) if kind == HOST else (0, address)
        return pack("QQiiQQQQ", 0, 0, kind, 0, host, device, 0, pitch)

    return end(*source) + end(*target) + pack("QQ", width, height)


def test_copies_of_rows_leave_the_bytes_between_them(cuda: CudaProcess) -> None:
    device = cuda.good("cuMemAlloc_v2", OUT, 64)
    host = cuda.good("cuMemAllocHost_v2", OUT, 64)
    cuda.ask("write", host, bytes(range(64)))
    cuda.good("cuMemsetD8_v2", device, 0xFF, 64)
    cuda.good("cuMemcpy2D_v2", shape((HOST, host, 16), (DEVICE, device, 8), 4, 3))
    cuda.good("cuMemcpyDtoH_v2", host, device, 24)
    rows = [bytes(range(start, start + 4)) + b"\xff" * 4 for start in (0, 16, 32)]
    assert cuda.ask("read", host, 24) == b"".join(rows)
    assert cuda.cu("cuMemcpy2D_v2", shape((HOST, host, 2), (DEVICE, device, 8), 4, 3)) == "INVALID_VALUE"


def test_a_copy_past_the_end_of_memory_is_refused(cuda: CudaProcess) -> None:
    device, host = cuda.good("cuMemAlloc_v2", OUT, 4096), cuda.good("cuMemAllocHost_v2", OUT, MIB)
    assert cuda.cu("cuMemcpyHtoD_v2", device, host, 4097) == "INVALID_VALUE"
    assert cuda.cu("cuMemcpyHtoD_v2", device + 4000, host, 97) == "INVALID_VALUE"
    assert cuda.cu("cuMemcpyHtoD_v2", host - MIB * MIB, host, 4) == "INVALID_VALUE"
    assert cuda.cu("cuMemcpyHtoD_v2", device, host, 4096) == "SUCCESS"


def test_work_on_a_capturing_stream_becomes_nodes(cuda: CudaProcess, module: int) -> None:
    device, kernel, captured = (
        cuda.good("cuMemAlloc_v2", OUT, 64),
        function(cuda, module, b"fixed"),
        stream(cuda),
    )
    cuda.good("cuStreamBeginCapture_v2", captured, 0)
    assert launch(cuda, kernel, captured) == "SUCCESS"
    cuda.good("cuMemsetD32Async", device, 7, 16, captured)
    cuda.good("cuMemcpyDtoDAsync_v2", device, device + 32, 32, captured)
    piece = cuda.good("cuMemAllocAsync", OUT, 100, captured)
    cuda.good("cuMemFreeAsync", piece, captured)
    assert cuda.good("cuStreamIsCapturing", captured, Out(4)) == b"\1\0\0\0"
    graph = cuda.good("cuStreamEndCapture", captured, OUT)
    nodes = struct.unpack("5Q", cuda.good("cuGraphGetNodes", graph, Out(40), pack("Q", 5)))
    kinds = [number(cuda.good("cuGraphNodeGetType", node, Out(4))) for node in nodes]
    assert kinds == [KERNEL, SET, COPY, 10, 11]
    ready = cuda.good("cuGraphInstantiateWithFlags", OUT, graph, 0)
    cuda.good("cuGraphLaunch", ready, captured)
    cuda.good("cuStreamSynchronize", captured)
    host = cuda.good("cuMemAllocHost_v2", OUT, 64)
    cuda.good("cuMemcpyDtoH_v2", host, device, 64)
    assert cuda.ask("read", host, 64) == pack("16i", *[7] * 16)
    cuda.good("cuGraphExecDestroy", ready)
    cuda.good("cuGraphDestroy", graph)


def test_invalid_captures_give_the_matching_error(cuda: CudaProcess, module: int) -> None:
    kernel, first, second = function(cuda, module, b"plain"), stream(cuda), stream(cuda)
    event = cuda.good("cuEventCreate", OUT, 2)
    assert cuda.cu("cuStreamBeginCapture_v2", None, 0) == CAPTURE_UNSUPPORTED

    cuda.good("cuStreamBeginCapture_v2", first, 0)
    assert cuda.cu("cuStreamSynchronize", first) == CAPTURE_UNSUPPORTED
    assert cuda.cu("cuStreamEndCapture", first, OUT) == (CAPTURE_INVALIDATED, 0)

    blocking = int(cuda.good("cuStreamCreate", OUT, 0))
    cuda.good("cuStreamBeginCapture_v2", blocking, 0)
    assert launch(cuda, kernel) == CAPTURE_IMPLICIT
    assert cuda.cu("cuStreamEndCapture", blocking, OUT) == (CAPTURE_INVALIDATED, 0)
    assert launch(cuda, kernel) == "SUCCESS"

    cuda.good("cuStreamBeginCapture_v2", first, 0)
    cuda.good("cuEventRecord", event, first)
    cuda.good("cuStreamWaitEvent", second, event, 0)
    assert launch(cuda, kernel, second) == "SUCCESS"
    assert cuda.cu("cuEventQuery", event) == CAPTURED_EVENT
    assert cuda.cu("cuStreamEndCapture", second, OUT) == (UNMATCHED, 0)
    assert cuda.cu("cuStreamEndCapture", first, OUT) == (UNJOINED, 0)
    assert launch(cuda, kernel, second) == "SUCCESS"
    assert cuda.cu("cuStreamSynchronize", second) == "SUCCESS"


def test_a_manually_built_graph_runs_in_its_order(cuda: CudaProcess, module: int) -> None:
    graph, device = cuda.good("cuGraphCreate", OUT, 0), cuda.good("cuMemAlloc_v2", OUT, 64)
    context = cuda.good("cuCtxGetCurrent", OUT)

    def fill(value: int, *before: int) -> int:
        what = pack("QQIIQQ", device, 0, value, 4, 4, 1)
        after = pack(f"{len(before)}Q", *before) if before else None
        return int(cuda.good("cuGraphAddMemsetNode", OUT, graph, after, len(before), what, context))

    last = fill(3)
    middle = fill(2)
    first = cuda.good("cuGraphAddEmptyNode", OUT, graph, None, 0)
    cuda.good("cuGraphAddDependencies", graph, pack("QQ", first, middle), pack("QQ", middle, last), 2)
    ready = cuda.good("cuGraphInstantiateWithFlags", OUT, graph, 0)
    cuda.good("cuGraphLaunch", ready, None)
    host = cuda.good("cuMemAllocHost_v2", OUT, 16)
    cuda.good("cuMemcpyDtoH_v2", host, device, 16)
    assert cuda.ask("read", host, 16) == pack("4i", 3, 3, 3, 3)
    # An executable graph is another graph's copy, and takes its changes on request.
    cuda.good("cuGraphMemsetNodeSetParams", last, pack("QQIIQQ", device, 0, 9, 4, 4, 1))
    cuda.good("cuGraphExecUpdate_v2", ready, graph, Out(24))
    cuda.good("cuGraphLaunch", ready, None)
    cuda.good("cuMemcpyDtoH_v2", host, device, 16)
    assert cuda.ask("read", host, 16) == pack("4i", 9, 9, 9, 9)
    cuda.good("cuGraphAddDependencies", graph, pack("Q", last), pack("Q", first), 1)
    assert cuda.cu("cuGraphInstantiateWithFlags", OUT, graph, 0)[0] == "INVALID_VALUE"
    assert cuda.cu("cuGraphExecUpdate_v2", ready, graph, Out(24))[0] == 910


def test_a_stream_waits_for_an_event_of_another_gpu(tmp_path: Path) -> None:
    build("programs")
    node = tmp_path / "node.gpus"
    gpus.write(node, gpus.preset("core-mem-4", "n1"))
    with Processes(node).closing() as started:
        cuda = started.start()
        contexts = [cuda.open(), int(cuda.good("cuCtxCreate_v2", OUT, 0, 1))]
        flag = cuda.good("cuMemAllocHost_v2", OUT, 8)
        cuda.ask("write", flag, bytes(8))
        second, event = stream(cuda), cuda.good("cuEventCreate", OUT, 0)
        cuda.good("cuCtxSetCurrent", contexts[0])
        first, before = stream(cuda), cuda.good("cuEventCreate", OUT, 0)
        cuda.good("cuStreamWaitValue32_v2", first, flag, 1, 1)
        cuda.good("cuEventRecord", before, first)
        cuda.good("cuCtxSetCurrent", contexts[1])
        assert cuda.cu("cuEventRecord", before, second) == "INVALID_HANDLE"
        cuda.good("cuStreamWaitEvent", second, before, 0)
        assert (
            launch(cuda, function(cuda, int(cuda.good("cuModuleLoadData", OUT, PTX)), b"fixed"), second)
            == "SUCCESS"
        )
        cuda.good("cuEventRecord", event, second)
        assert cuda.cu("cuEventQuery", event) == "NOT_READY"
        cuda.ask("write", flag, b"\1")
        cuda.good("cuEventSynchronize", event)
        taken = cuda.good("cuEventElapsedTime", Out(4), before, event)
        assert struct.unpack("f", taken)[0] >= 0.0199


def test_a_thread_has_a_default_stream_of_its_own(cuda: CudaProcess, module: int) -> None:
    """In functions for such programs no stream means that one; the legacy stream is another one."""
    flag = cuda.good("cuMemAllocHost_v2", OUT, 8)
    cuda.ask("write", flag, bytes(8))
    own, legacy = (cuda.good(name, None, OUT) for name in ("cuStreamGetId_ptsz", "cuStreamGetId"))
    assert own != legacy
    assert cuda.good("cuStreamGetId", 2, OUT) == own
    cuda.good("cuStreamWaitValue32_v2_ptsz", None, flag, 1, 1)
    kernel = function(cuda, module, b"plain")
    assert cuda.cu("cuLaunchKernel_ptsz", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == "SUCCESS"
    assert cuda.cu("cuStreamQuery_ptsz", None) == "NOT_READY"
    cuda.ask("write", flag, b"\1")
    cuda.good("cuStreamSynchronize_ptsz", None)
    assert cuda.cu("cuStreamQuery", None) == "SUCCESS"
