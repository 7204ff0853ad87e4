"""Mutated files through npusim's Python readers: refused with an `npusim.Error`, or run safely."""
