"""Commands of sentences and tables that cannot be typed as they are: what is typed, in which order, and the expected output.

Commands that change something are in an order that works. Placeholders of a sentence are filled in, and a command that runs on, or measures
for minutes, is ended: ``tests.docs.saying`` checks that it is still the sentence's command.
"""

from dataclasses import dataclass
from typing import Final

from documentation.blocks import Block


@dataclass(frozen=True, slots=True)
class Doing:
    """A command as written on the page, and what is typed for it (empty: the same)."""

    text: str
    typed: str = ""
    first: tuple[str, ...] = ()
    """Typed before it; not shown."""
    shows: tuple[str, ...] = ()
    """Expected output; empty: only its exit is checked."""
    code: int | None = None
    """Its exit code, if not 0."""
    until: str = ""
    """Output upon which it is interrupted, if it runs on."""
    beside: str = ""
    """A command that runs in the background from before it on."""

    def block(self, line: int) -> Block:
        """A block with only this command, for the line of the page."""
        return Block(
            line - 1,
            "console",
            (f"$ {self.typed or self.text}", *self.shows),
            first=self.first,
            code=self.code,
            until=self.until,
            beside=self.beside,
        )


_READY: Final = "--for=condition=Ready --timeout=60s"
_NOTHING_HELD: Final = "kubectl delete jobs,pods --all --now"
_RESIZED: Final = (
    """'{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}}'"""
)

#: Typed into a playground, in this order; ``tests.docs.test_inline_commands`` prepares it.
IN_A_PLAYGROUND: Final = (
    Doing("kubectl explain", "kubectl explain pod.spec.containers", shows=("KIND: Pod", "…")),
    Doing("kubectl explain …", "kubectl explain job.spec", shows=("GROUP: batch", "…")),
    Doing("kubectl get --raw '…'", "kubectl get --raw '/api/v1/nodes'", shows=('{"kind":"NodeList",…',)),
    Doing("kubectl inspect cgpu --top", shows=("NAMESPACE NAME NODE …", "…")),
    Doing("kubectl inspect cgpu -w", until="Allocated/Total GPU Memory In Cluster:"),
    Doing(
        "kubectl inspect cgpu completion kubectl > ~/bin/kubectl_complete-inspect-cgpu",
        first=("mkdir ~/bin",),
    ),
    Doing("kubectl proxy", "kubectl proxy --port=0", until="Starting to serve on"),
    Doing(
        "kubectl patch pod NAME --subresource=resize …",
        f"kubectl patch pod resized --subresource=resize -p {_RESIZED}",
        first=(f"kubectl wait {_READY} pod/resized",),
        shows=("pod/resized patched",),
    ),
    Doing(
        "kubectl rollout restart",
        "kubectl rollout restart deployment/web",
        shows=("deployment.apps/web restarted",),
    ),
    # A playground validates itself, and has no webhook.
    Doing(
        "kubectl -n kube-system logs deploy/gpushare-admission",
        code=1,
        shows=('…"gpushare-admission" not found…',),
    ),
    Doing(
        'curl -H "Authorization: Bearer $TOKEN" http://localhost:9453/api/node?name=NODE',
        'curl -H "Authorization: Bearer $TOKEN" http://localhost:9453/api/node?name=cgpu-t4',
        first=('echo "$TOKEN" > token',),
        beside="gpushare dashboard --token-file token",
        shows=("…", '…"name":"cgpu-t4"…'),
    ),
    Doing(
        'curl -c jar -H "Content-Type: application/json" -d "{\\"token\\": \\"$TOKEN\\"}" …/proxy/login',
        'curl -c jar -H "Content-Type: application/json" -d "{\\"token\\": \\"$TOKEN\\"}" http://localhost:9453/login',
    ),
    Doing(
        "curl -b jar …/proxy/api/node?name=NODE",
        "curl -b jar http://localhost:9453/api/node?name=cgpu-t4",
        shows=("…", '…"name":"cgpu-t4"…'),
    ),
    Doing(
        "kubectl apply -f 07-whole-device.yaml",
        "kubectl apply -f examples/07-whole-device.yaml",
        first=(_NOTHING_HELD,),
        shows=("pod/whole-device created",),
    ),
    Doing(
        "kubectl apply -f no-limit.yaml",
        "kubectl apply -f examples/no-limit.yaml",
        first=(_NOTHING_HELD,),
        shows=("job.batch/cuda-sample-no-limit created",),
    ),
    Doing("kubectl logs job/cuda-sample-no-limit --tail=1", shows=("… copies/s…",)),
    Doing(
        "kubectl logs job/tensorflow-mnist-share",
        first=(_NOTHING_HELD, "kubectl apply -f examples/03-job-share.yaml"),
        shows=(
            "…",
            "…16384 MiB in all…",
            "…",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4",
            "ALIYUN_COM_GPU_MEM_DEV=16",
            "…",
            "…4 / 16 = 0.25",
            "…",
        ),
    ),
    Doing(
        "kubectl patch node NODE --patch-file node.yaml",
        "kubectl patch node cgpu-t4 --patch-file node.yaml",
        shows=("node/cgpu-t4 patched",),
    ),
    Doing(
        "kubectl label node NODE gpushare.dev/described-",
        "kubectl label node cgpu-t4 gpushare.dev/described-",
    ),
    # Roles started by hand: without the settings of an agent or a container they report which one is missing.
    Doing("gpushare scheduler", until="gpushare.scheduler.main: ready"),
    Doing("gpushare admission", until="gpushare.admission.main: serving at"),
    Doing(
        "gpushare node-agent",
        code=2,
        shows=("gpushare node-agent: --node: give the name of this node, or set $NODE_NAME",),
    ),
    Doing(
        "gpushare dashboard",
        code=2,
        shows=(
            "gpushare dashboard: --token-file: name a file with a token, such as one of: openssl rand -hex 32",
        ),
    ),
    # A policy protects what agents have written from this reader, too.
    Doing("gpushare uninstall", until="3 nodes were described by agents"),
)

_STAYS_UP: Final = "The cluster stays up until Ctrl-C"
_MEASURED: Final = "  took "
_STAND_IN: Final = "DRIVER=fakegpu"
#: Pod lists in the format of the public traces, which are not part of the project.
_LISTS: Final = "TRACES=$OUT/lists"
_LISTED: Final = (
    "mkdir -p $OUT/lists",
    "printf 'sn,cpu_milli,memory_mib,gpu,model\\nnode-1,64000,262144,4,T4\\n' >$OUT/lists/openb_node_list_gpu_node.csv",
    "for name in default gpushare60; do printf 'name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\\n"
    "pod-1,4000,8192,1,300,\\npod-2,4000,8192,1,700,\\n' >$OUT/lists/openb_pod_list_$name.csv; done",
)
_OF_API: Final = "--ignore-glob='tests/integration/*' --ignore-glob='tests/unit/[!a]*'"
_REPORT: Final = '--quick --out $OUT"'

#: Typed in the checkout, without a cluster.
IN_THE_CHECKOUT: Final = (
    Doing("make quick", "make quick ARGS=--list", shows=("… files changed since …", "…", "format …", "…")),
    Doing("make ci", "make ci ARGS=--list", shows=("install …", "…", "test make test", "…")),
    Doing(
        "make nightly",
        "make nightly ARGS=--list",
        shows=("install …", "…", "fuzz make fuzz FUZZ_SECONDS=60", "…"),
    ),
    Doing("make clients", "make clients ARGS=--list", shows=("jax_arrays …", "…", "pytorch …", "…")),
    Doing("make fakegpu"),
    Doing("make isolation"),
    Doing("make -C fakegpu"),
    Doing("make -C isolation"),
    Doing("make krew", code=2, shows=("…", "krew: VERSION '': write v1.2.3", "…")),
    Doing(
        "make krew VERSION=v1.2.3 ADDRESS=https://…",
        "make krew VERSION=v1.2.3 ADDRESS=https://example.com/inspect-cgpu.tar.gz",
        shows=("…", "build/kubectl-inspect-cgpu.tar.gz and build/inspect-cgpu.yaml: for version v1.2.3"),
    ),
    Doing(
        "python -m gpushare_playground.gpus PRESET",
        "python -m gpushare_playground.gpus t4",
        shows=("fakegpu 1", "…"),
    ),
    Doing("gpushare playground", "gpushare playground --no-walk", until=_STAYS_UP),
    Doing('make run ARGS="--no-walk --unit 128MiB"', until=_STAYS_UP),
    Doing(
        'make gpu-check SECTION=compute ARGS="--seconds 900"',
        f'make gpu-check SECTION=compute ARGS="--seconds 900 {_REPORT} {_STAND_IN}',
    ),
    Doing("make gpu-check SECTION=races", f'make gpu-check SECTION=races {_STAND_IN} ARGS="{_REPORT}'),
    Doing(
        "make gpu-check PYTHON=/path/to/python3",
        f'make gpu-check PYTHON=$PYTHON_HERE {_STAND_IN} SECTION=symbols ARGS="{_REPORT}',
    ),
    Doing("make race-isolation", 'make race-isolation ARGS="--seconds 2 --processes 8 --kills 10"'),
    Doing("make load", "make load ARGS=--quick", until="Quick: no figure is compared with its budget."),
    Doing(
        "make bench-dra", "make bench-dra ARGS=--quick", until="Quick: no figure is compared with its budget."
    ),
    # Narrowed to one folder: collecting all tests takes minutes on a busy machine.
    Doing("make soak", f'make soak PYTEST_ARGS="-k nearness {_OF_API}"', until="round 2"),
    Doing("make soak-slow", "make soak-slow SLOW_TESTS=tests/integration/inspect/test_completion.py"),
    Doing("make bench ARGS=claims", 'make bench ARGS="claims --quick"', until=_MEASURED),
    Doing("make bench", "make bench ARGS=--quick", until=_MEASURED),
    Doing("make bench-isolation ARGS=cost", 'make bench-isolation ARGS="cost --quick"', until="ns"),
    Doing("python -m benchmarks.in_use", "python -m benchmarks.in_use --quick"),
    Doing("python -m benchmarks.inspect_start", "python -m benchmarks.inspect_start --quick"),
    Doing(
        'make bench-placement ARGS="--policy binpack --policy spread default gpushare60"',
        f'make bench-placement ARGS="--policy binpack --policy spread default gpushare60" {_LISTS}',
        first=_LISTED,
        shows=("…", "default: …", "  binpack …", "  spread …", "…", "gpushare60: …", "…"),
    ),
    Doing(
        "python -m tests.fixtures.record",
        "python -m tests.fixtures.record --into $OUT/written mib128",
        shows=("written: …",),
    ),
    Doing(
        "python -m tests.integration.dashboard.screenshots",
        "python -m tests.integration.dashboard.screenshots --into $OUT/images --quick",
        shows=("…", "written: …/dashboard-phone.png"),
    ),
)
