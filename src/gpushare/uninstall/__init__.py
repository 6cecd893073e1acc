"""Removes what ``helm uninstall`` leaves on nodes."""
