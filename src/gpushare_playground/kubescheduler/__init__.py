"""kube-scheduler's part of the playground: one scheduling loop a profile, with the extender beside it.

It does what the real one does as far as the examples need it: the filters for resources, taints,
node affinity and host ports, the usual scores, the extender over HTTP in kube-scheduler's own wire
form, binding cycles of their own, and its words in conditions and events (source: kubernetes 1.36
``pkg/scheduler``, and what was seen of it). Not here: preemption, affinity between pods, topology
spread, volumes and resource claims; an event says so on a pod that uses them.
"""
