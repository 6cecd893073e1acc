"""Command lines, files and refusals of the control plane, without starting anything."""

import re
import socket
import ssl
from pathlib import Path

import pytest
import yaml

from gpushare_playground.certificate_authority import SERVER_NAMES, Authority
from gpushare_playground.controlplane import COMPONENTS, ControlPlane, ControlPlaneError, commands
from gpushare_playground.controlplane.__main__ import main
from gpushare_playground.controlplane.binaries import find, version_of
from gpushare_playground.controlplane.layout import Layout
from gpushare_playground.controlplane.ports import free_ports
from gpushare_playground.controlplane.scheduler_config import completed, plain, with_extender


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.chosen(tmp_path)


def every_command(layout: Layout) -> dict[str, list[str]]:
    binary = Path("/bin/component")
    return {
        "etcd": commands.etcd(binary, layout),
        "kube-apiserver": commands.kube_apiserver(binary, layout, ("--audit-log-path=-",)),
        "kube-controller-manager": commands.kube_controller_manager(binary, layout),
        "kube-scheduler": commands.kube_scheduler(binary, layout, "kube-scheduler", Path("/c.yaml")),
    }


def test_nothing_listens_beyond_loopback(layout: Layout):
    for component, command in every_command(layout).items():
        text = " ".join(command)
        assert "0.0.0.0" not in text
        if component == "etcd":
            assert all("://127.0.0.1:" in url for url in re.findall(r"urls=(\S+)", text))
        else:
            assert "--bind-address=127.0.0.1" in command


def test_every_component_has_a_port_of_its_own(layout: Layout):
    assert len(set(layout.ports.values())) == len(layout.ports) == len(COMPONENTS) + 1
    for component, command in every_command(layout).items():
        assert str(layout.ports[component]) in " ".join(command)


def test_further_flags_come_last_so_that_they_win(layout: Layout):
    assert every_command(layout)["kube-apiserver"][-1] == "--audit-log-path=-"


def test_a_flag_of_no_component_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--binaries", "a", "--state", "b", "--flag", "kubelet=--v=4"])
    assert "no such component: kubelet; there are etcd, " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--binaries", "a", "--state", "b", "--flag", "etcd"])
    assert "no flag for etcd: write etcd=--v=4" in capsys.readouterr().err


def test_etcd_requires_client_certificates(layout: Layout):
    command = commands.etcd(Path("etcd"), layout)
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(command)


def test_free_ports_are_free_and_outside_the_ephemeral_range():
    ports = free_ports(5)
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 5
    for port in ports:
        assert port < first
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_port_that_is_taken_on_another_loopback_address_is_not_free(monkeypatch: pytest.MonkeyPatch):
    """As if a node of another playground had it."""
    with socket.socket() as taken:
        [port, other] = free_ports(2)
        taken.bind(("127.0.0.197", port))
        draws = iter((port, other))
        monkeypatch.setattr("gpushare_playground.controlplane.ports._FROM", 0)
        monkeypatch.setattr("secrets.randbelow", lambda _: next(draws))
        assert free_ports(1) == [other]


def test_the_kubeconfig_of_any_user_is_in_the_folder_of_kubeconfigs(layout: Layout):
    path = layout.kubeconfig("system:node:a/b")
    assert path.parent == layout.state / "kubeconfig"


class TestBinaries:
    def test_a_missing_folder_is_reported_with_a_suggestion(self, tmp_path: Path):
        with pytest.raises(
            ControlPlaneError, match=r"no folder of binaries; build .*tests\.e2e\.cluster build"
        ):
            find(tmp_path / "none", COMPONENTS)

    def test_every_missing_binary_is_named(self, tmp_path: Path):
        (tmp_path / "etcd").touch(0o755)
        with pytest.raises(ControlPlaneError, match="lacks kube-apiserver, kube-scheduler; build"):
            find(tmp_path, ["etcd", "kube-apiserver", "kube-scheduler"])

    def test_a_file_that_cannot_be_executed_is_reported(self, tmp_path: Path):
        (tmp_path / "etcd").touch(0o644)
        with pytest.raises(ControlPlaneError, match=r"etcd in .* cannot be executed"):
            find(tmp_path, ["etcd"])

    def test_an_unknown_component_is_reported(self, tmp_path: Path):
        with pytest.raises(ControlPlaneError, match="no such component: kubelet; there are etcd"):
            find(tmp_path, ["kubelet"])

    def test_the_version_is_read(self, tmp_path: Path):
        binary = tmp_path / "kube-apiserver"
        binary.write_text("#!/bin/sh\necho Kubernetes v1.28.15\n")
        binary.chmod(0o755)
        assert version_of(binary) == (1, 28)

    def test_a_binary_of_another_program_is_reported(self, tmp_path: Path):
        binary = tmp_path / "kube-apiserver"
        binary.write_text("#!/bin/sh\necho hello\n")
        binary.chmod(0o755)
        with pytest.raises(ControlPlaneError, match="says nothing useful"):
            version_of(binary)


class TestSchedulerConfiguration:
    def test_what_only_the_control_plane_knows_is_filled_in(self):
        config = yaml.safe_load(
            completed(with_extender("ours", "http://x/y", ("a/b",)), "/kubeconfig", "test")
        )
        assert config["clientConnection"] == {"kubeconfig": "/kubeconfig"}
        assert config["leaderElection"] == {"leaderElect": False}
        assert config["profiles"] == [{"schedulerName": "ours"}]
        [extender] = config["extenders"]
        assert (extender["urlPrefix"], extender["managedResources"]) == ("http://x/y", [{"name": "a/b"}])

    def test_resources_that_only_the_extender_counts_are_in_the_profile(self):
        config = yaml.safe_load(with_extender("ours", "http://x/y", ("a/b",), ("a/b", "a/c")))
        fit = {"name": "NodeResourcesFit", "args": {"ignoredResources": ["a/b", "a/c"]}}
        assert config["profiles"] == [{"schedulerName": "ours", "pluginConfig": [fit]}]

    def test_an_extender_for_all_pods_manages_no_resource_in_particular(self):
        config = yaml.safe_load(with_extender("ours", "http://x/y"))
        assert "managedResources" not in config["extenders"][0]

    def test_settings_of_the_user_stay(self):
        profile = {
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": "/mine", "qps": 7},
            "leaderElection": {"leaderElect": True},
        }
        config = yaml.safe_load(completed(yaml.safe_dump(profile), "/kubeconfig", "test"))
        assert config == profile

    def test_the_plain_configuration_has_no_extender(self):
        assert "extenders" not in yaml.safe_load(plain("/kubeconfig"))

    @pytest.mark.parametrize("text", ["kind: Pod", "- a", "{", ""])
    def test_another_document_is_refused(self, text: str):
        with pytest.raises(ControlPlaneError, match=r"file\.yaml is no"):
            completed(text, "/kubeconfig", "file.yaml")


async def test_an_earlier_control_planes_folder_is_refused(tmp_path: Path):
    (tmp_path / "etcd").mkdir()
    plane = ControlPlane(_binaries(tmp_path / "bin"), tmp_path)
    with pytest.raises(ControlPlaneError, match="holds an earlier control plane; give an empty folder"):
        await plane.__aenter__()


async def test_a_component_that_keeps_exiting_is_reported_with_its_last_output(tmp_path: Path):
    lines: list[str] = []
    plane = ControlPlane(_binaries(tmp_path / "bin"), tmp_path / "state", report=lines.append)
    with pytest.raises(ControlPlaneError, match=r"(?s)etcd does not get ready.*its last words"):
        await plane.__aenter__()
    assert any("etcd ended (with exit code 1); starting it again" in line for line in lines)
    assert plane.parts["etcd"].pid == 0


def _binaries(folder: Path) -> Path:
    folder.mkdir()
    for name in COMPONENTS:
        path = folder / name
        path.write_text("#!/bin/sh\necho its last words >&2; exit 1\n")
        path.chmod(0o755)
    return folder


def test_clients_that_trust_the_authority_trust_its_certificates(tmp_path: Path):
    authority = Authority.new("an-authority")
    server = authority.issue("server", hosts=(*SERVER_NAMES, "127.0.0.1"), organizations=["a", "b"])
    (tmp_path / "both.pem").write_bytes(server.certificate_pem + server.key_pem)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "both.pem")
    trusting = ssl.create_default_context(cadata=authority.identity.certificate_pem.decode())
    ends = [ssl.MemoryBIO() for _ in range(2)]
    client = trusting.wrap_bio(ends[0], ends[1], server_hostname="127.0.0.1")
    server_side = serving.wrap_bio(ends[1], ends[0], server_side=True)
    for _ in range(4):
        for side in (client, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    subject = client.getpeercert()["subject"]
    assert (("organizationName", "a"),) in subject
    assert (("commonName", "server"),) in subject
