"""Where a program's time goes: each command timed, with what it moves and computes.

`measure.py` runs programs and needs the native runtime; what reads a profile does not.
"""

from npusim.profile.profile import CommandProfile, Group, Profile

__all__ = ["CommandProfile", "Group", "Profile"]
