"""npusim beside other runtimes: the same model and inputs, each in a process of its own, in turns.

`runtimes` says how each loads a model and is called once, `process` keeps it in its process,
`turns` lets all of them take turns and compares what they took, `model_files` writes what they
load, and `torch_module` makes a graph a module of PyTorch.
"""

from npusim.peers.turns import Standing, compare

__all__ = ["Standing", "compare"]
