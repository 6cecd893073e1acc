"""logs and exec: from the real kubectl through the API server to the node's kubelet."""

import asyncio

from tests.integration.apiserver.conftest import COMMAND_S


async def test_logs_come_from_the_kubelet_of_the_pods_node(kubectl, kubelet, bound_pod):
    await bound_pod()
    assert (await kubectl("logs", "p")).out == "".join(f"line {number}\n" for number in range(1, 6))
    assert kubelet.requests[-1][0] == "/containerLogs/default/p/c"


async def test_logs_tail_and_container_are_passed_on(kubectl, kubelet, bound_pod):
    await bound_pod("p", "a", "b")
    result = await kubectl("logs", "p", "-c", "b", "--tail=2", "--timestamps")
    assert result.out == "line 4\nline 5\n"
    assert kubelet.requests[-1] == ("/containerLogs/default/p/b", {"tailLines": "2", "timestamps": "true"})


async def test_logs_follow_until_the_container_ends(kubectl, kubelet, bound_pod):
    await bound_pod()
    process = await kubectl.start("logs", "-f", "p")
    async with asyncio.timeout(COMMAND_S):
        for number in range(1, 6):
            assert await process.stdout.readline() == f"line {number}\n".encode()
        kubelet.follow.set()
        assert await process.stdout.readline() == b"followed\n"
        assert await process.wait() == 0


async def test_logs_of_a_missing_previous_container_report_it(kubectl, bound_pod):
    await bound_pod()
    result = await kubectl("logs", "--previous", "p", code=1)
    assert 'previous terminated container "c" in pod "p" not found' in result.err


async def test_logs_of_an_unknown_container_name_it(kubectl, bound_pod):
    await bound_pod()
    result = await kubectl("logs", "p", "-c", "nope", code=1)
    assert "container nope is not valid for pod p" in result.err


async def test_logs_name_the_unreachable_node(kubectl, kubelet, bound_pod, api):
    await bound_pod()
    patch = {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}
    await api("PATCH", "/api/v1/nodes/n1/status", patch, media="application/merge-patch+json", code=200)
    result = await kubectl("logs", "p", code=1)
    assert "cannot reach the kubelet of node n1" in result.err


async def test_exec_keeps_stdout_and_stderr_separate(kubectl, kubelet, bound_pod):
    await bound_pod()
    result = await kubectl("exec", "p", "--", "echo", "hello", "a b")
    assert (result.out, result.err) == ("echo hello a b\n", "to stderr\n")
    assert kubelet.requests[-1][0] == "/exec/default/p/c"


async def test_exec_returns_the_commands_exit_code(kubectl, bound_pod):
    await bound_pod()
    result = await kubectl("exec", "p", "--", "false", code=3)
    assert "command terminated with exit code 3" in result.err


async def test_exec_passes_standard_input_and_its_end(kubectl, bound_pod):
    await bound_pod()
    assert (await kubectl("exec", "-i", "p", "--", "tr", stdin="hello\n")).out == "HELLO\n"


async def test_exec_with_a_terminal_flag_works_through_a_pipe(kubectl, kubelet, bound_pod):
    await bound_pod()
    result = await kubectl("exec", "-it", "p", "--", "sh", stdin="ls\n")
    assert result.out.startswith("LS")


async def test_exec_in_a_pod_without_a_node_is_reported(kubectl, api, make_pod):
    await api("POST", "/api/v1/namespaces/default/pods", make_pod("p"), code=201)
    result = await kubectl("exec", "p", "--", "ls", code=1)
    assert "pod p does not have a host assigned" in result.err
