"""Moves pods so that a pending pod fits."""
