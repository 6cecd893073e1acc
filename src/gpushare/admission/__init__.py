"""Admission webhook for clusters whose API server has no policies of its own (role ``gpushare admission``).

It gives what the chart's ValidatingAdmissionPolicies (Kubernetes 1.30) and MutatingAdmissionPolicy (1.36) give where
they exist: ``rules`` and ``writes`` say the same with the same sentences. ``keeper`` makes and renews the certificate.

What runs it must give (``gpushare admission --help`` says the same):

* arguments: ``admission --namespace=$(POD_NAMESPACE)``; with other names than the defaults ``--service``, ``--secret``,
  ``--configuration``, ``--scheduler-name``, ``--trusted-service-account`` (one for each user that writes records), ``--scheduler-account``,
  ``--node-agent``, ``--node-restriction=never`` where tokens do not say their node.
* ports: 9443 reviews (TLS; Service port 443 → 9443), 9452 ``/healthz``, ``/readyz``, ``/metrics``. Ready: it serves a
  certificate that every webhook configuration of its name trusts.
* an empty Secret ``gpushare-admission`` (type Opaque, no ``data``: an upgrade then leaves ours alone), and rights:
  Role: ``secrets`` get, patch on that name. The right to *create* Secrets is not wanted: it would be the right to
  make tokens of every account of the namespace. ``pods`` get in the namespace, for clusters before 1.30 only.
  ClusterRole: ``mutatingwebhookconfigurations`` and ``validatingwebhookconfigurations`` get, patch on
  ``gpushare-admission``; with ``--to-claims`` also ``resourceclaimtemplates`` get, list, create;
  with ``--require-matching-gpu`` also ``nodes`` list.
* nothing else: non-root, read-only root file system, no capability, no writable folder. Any number of replicas.
"""
