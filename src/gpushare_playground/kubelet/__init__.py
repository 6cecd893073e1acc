"""The playground's kubelet: one process a node that speaks the real kubelet's interfaces.

Real: the device plugin and pod resources gRPC on their sockets, the checkpoint, admission and its reasons, the
Node and its lease, pod statuses, events, back-off, graceful deletion, logs and exec.

Played: a container is a process of this machine in a session of its own, with a folder of its own, its output
in a log, and the environment that a container would have. There are no namespaces, cgroups, images or
networks: processes see the machine's files and each other, limits of CPU and memory are not
enforced, a pod's address is one of loopback's. Volumes: see ``volumes``; GPUs: see ``gpuruntime``, and what holds a
container to its part of one ``preload_env``; whose a process is ``fake_proc``; probes (a container
is ready while it runs), lifecycle hooks, ephemeral containers, ``attach``, port forwarding, ``activeDeadlineSeconds``, eviction for
want of memory, and checks of node selectors at admission are not there.

What survives what: a container runs under a small process of its own (``shim``), so it goes on when the
kubelet is killed and is adopted by the next one, with its exit code if it ended meanwhile. Every
start is recorded on disk, by process number and start time; ``cleanup`` ends what is recorded. With
``--lifeline PID`` kubelet, shims and containers end by themselves when that process is gone, however it went.
"""
