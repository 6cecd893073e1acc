"""Amounts as text."""


def gib(mib: int) -> str:
    """In GiB, rounded."""
    return f"{mib / 1024:.0f}"


def percent(part: int, whole: int) -> int:
    """Of ``whole``, rounded down; 0 of nothing."""
    return 100 * part // whole if whole else 0
