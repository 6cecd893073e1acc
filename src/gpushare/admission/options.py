"""The webhook's options. Imports nothing heavy: ``gpushare config`` imports only this module."""

from typing import Final

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare.options.kinds import ADDRESS, CHOICE, FILE, HOURS, MIB, SECONDS, SWITCH, TEXT, TEXTS, UNIT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOGGING

_RIGHTS: Final = """\
permissions that its ServiceAccount needs:
  Role in its namespace:
    secrets                          get, patch   the one of --secret; the chart creates it, empty
    pods                             get          only before Kubernetes 1.30: node of a node agent's pod
  ClusterRole:
    admissionregistration.k8s.io
      mutatingwebhookconfigurations  get, patch   the one of --configuration
      validatingwebhookconfigurations get, patch  the one of --configuration
    resource.k8s.io
      resourceclaimtemplates         get, list, create  only with --to-claims
    core
      nodes                          list         only with --require-matching-gpu
ports: 9443 reviews (TLS), 9452 /metrics, and /healthz /readyz without --probes-listen
needs no writable folder and no capability

example:
  gpushare admission --config gpushare.yaml         # in a pod of the cluster (the chart starts it)
what it checks and writes: docs/guide/admission.md
options: docs/reference/options.md; where values come from: docs/guide/configuration.md
"""

ROLE: Final = Role(
    "admission",
    "Admission webhook for clusters without the policy APIs: sets the scheduler of GPU pods, rejects requests that can\n"
    "never be met, and protects allocation annotations. Creates and renews its own certificate.",
    (
        *ACCESS,
        Option(
            "namespace",
            TEXT,
            "namespace of Secret and Service",
            absent="the ServiceAccount's",
            variables=("POD_NAMESPACE",),
        ),
        Option("listen", ADDRESS, "address for reviews, TLS (port 0: any free port)", "0.0.0.0:9443"),
        Option(
            "metrics-listen",
            ADDRESS,
            "address for metrics, and for probes without --probes-listen (port 0: any free port)",
            "0.0.0.0:9452",
        ),
        Option("probes-listen", ADDRESS, "address for /healthz and /readyz", absent="at --metrics-listen"),
        Option("port-file", FILE, "file to write all ports to once they are known", absent="nowhere"),
        Option("service", TEXT, "name of the Service", "gpushare-admission"),
        Option(
            "server-name",
            TEXTS,
            "further DNS name or IP address of the certificate, if API servers call by URL",
            [],
        ),
        Option("secret", TEXT, "name of the Secret", "gpushare-admission"),
        Option("configuration", TEXT, "name of both webhook configurations", "gpushare-admission"),
        Option("scheduler-name", TEXT, "scheduler that is set on GPU pods", names.SCHEDULER_NAME),
        Option(
            "trusted-service-account",
            TEXTS,
            "user that may write allocation annotations",
            [],
            absent="--scheduler-account and --node-agent",
            metavar="USER",
        ),
        Option(
            "scheduler-account",
            TEXT,
            "user of the scheduler",
            absent="ack-co-scheduler of the namespace",
            metavar="USER",
        ),
        Option(
            "node-agent",
            TEXT,
            "user of the node agents",
            absent="gpushare-device-plugin of the namespace",
            metavar="USER",
        ),
        Option(
            "node-restriction",
            CHOICE,
            "auto: a node agent may only write to its own node, found by its token or the token's pod",
            "auto",
            choices=("auto", "never"),
        ),
        Option("unit", UNIT, f"unit of {names.GPU_MEM}, same as the node agents'", MemoryUnit.GIB.setting),
        Option(
            "reference-gpu-memory-mib",
            MIB,
            f"memory of the reference GPU for {names.GPU_MEMORY_PERCENT}; 0: such requests are rejected",
            0,
            least=0,
            most=1 << 30,
        ),
        Option(
            "accept",
            TEXTS,
            "scheduler whose pods' GPU requests are replaced by ours: hami or kai (docs/guide/migrate.md)",
            [],
            choices=("hami", "kai"),
        ),
        Option(
            "to-claims",
            SWITCH,
            "replace GPU requests of pods by ResourceClaims, for clusters whose nodes are in mode dra (docs/guide/dra.md)",
            False,
        ),
        Option(
            "require-matching-gpu",
            SWITCH,
            "reject pods whose annotations allow no GPU of the cluster (docs/guide/gpu-selection.md)",
            False,
        ),
        Option("valid-for", HOURS, "lifetime of a certificate", 90.0 * 24, least=0.001, most=24 * 3650),
        Option(
            "renew-before",
            HOURS,
            "remaining lifetime at which the certificate is renewed",
            absent="a third of its lifetime",
        ),
        Option(
            "overlap",
            SECONDS,
            "how long a CA is trusted before and after it is used",
            300.0,
            least=0,
            most=86400,
        ),
        Option("period", SECONDS, "interval of certificate checks", 10.0, least=0.05, most=3600),
        Option(
            "drain",
            SECONDS,
            "how long to serve after SIGTERM, while Services still route API servers here",
            5.0,
            least=0,
            most=300,
        ),
        *LOGGING,
    ),
    epilog=_RIGHTS,
)
