import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.inspect.arguments import HELP, OWN, VALUED, Options, parse
from gpushare.inspect.completion import FLAGS
from gpushare.inspect.errors import UsageError
from gpushare.inspect.options import ROLE
from gpushare.options.option import Option


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
        ("--why pod/mine", Options(view="why", pod="default/mine")),
        ("--why pods/mine -n team", Options(view="why", pod="team/mine", namespace="team")),
        ("--why pod/team/mine", Options(view="why", pod="team/mine")),
        ("--why team/pod", Options(view="why", pod="team/pod")),
        ("--why -d pod", Options(view="why", pod="default/pod", details=True)),
        ("--why -dn team pod", Options(view="why", pod="team/pod", details=True, namespace="team")),
        (
            "--why --output json -d -- pod",
            Options(view="why", pod="default/pod", details=True, output="json"),
        ),
        (
            "--recommend --window=1d --headroom 20 -o json",
            Options(advise=True, output="json", advice=(("--headroom", "20"), ("--window", "1d"))),
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
        (["--why", "-d", "pod", "n1"], "--why shows pods and cannot be combined with NODE (n1)"),
        (["a", "b"], "at most one node can be named, not 2: a b"),
        ([""], "the name of the node is empty"),
        (["-d=maybe"], "flag --details is true or false, not 'maybe'"),
        (
            ["--recommend", "-d"],
            "--recommend covers all workloads and cannot be combined with NODE, -d, --fragmentation or -o wide",
        ),
        (
            ["--fragmentation", "-o", "wide"],
            "--fragmentation covers the whole cluster and cannot be combined with NODE, -d or -o wide",
        ),
        (["--headroom=1"], "--headroom can only be used with --recommend"),
        (["--interval=0"], "--interval=0 is not a number of seconds from 0.1 to 86400"),
        (["--interval=1h"], "--interval=1h is not a number of seconds from 0.1 to 86400"),
    ],
)
def test_mistake_is_named(typed: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(typed)
    assert str(caught.value) == message
    assert caught.value.status == 2


# --- persistent settings -----------------------------------------------------------------------------


def test_flags_override_variables_which_override_the_file_and_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(
        "inspect: {headroom: 30, window: 7d, interval: 5s, scheduler: a/b}\nscheduler: {unit: 128MiB}\n"
    )
    environ = {
        "GPUSHARE_CONFIG": str(file),
        "GPUSHARE_INSPECT_HEADROOM": "20",
        "GPUSHARE_INSPECT_PROMETHEUS": "http://p:9090",
        "GPUSHARE_INSPECT_WINDOW": "",
        "GPUSHARE_INTERVAL": "not ours",
    }
    found = parse(["--recommend", "--prometheus="], environ)
    assert dict(found.advice) == {"--headroom": "20", "--prometheus": "", "--window": "7d"}
    assert (found.interval_s, found.scheduler) == (5.0, "a/b")
    assert dict(parse(["--recommend", "--headroom=1"], environ).advice)["--headroom"] == "1"
    # Options of recommendations are accepted only with a recommendation.
    assert parse(["--pods"], environ).advice == ()
    assert parse(["--config", str(file)], {}).interval_s == 5.0
    assert parse([], {}) == Options()


def test_all_invalid_settings_are_reported_together_and_help_works_regardless(
    tmp_path: Path,
) -> None:
    file = tmp_path / "options.json"
    file.write_text('{"inspect": {"headroom": "3", "intervall": 2}}')
    environ = {
        "GPUSHARE_INSPECT_MIN_HISTORY": "1w",
        "GPUSHARE_INSPECT_PROMETHEUS": "prometheus:9090",
        "GPUSHARE_INSPECT_SCHEDULER": "ack-co-scheduler",
        "GPUSHARE_INSPECT_WINDOW": "0h",
    }
    with pytest.raises(UsageError) as caught:
        parse(["--config", str(file)], environ)
    assert str(caught.value).split("\nerror: ") == [
        f'{file}: inspect.headroom: the text "3": give a number from 0 to 400',
        f"{file}: inspect.intervall: unknown option; did you mean interval?",
        "GPUSHARE_INSPECT_SCHEDULER ack-co-scheduler: give NAMESPACE/NAME of a Service",
        "GPUSHARE_INSPECT_MIN_HISTORY 1w: give a duration, such as 90s, 30m or 1d",
        "GPUSHARE_INSPECT_PROMETHEUS prometheus:9090: give http://HOST:PORT, or a path of the API server's proxy",
        "GPUSHARE_INSPECT_WINDOW 0h: give a duration, such as 12h or 7d",
    ]
    assert parse(["--help"], environ).help


@pytest.mark.parametrize("option", ROLE.options, ids=lambda option: option.name)
def test_every_persistent_setting_is_a_flag_too(option: Option) -> None:
    assert option.flag in VALUED
    assert option.flag in FLAGS
    assert f"{option.flag}=" in HELP
    assert option.variable.startswith("GPUSHARE_INSPECT_")
    assert option.variable.removeprefix("GPUSHARE_INSPECT") in HELP
    if option.default is not None:
        words = parse(["--recommend", option.flag, option.kind.show(option.default)])
        assert words._replace(advice=()) == Options(advise=True)
        assert option.kind.show(option.default) in HELP


def test_the_guide_has_every_flag_of_our_own() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "inspect.md").read_text()
    assert set(re.findall(r"--[a-z][a-z-]+", guide)) >= OWN


def test_a_plain_command_line_is_read_without_the_readers_of_variables_and_files() -> None:
    program = (
        "import sys; from gpushare.inspect.arguments import parse;"
        "parse(['--recommend', '--headroom=3'], {'GPUSHARE_LOG_LEVEL': 'debug'});"
        "assert not {'gpushare.inspect.options', 'gpushare.options', 'msgspec'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
