"""The image that ``make images`` wrote is pushed into a registry by each of the tools that the page shows,
typed as on the page.

They are the real programs, in their own namespaces: there ``registry.example.com`` is a registry on
loopback, with TLS and a login. Whatever is started there, mounted or written to ``/etc`` and ``/run`` ends
with the test.
"""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from documentation.blocks import fill
from gpushare_playground.certificate_authority import Authority
from images import product
from tests.docs.assigned import commands_typed_by
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.kept import CannotBuild
from tests.e2e.cluster.programs import Program
from tests.e2e.cluster.waiting import NotReached, wait_for
from tests.patience import SLOWNESS

PROJECT = product.PROJECT
ARCHIVE = PROJECT / "build" / "images" / "gpushare.tar"
CRANE = Program("crane", "crane", "github.com/google/go-containerregistry/cmd/crane")
#: Commands that the page has a reader type, in its order.
COMMANDS = [command.text for command in commands_typed_by(__file__, "docs/guide/install.md")]
REGISTRY = "registry.example.com"
REF = f"{REGISTRY}/{product.REF.removeprefix('docker.io/')}"
USER, PASSWORD = "reader", "secret word"
#: The output of ``htpasswd -B`` for the password.
HASH = "$2b$04$nc5A6TACMKWKiv1.ozDVFuDcgC1bFKJVF3xcNatztbIcmBzeEB4/m"
TOOLS = ("skopeo", "crane", "docker")
UNPACKED = PROJECT / "build" / "docker"
DEADLINE_S = 120.0

#: Process 1 of the namespaces; it exits when its input ends. Changes of /etc go to memory, since there may
#: be an overlayfs below it.
_FIRST = """
mount --make-rprivate /
mount -t tmpfs -o mode=755 changes "$FOLDER/changes"
mkdir "$FOLDER/changes/upper" "$FOLDER/changes/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$FOLDER/changes/upper,workdir=$FOLDER/changes/work" etc /etc
mount -t tmpfs -o mode=755 run /run
rm -rf /etc/docker
ip link set lo up
echo "127.0.0.1 localhost registry.example.com" >/etc/hosts
echo ready
exec cat
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The namespaces: ``init`` is their process 1 as seen from here; the program ``crane`` and those of
    ``build/docker`` come first.
    """

    init: int
    folder: Path
    crane: Path
    servers: list[subprocess.Popen[bytes]]

    def entering(self, *argv: object) -> list[str]:
        """The command line that runs ``argv`` there, in the checkout. It finds no modprobe: this machine's kernel stays as it is."""
        path = f"{self.crane.parent}:{UNPACKED / 'usr/bin'}:{UNPACKED / 'usr/sbin'}:/usr/bin:/bin"
        values = (f"PATH={path}", f"HOME={self.folder / 'home'}", f"SSL_CERT_FILE={self.folder / 'ca.crt'}")
        enter = ("nsenter", "--target", self.init, "--mount", "--net", "--pid", "--")
        return [str(word) for word in (*enter, "env", "-i", f"--chdir={PROJECT}", *values, *argv)]

    def tried(self, *argv: object) -> subprocess.CompletedProcess[str]:
        """Run a command there that may fail."""
        return subprocess.run(
            self.entering(*argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S * SLOWNESS,
            check=False,
        )

    def typed(self, text: str) -> str:
        """The output of a command of the page; it must succeed."""
        values = (("USER", USER), ("PASSWORD_FILE", str(self.folder / "password")))
        done = self.tried("bash", "-c", fill(text, values))
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def serve(self, *argv: object, once: Callable[[], bool]) -> None:
        """Start a server there, which ends with the namespaces; returns ``once`` it is ready."""
        log = self.folder / f"{argv[0]}.log"
        with log.open("wb") as out:
            server = subprocess.Popen(
                self.entering(*argv), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        self.servers.append(server)

        def ready() -> bool:
            assert server.poll() is None, "it has ended"
            return once()

        try:
            wait_for(f"{argv[0]} to serve", ready, timeout=DEADLINE_S)
        except (AssertionError, NotReached) as error:
            pytest.fail(f"{argv[0]}: {error}: {log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def crane() -> Path:
    """The program, built or from the cache."""
    try:
        return built([CRANE], print)[CRANE.name]
    except CannotBuild as error:
        if "module version is not available" not in str(error):
            raise
        pytest.skip(f"this Go module proxy has no crane: {error}")


@pytest.fixture
def place(crane: Path) -> Iterator[Place]:
    """Namespaces with an empty registry that requires a login."""
    assert shutil.which("skopeo"), "skopeo is not here: scripts/install-e2e-packages"
    assert UNPACKED.is_dir(), "docker is not here: scripts/unpack-docker"
    assert ARCHIVE.is_file(), f"{ARCHIVE} is not here: make images"
    # On disk: docker's storage would be slow on an overlayfs, and large in memory.
    with tempfile.TemporaryDirectory(prefix="gpushare-pushing-", dir="/var/tmp") as name:
        folder = Path(name)
        for needed in ("changes", "home"):
            (folder / needed).mkdir()
        spaces = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
        with subprocess.Popen(
            [*spaces, "sh", "-ec", _FIRST],
            env=os.environ | {"FOLDER": name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as parent:
            assert parent.stdin
            assert parent.stdout
            assert parent.stdout.readline() == b"ready\n", "no namespaces; root is needed, see above"
            (init,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            there = Place(int(init), folder, crane, [])
            try:
                _serve_registry(there)
                yield there
            finally:
                parent.stdin.close()
                for process in (parent, *there.servers):
                    process.wait(DEADLINE_S * SLOWNESS)


def _serve_registry(place: Place) -> None:
    folder = place.folder
    authority = Authority.new("registry-ca")
    own = authority.issue("registry", hosts=(REGISTRY,))
    (folder / "ca.crt").write_bytes(authority.identity.certificate_pem)
    (folder / "own.crt").write_bytes(own.certificate_pem)
    (folder / "own.key").write_bytes(own.key_pem)
    (folder / "users").write_text(f"{USER}:{HASH}\n")
    (folder / "password").write_text(f"{PASSWORD}\n")
    tls = {"certificate": f"{folder / 'own.crt'}", "key": f"{folder / 'own.key'}"}
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": f"{folder / 'registry'}"}},
        "http": {"addr": "127.0.0.1:443", "tls": tls},
        "auth": {"htpasswd": {"realm": "registry", "path": f"{folder / 'users'}"}},
    }
    (folder / "registry.yml").write_text(yaml.safe_dump(settings))

    def asks_for_a_login() -> bool:
        error = place.tried("skopeo", "inspect", "--no-creds", f"docker://{REF}").stderr
        return "authentication required" in error

    place.serve("docker-registry", "serve", folder / "registry.yml", once=asks_for_a_login)


def _serve_docker(place: Place) -> None:
    def answers() -> bool:
        return place.tried("docker", "version").returncode == 0

    # Loading and pushing needs no network but the loopback's.
    alone = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")
    place.serve("dockerd", "--data-root", place.folder / "docker", *alone, once=answers)


def _in_archive() -> tuple[bytes, list[str]]:
    """The image's configuration in the archive, and the digests of its layers' contents."""
    with tarfile.open(ARCHIVE) as opened:

        def member(name: str) -> bytes:
            found = opened.extractfile(name)
            assert found
            return found.read()

        [described] = json.loads(member("manifest.json"))
        config = member(described["Config"])
    contents: list[str] = json.loads(config)["rootfs"]["diff_ids"]
    return config, contents


def _in_registry(place: Place) -> tuple[str, bytes, list[str]]:
    """The same of the image pulled from the registry under the page's name, after the manifest's digest."""
    pulled = place.folder / "pulled"
    done = place.tried("skopeo", "copy", f"--src-creds={USER}:{PASSWORD}", f"docker://{REF}", f"dir:{pulled}")
    assert done.returncode == 0, done.stderr
    text = (pulled / "manifest.json").read_bytes()
    manifest = json.loads(text)

    def blob(described: Mapping[str, str]) -> bytes:
        return (pulled / described["digest"].removeprefix("sha256:")).read_bytes()

    contents = [_digest(gzip.decompress(blob(one))) for one in manifest["layers"]]
    return _digest(text), blob(manifest["config"]), contents


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_the_page_shows_each_tool_and_the_repository_value_for_the_charts() -> None:
    assert {text.partition(" ")[0] for text in COMMANDS} == set(TOOLS)
    repository = REF.rpartition(":")[0]
    assert f"`--set image.repository={repository}`" in (PROJECT / "docs/guide/install.md").read_text()


@pytest.mark.parametrize("tool", TOOLS)
def test_the_image_in_the_registry_is_the_one_that_was_built_here(place: Place, tool: str) -> None:
    if tool == "docker":
        _serve_docker(place)
    output = "".join(place.typed(text) for text in COMMANDS if text.startswith(f"{tool} "))
    digest, *image = _in_registry(place)
    assert tuple(image) == _in_archive()
    made = json.loads(ARCHIVE.with_suffix(".json").read_text())["digest"]
    if tool == "skopeo":
        assert digest == made
    else:
        # Their own manifest, whose digest they print.
        assert digest != made
        assert digest in output
