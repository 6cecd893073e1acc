"""The GPU work of the sample images' programs, on any driver."""
