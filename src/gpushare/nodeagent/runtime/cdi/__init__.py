"""GPUs by the Container Device Interface (CDI): NVIDIA's description of them read, and one of our own kept from it.

``reading`` and ``deriving`` are pure, ``folders`` reads and writes the files, ``access`` decides and keeps up.
"""
