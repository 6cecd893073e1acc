"""Options from flags, environment and file: which wins, what is rejected, and with which message."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.options.file import check_file
from gpushare.options.kinds import Text
from gpushare.options.option import InvalidSettings, Option, Role
from gpushare.options.parser import parser_of
from gpushare.options.reading import gather, read
from gpushare.options.roles import ROLES, role_of
from gpushare.options.schema import schema_of, table_of
from tests.randomized import rounds

SCHEDULER = role_of("scheduler")
ALL = [role_of(name) for name in ROLES]


def write(folder: Path, text: str, name: str = "options.yaml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def problems(argv: list[str], environ: dict[str, str], role: Role = SCHEDULER) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        read(role, argv, environ)
    return caught.value.problems


def test_flags_win_over_the_environment_then_the_file_then_the_default(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "scheduler: {unit: 128MiB, lease: a/b, log-level: error, log-format: json}")
    environ = {"GPUSHARE_CONFIG": file, "GPUSHARE_UNIT": "GiB", "GPUSHARE_LOG_LEVEL": "warning"}
    found = gather(SCHEDULER, ["--log-level", "debug"], environ)
    assert found["log-level"] == ("debug", "--log-level")
    assert found["unit"] == ("GiB", "GPUSHARE_UNIT")
    assert found["lease"] == ("a/b", f"{file}: scheduler.lease")
    assert found["node-policy"] == ("binpack", "default")


def test_our_own_variables_win_over_those_of_others() -> None:
    agent = role_of("node-agent")
    assert read(agent, [], {"NODE_NAME": "n1"}).node == "n1"
    assert read(agent, [], {"NODE_NAME": "n1", "GPUSHARE_NODE": "n2"}).node == "n2"


def test_an_empty_variable_is_ignored() -> None:
    assert read(SCHEDULER, [], {"GPUSHARE_UNIT": ""}).unit == "1GiB"


def test_a_switch_in_the_file_is_turned_off_by_a_flag(tmp_path: Path) -> None:
    file = write(tmp_path, "scheduler: {defragmentation: true}")
    assert read(SCHEDULER, ["--config", file], {}).defragmentation is True
    assert read(SCHEDULER, ["--config", file, "--no-defragmentation"], {}).defragmentation is False
    assert read(SCHEDULER, [], {"GPUSHARE_DEFRAGMENTATION": "true"}).defragmentation is True


def test_a_repeatable_option_is_a_list_and_comma_separated_in_its_variable(tmp_path: Path) -> None:
    webhook = role_of("admission")
    assert read(
        webhook, ["--trusted-service-account", "a", "--trusted-service-account", "b"], {}
    ).trusted_service_account == [
        "a",
        "b",
    ]
    assert read(webhook, [], {"GPUSHARE_TRUSTED_SERVICE_ACCOUNT": "a, b"}).trusted_service_account == [
        "a",
        "b",
    ]
    file = write(tmp_path, '{"admission": {"trusted-service-account": ["a", "b"]}}', "options.json")
    assert read(webhook, ["--config", file], {}).trusted_service_account == ["a", "b"]
    assert read(webhook, [], {}).trusted_service_account == []


def test_all_errors_are_reported_at_once_with_their_place_and_the_valid_values(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
scheduler:
  listne: 127.0.0.1:1
  isolated-max-pods: "3"
  lease: [a]
  node-policy: null
  reservation-ttl: true
node-agent:
  health-period: {}
  wholly-unknown-thing: 1
admission:
""",
    )
    errors = problems(
        ["--log-level", "loud", "--config", file], {"GPUSHARE_DEFRAGMENTATION_MIN_PENDING": "5GiB"}
    )
    assert errors == [
        f"{file}: scheduler.listne: unknown option; did you mean listen?",
        f'{file}: scheduler.isolated-max-pods: the text "3": give a number from 1',
        f'{file}: scheduler.lease: the list ["a"]: give NAMESPACE/NAME',
        f"{file}: scheduler.node-policy: nothing null: give one of binpack, spread, fragmentation",
        f"{file}: scheduler.reservation-ttl: the truth value true: give seconds (5, 500ms, 5m) above 0 and at most 3600",
        f"{file}: node-agent.health-period: the mapping {{}}: give seconds (5, 500ms, 5m) from 0.01 to 86400",
        next(one for one in errors if "wholly-unknown-thing" in one),
        "GPUSHARE_DEFRAGMENTATION_MIN_PENDING 5GiB: give seconds (5, 500ms, 5m) from 0 to 86400",
        "--log-level loud: give one of debug, info, warning, error",
    ]
    assert "unknown option; use one of node, kubeconfig" in errors[6]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("a: [", "o.yaml", "is no YAML"),
        ("{", "o.json", "is no JSON"),
        ("\x00", "o.yaml", "is no YAML"),
        ("scheduler: {unit: 1GiB, unit: 128MiB}", "o.yaml", "key unit is there twice"),
        ('{"scheduler": {}, "scheduler": {}}', "o.json", "key scheduler is there twice"),
        ("- a", "o.yaml", "must be a mapping with a section per role"),
        ("scheduler: 3", "o.yaml", "scheduler: must be a mapping of its options, not the number"),
        ("schedular: {}", "o.yaml", "schedular: unknown role; use one of scheduler"),
        ("#" * (1 << 20) + "\n", "o.yaml", "longer than"),
        ("? {a: b}\n: c", "o.yaml", "is no YAML"),
    ],
)
def test_an_unusable_file_is_rejected_entirely(tmp_path: Path, text: str, name: str, expected: str) -> None:
    (error,) = problems(["--config", write(tmp_path, text, name)], {})
    assert expected in error


def test_an_unusable_section_hides_no_mistake_of_another(tmp_path: Path) -> None:
    file = write(tmp_path, "nosuch: {}\nnode-agent: 3\nscheduler: {unit: 5GiB}")
    for errors in (check_file(Path(file)), problems(["--config", file], {})):
        assert [one.removeprefix(f"{file}: ").split(":")[0] for one in errors] == [
            "nosuch",
            "node-agent",
            "scheduler.unit",
        ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert problems([], {"GPUSHARE_CONFIG": "/none"}) == ["/none: cannot be read: No such file or directory"]
    assert read(SCHEDULER, ["--config", write(tmp_path, "")], {}).unit == "1GiB"


def test_on_and_off_are_texts_in_a_file_too(tmp_path: Path) -> None:
    file = write(tmp_path, "node-agent: {watchdog: off}")
    assert read(role_of("node-agent"), ["--config", file], {}).watchdog == "off"


def test_flags_must_be_complete_and_known() -> None:
    assert read(SCHEDULER, ["--unit=128MiB", "--lease", "a/b"], {}).unit == "128MiB"
    assert problems(["--defragmentation-min-pending", "-1"], {}) == [
        "--defragmentation-min-pending -1: give seconds (5, 500ms, 5m) from 0 to 86400"
    ]
    assert "unrecognized arguments: --log" in problems(["--log", "x"], {})[0]
    assert "expected one argument" in problems(["--unit"], {})[0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5.0), ("500ms", 0.5), ("5m", 300.0), ("1.5h", 5400.0), ("0", 0.0), ("1e2", 100.0)],
)
def test_times_may_have_a_unit(text: str, seconds: float) -> None:
    option = next(one for one in SCHEDULER.options if one.name == "defragmentation-min-pending")
    assert option.read(Text(text)) == seconds


def test_hours_are_read_in_hours() -> None:
    option = next(one for one in role_of("admission").options if one.name == "valid-for")
    assert (option.read(Text("90d")), option.read("30m"), option.read(24)) == (90 * 24.0, 0.5, 24.0)


@settings(max_examples=rounds(100, soak=2_000))
@given(
    raw=st.one_of(
        st.text(), st.floats(), st.integers(), st.booleans(), st.none(), st.lists(st.text()), st.just({})
    )
)
def test_any_value_of_an_option_is_read_or_rejected_with_the_valid_ones(raw: Any) -> None:
    for role in ALL:
        for option in role.options:
            _is_read_or_rejected(role, option, raw)


def _is_read_or_rejected(role: Role, option: Option, raw: Any) -> None:
    for one in [raw, Text(raw)] if isinstance(raw, str) else [raw]:
        try:
            value = option.read(one)
        except ValueError as error:
            message = str(error)
        else:
            message = f"give {option.allowed}"
            assert not option.kind.number or math.isfinite(value) or option.most is None
            chosen = value if option.kind.several else [value]
            assert not option.choices or set(chosen) <= set(option.choices)
        assert message == f"give {option.allowed}", f"{role.name} {option.name}"


@pytest.mark.parametrize("role", ALL, ids=lambda role: role.name)
def test_every_default_is_a_valid_value_and_every_flag_shows_default_and_variable(role: Role) -> None:
    help_text = " ".join(parser_of(role).format_help().split())
    for option in role.options:
        if option.default not in (None, []):
            text = (
                option.default if isinstance(option.default, bool) else Text(option.kind.show(option.default))
            )
            assert option.read(text) == option.default, option.name
        assert option.flag in help_text
        assert option.variable in help_text
        assert option.help, option.name
        assert "default: " in help_text


def test_a_variable_of_several_roles_allows_the_same_values_in_each() -> None:
    """``GPUSHARE_OUTPUT=capacity`` once made every other tool fail."""
    allowed: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for role in ALL:
        for option in role.options:
            allowed.setdefault(option.variable, set()).add((option.kind.words, option.choices))
    assert {variable: values for variable, values in allowed.items() if len(values) > 1} == {}
    template, simulation = role_of("node-template"), role_of("simulate")
    environ = {"GPUSHARE_NODE_TEMPLATE_OUTPUT": "aws", "GPUSHARE_OUTPUT": "json"}
    assert (read(template, [], environ).output, read(simulation, [], environ).output) == ("aws", "json")


@pytest.mark.parametrize("role", ALL, ids=lambda role: role.name)
def test_no_role_has_an_option_twice_and_its_help_can_be_built(role: Role) -> None:
    names = [option.name for option in role.options]
    assert len(names) == len(set(names))
    assert role.program in parser_of(role).format_usage()


def test_the_schema_describes_the_allowed_values_of_each_option() -> None:
    schema = json.loads(json.dumps(schema_of([SCHEDULER], ROLES)))
    section = schema["properties"]["scheduler"]
    assert section["additionalProperties"] is False
    assert section["properties"].keys() == {option.name for option in SCHEDULER.options}
    ttl = section["properties"]["reservation-ttl"]
    assert (ttl["exclusiveMinimum"], ttl["maximum"], ttl["default"]) == (0, 3600, 15.0)
    assert section["properties"]["log-level"]["enum"] == ["debug", "info", "warning", "error"]
    assert schema["properties"]["node-agent"] == {"type": ["object", "null"]}


@pytest.mark.parametrize("role", ALL, ids=lambda role: role.name)
def test_the_table_has_a_row_for_each_option(role: Role) -> None:
    assert len(table_of(role).splitlines()) == 2 + len(role.options)


@pytest.mark.parametrize("word", ["--defragmentation=yes", "--unit", "-h2"])
def test_unclear_values_are_reported_by_the_parser(word: str) -> None:
    with pytest.raises((InvalidSettings, SystemExit)):
        read(SCHEDULER, [word], {})
