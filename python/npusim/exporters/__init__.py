"""Turning graphs into files of other tools."""
