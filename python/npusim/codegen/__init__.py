"""Code generation: where a target has no kernels of its own, each command becomes device code."""

from npusim.codegen.generate import generate

__all__ = ["generate"]
