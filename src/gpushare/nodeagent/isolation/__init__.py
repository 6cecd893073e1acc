"""What holds a container to its share on nodes that isolate (modes ``cgpu``, ``core_mem``, ``mps``).

``modes`` says which way is gone, ``state`` keeps it in order and says what is wrong with it. ``preload`` puts our
libraries before the driver's, with files of each container in ``directories``; ``mps`` runs NVIDIA's own server.
``watchdog`` looks at what the driver says that processes hold, whatever they were held to. ``modes``, ``files``,
``in_place``, ``cgroups`` and ``judging`` are pure.
"""
