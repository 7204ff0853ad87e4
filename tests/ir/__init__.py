"""Tests of the IR: JSON, validator, printer, rewriting, pictures."""
