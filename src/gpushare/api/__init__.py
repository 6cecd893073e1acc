"""Shared by every component: names, quantities, requests, devices, allocations, wire formats.

Nothing here reads a file, a socket or a clock, or imports other packages of gpushare.
"""
