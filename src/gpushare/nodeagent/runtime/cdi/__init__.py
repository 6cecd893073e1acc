"""GPUs by the Container Device Interface (CDI): NVIDIA's CDI spec is read, and our own is derived from it.

``read_spec`` and ``derive_spec`` are pure, ``spec_dirs`` reads and writes the files, ``gpu_access`` decides and keeps them up to date.
"""
