"""The playground's kubelet: one process per node that has the real kubelet's interfaces.

Real: the device plugin and pod resources gRPC on their sockets, the checkpoint, admission and its reasons, the
Node and its lease, pod statuses, events, back-off, graceful deletion, logs and exec.

Simulated: a container is a process of this machine in its own session, with its own folder, its output
in a log, and the environment that a container would have. There are no namespaces, cgroups, images or
networks: processes see the machine's files and each other, limits of CPU and memory are not
enforced, a pod's address is a loopback address. Volumes: see ``volumes``; GPUs: see ``gpuruntime``; limits of a
container to its share of a GPU: see ``preload_env``; containers of processes: see ``fake_proc``. Probes (a container
is ready while it runs), lifecycle hooks, ephemeral containers, ``attach``, port forwarding, ``activeDeadlineSeconds``, eviction for
memory pressure, and checks of node selectors at admission are not implemented.

Across restarts: a container runs under its own small process (``shim``), so it continues when the
kubelet is killed and is adopted by the next one, with its exit code if it ended meanwhile. Every
start is recorded on disk, by process number and start time; ``cleanup`` ends what is recorded. With
``--lifeline PID`` kubelet, shims and containers end by themselves when that process has ended, for whatever reason.
"""
