"""GPUs by the Container Device Interface (CDI): NVIDIA's CDI spec is read, and our own is derived from it.

``reading`` and ``deriving`` are pure, ``folders`` reads and writes the files, ``access`` decides and keeps up.
"""
