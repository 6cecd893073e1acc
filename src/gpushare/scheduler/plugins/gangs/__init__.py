"""The plugin ``gangs``: pods that run together or not at all."""
