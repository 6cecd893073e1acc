"""Counts with singular or plural."""


def counted(number: int, noun: str) -> str:
    """``1 unit`` or ``3 units``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
