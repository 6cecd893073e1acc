"""Whatever happens to the server and to the watch, the handler's view ends up equal to the server's."""

import asyncio
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.kube.watch.informer import Informer
from tests.randomized import rounds
from tests.unit.kube.scripted import PATH, ScriptedClock, ScriptedServer, View, decode, until

NAMES = "abcdef"
WRITES = st.tuples(st.sampled_from(["create", "modify", "delete", "recreate"]), st.sampled_from(NAMES))
FAULTS = st.tuples(
    st.just("fault"),
    st.sampled_from(
        [
            "cut",
            "silent",
            "end",
            "oversize",
            "malformed",
            "gone",
            "gone-status",
            "broken",
            "broken-status",
            "forbidden",
        ]
    ),
)
OTHERS = st.sampled_from(
    [("bookmark", ""), ("compact", ""), ("list fault", ""), ("list gone", ""), ("settle", ""), ("turn", "")]
)
STEPS = st.lists(st.one_of(WRITES, WRITES, FAULTS, OTHERS), max_size=40)


def act(server: ScriptedServer, what: str, subject: str, value: int) -> None:
    match what:
        case "create" if subject not in server.objects:
            server.create(subject, value)
        case "modify" if subject in server.objects:
            server.modify(subject, "ignore" if value % 7 == 0 else value)
        case "delete" if subject in server.objects:
            server.delete(subject)
        case "recreate" if subject in server.objects:
            server.delete(subject)
            server.create(subject, value)
        case "fault":
            server.fault(subject)
        case "bookmark":
            server.bookmark()
        case "compact":
            server.compact()
            server._wake()
        case "list fault":
            server.list_faults.extend([None, Unreachable(PATH, "cut", sent=True)])
        case "list gone":
            server.list_faults.extend([None, None, ApiError(410, "Expired", "continue", PATH)])


async def play(steps: list[tuple[str, str]], page_size: int) -> None:
    server, view = ScriptedServer(), View()
    for name in NAMES[:4]:
        server.create(name, 1)
    informer = Informer(server, PATH, decode, view, page_size=page_size, clock=ScriptedClock())
    task = asyncio.create_task(informer.run())
    for value, (what, subject) in enumerate(steps, start=2):
        act(server, what, subject, value)
        if what == "settle":
            await until(lambda: task.done() or server.idle.is_set())
        elif what == "turn":
            await asyncio.sleep(0)
        assert not task.done(), task.result()
    expected = {name: found for name, found in server.view().items() if found[1] != "ignore"}
    await until(
        lambda: task.done() or (view.items == expected and server.idle.is_set() and not server.stream_faults)
    )
    assert not task.done(), task.result()
    assert (view.syncs, informer.figures.objects) == (1, len(expected))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@settings(max_examples=rounds(120, soak=300), deadline=None)
@given(steps=STEPS, page_size=st.integers(1, 4))
def test_the_view_ends_up_equal_to_the_servers(steps: list[tuple[str, str]], page_size: int) -> None:
    asyncio.run(play(steps, page_size))
