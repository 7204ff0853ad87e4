"""Where a program's time goes: each command timed, with what it moves and computes."""

from npusim.profile.measure import profile_program
from npusim.profile.profile import CommandProfile, Group, Profile

__all__ = ["CommandProfile", "Group", "Profile", "profile_program"]
