"""Pods moved so that a pending one fits."""
