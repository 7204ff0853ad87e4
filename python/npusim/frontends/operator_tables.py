"""What torch.export reads and writes of all operators for each model, in less time.

A decomposition looks up the hundreds of composite operators that PyTorch's dispatcher has once for
each of its namespaces, and enters a function for each of them and each of a dozen devices by
`py_impl`, whose annotations are evaluated at every call: of a small model's extraction that is
more than a third. Owns the two shorter ways; what they leave in PyTorch's tables is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch._C import DispatchKey
from torch._export import utils
from torch._ops import OperatorBase

_LOOK_UP = "_materialize_cpp_cia_ops"  # called for each namespace, for all of them


@contextlib.contextmanager
def quick_tables() -> Iterator[None]:
    """Decompositions within look up all operators once, and enter functions without annotations.

    What is registered within, as by a decomposition, is not looked up. A PyTorch that keeps its
    tables in another way goes its own.
    """
    look_up, py_impl = getattr(utils, _LOOK_UP, None), OperatorBase.py_impl
    if look_up is None:
        yield
        return
    is_done = False

    def once() -> None:
        nonlocal is_done
        if not is_done:
            look_up()
        is_done = True

    def enter(operator: Any, key: Any) -> Callable[[Any], Any]:
        kernels = operator.py_kernels
        cache = getattr(operator, "_dispatch_cache", None)
        if cache is None or not isinstance(key, DispatchKey):
            return py_impl(operator, key)
        if key == DispatchKey.Python or key in kernels:
            return py_impl(operator, key)  # which refuses it

        def entered(function: Any) -> Any:
            kernels[key] = function
            cache.clear()
            return function

        return entered

    setattr(utils, _LOOK_UP, once)
    OperatorBase.py_impl = enter
    try:
        yield
    finally:
        OperatorBase.py_impl = py_impl
        setattr(utils, _LOOK_UP, look_up)
