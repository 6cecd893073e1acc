"""Admission webhook for clusters whose API server has no policies of its own (role ``gpushare admission``).

It gives what the chart's ValidatingAdmissionPolicies (Kubernetes 1.30) and MutatingAdmissionPolicy (1.36) give where
they exist: ``rules`` says the same with the same sentences. ``certs`` makes and renews the certificate.

The chart says which ports, rights and objects it needs (``templates/webhook``). The Secret is made empty (no ``data``), so that an upgrade
leaves ours alone. The right to *create* Secrets is not wanted: it would be the right to make tokens of every account of the namespace.
"""
