"""Shared by every component: names, quantities, requests, devices, allocations, wire formats.

Pure: nothing here reads a file, a socket or a clock, and nothing of ours is imported.
"""
