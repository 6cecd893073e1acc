"""The playground's images: container image names mapped to programs of this machine.

There is no registry and nothing is downloaded. An image is an entry of a TOML file (``described/`` has
ours, ``--images FOLDER`` adds a user's own) with the names of the image, the program that it runs by
default, and the files and commands of its containers. The programs of the documentation's sample
images stand in for the real ones: they list their GPUs through NVML, read their share from the
environment, and then compute a little on the CPU, with a kernel on the GPU that takes time and does nothing else,
and with real copies; each states this in its first line. Without a CUDA driver they run without a GPU.
"""
