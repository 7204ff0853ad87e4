"""Proof on whatever machine npusim runs: every kernel and small models against PyTorch, and times.

What the repository's tests show where it is developed, an installed package shows elsewhere:
`npusim selftest --device D` writes one report. Nothing is asserted about times.
"""
