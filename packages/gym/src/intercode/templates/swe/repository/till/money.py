"""Amounts for people."""


def shown(cents):
    """An amount as people write it: 1205 is 12.05."""
    return f"{cents // 100}.{cents % 100}"
