"""The playground's images: container image names mapped to programs of this machine.

There is no registry and nothing is downloaded. An image is an entry of a TOML file (``described/`` holds
ours, ``--images FOLDER`` adds a user's own) that says which names it answers to, what it runs by
default, and which files and commands its containers find. The programs of the documentation's sample
images stand in for the real ones: they look at their GPUs through NVML, read their share from the
environment, and then compute a little on the CPU, with a kernel on the GPU that takes time and does nothing else,
and with copies that are copies; each says so in its first line. Where there is no CUDA driver they go on without.
"""
