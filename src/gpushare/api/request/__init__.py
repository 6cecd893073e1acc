"""Requests of pods, in every notation, and their pod groups."""
