"""The playground's kube-scheduler: one scheduling loop per profile, with the extender.

It does what the real one does as far as the examples need it: the filters for resources, taints,
node affinity and host ports, the usual scores, the extender over HTTP in kube-scheduler's own wire
format, separate binding cycles, and its messages in conditions and events (source: kubernetes 1.36
``pkg/scheduler``, and observations of it). Not implemented: preemption, affinity between pods, topology
spread, volumes and resource claims; an event reports this on a pod that uses them.
"""
