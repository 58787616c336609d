"""Decides which values in memory are harmless JSON at a glance, as nearly all are: few need to be looked at closely."""

from __future__ import annotations

from typing import Any

from placet import limits

PLAIN_MAX = 1_024
"""Up to so many values on one level a glance is enough. Objects that refer to each other can spell out many more."""


def is_plain(value: object, depth_max: int) -> bool:
    """Whether nothing in the value, level by level, is to be refused, and all of it is ASCII, integers and words.

    False says nothing: whoever looks closely knows the path of what it finds. `depth_max`: levels of containers.
    """
    level: list[Any] = [value]
    for _ in range(depth_max):
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                if not item.isascii():
                    return False
            elif kind is dict:
                for key in item:
                    if type(key) is not str or not key.isascii():
                        return False
                below += item.values()
            elif kind is list or kind is tuple:
                below += item
            elif kind is int:
                if not -limits.INTEGER_MAX < item < limits.INTEGER_MAX:
                    return False
            elif kind is not bool and item is not None:
                return False
        if not below:
            return True
        if len(below) > PLAIN_MAX:
            return False
        level = below
    return False
