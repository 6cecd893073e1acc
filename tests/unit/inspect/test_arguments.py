import pytest

from gpushare.inspect.arguments import Options, parse
from gpushare.inspect.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ("", Options()),
        ("-d", Options(details=True)),
        ("-d node1", Options(details=True, node="node1")),
        ("node1 -d", Options(details=True, node="node1")),
        ("--details=false", Options()),
        ("-d=true", Options(details=True)),
        ("-o json", Options(output="json")),
        ("-ojson", Options(output="json")),
        ("-o=yaml", Options(output="yaml")),
        ("--output=wide", Options(output="wide")),
        ("--output wide", Options(output="wide")),
        ("-dw", Options(details=True, watch=True)),
        ("-dwojson", Options(details=True, watch=True, output="json")),
        ("-w --interval 0.5", Options(watch=True, interval_s=0.5)),
        ("--interval=10s", Options(interval_s=10.0)),
        ("-n team", Options(namespace="team")),
        ("--namespace=team", Options(namespace="team")),
        ("-A", Options()),
        ("-n team -A", Options()),
        ("-h", Options(help=True)),
        ("-- -d", Options(node="-d")),
        ("--why pod", Options(view="why", pod="default/pod")),
        ("--why -d pod", Options(view="why", pod="default/pod", details=True)),
        ("--why -dn team pod", Options(view="why", pod="team/pod", details=True, namespace="team")),
        (
            "--why --output json -d -- pod",
            Options(view="why", pod="default/pod", details=True, output="json"),
        ),
        (
            "--advise --window=1d --margin 20 -o json",
            Options(advise=True, output="json", advice=(("--margin", "20"), ("--window", "1d"))),
        ),
        ("--context prod", Options(kubectl_flags=("--context=prod",))),
        (
            "--kubeconfig=/a -s https://b --insecure-skip-tls-verify",
            Options(
                kubectl_flags=("--kubeconfig=/a", "--server=https://b", "--insecure-skip-tls-verify=true")
            ),
        ),
    ],
)
def test_command_line_is_read_as_kubectl_reads_it(typed: str, options: Options) -> None:
    assert parse(typed.split()) == options


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["-x"], "unknown flag -x"),
        (["-dx"], "unknown flag -x in -dx"),
        (["--detail"], "unknown flag --detail (did you mean --details?)"),
        (["--kubconfig=x"], "unknown flag --kubconfig (did you mean --kubeconfig?)"),
        (["--json"], "unknown flag --json"),
        (["-o"], "flag -o needs a value"),
        (["--context"], "flag --context needs a value"),
        (["-o", "name"], "unknown output format 'name'; use one of wide, json, yaml"),
        (["--why"], "flag --why needs a value"),
        (["--why", "-d"], "flag --why needs a value"),
        (["pod", "--why", "-d"], "flag --why needs a value"),
        (["--why", "-d", "pod", "n1"], "--why is about pods: without NODE (n1)"),
        (["a", "b"], "one node at most can be named, not 2: a b"),
        ([""], "the name of the node is empty"),
        (["-d=maybe"], "flag --details is true or false, not 'maybe'"),
        (
            ["--advise", "-d"],
            "--advise is about all workloads: without NODE, -d, --fragmentation and -o wide",
        ),
        (
            ["--fragmentation", "-o", "wide"],
            "--fragmentation is about the whole cluster: without NODE, -d and -o wide",
        ),
        (["--margin=1"], "--margin goes with --advise"),
        (["--interval=0"], "--interval=0 is not a number of seconds from 0.1 to 86400"),
        (["--interval=1h"], "--interval=1h is not a number of seconds from 0.1 to 86400"),
    ],
)
def test_mistake_is_named(typed: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(typed)
    assert str(caught.value) == message
    assert caught.value.status == 2
