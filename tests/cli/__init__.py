"""Tests of the `npusim` command."""
