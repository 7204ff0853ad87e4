"""How a tensor lies in memory where the target wants rows to begin at multiples.

Owns padding: the innermost stored dimension of a tensor (the channels of a channels-last image) is
rounded up to a multiple of elements, and what lies behind the tensor's own elements is nobody's:
no kernel reads it. A dimension whose size a call chooses is not rounded.
"""

from __future__ import annotations

from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.lowering.view import View


def padded(tensor: TensorType, multiple: int) -> TensorType:
    """Returns the type of the memory a tensor lies in: itself, but for its innermost extent."""
    if multiple == 1 or tensor.rank == 0:
        return tensor
    inner = tensor.rank - 1 if tensor.order is None else tensor.order[-1]
    size = tensor.shape[inner]
    if is_symbolic(size):
        return tensor
    room = -(-size // multiple) * multiple
    shape = (*tensor.shape[:inner], room, *tensor.shape[inner + 1 :])
    return TensorType(tensor.dtype, shape, tensor.order)


def keeps_to(view: View, multiple: int) -> bool:
    """Tells whether rows of a view begin at multiples of elements; symbolic places are taken to."""
    if multiple == 1 or view.rank == 0 or view.numel == 0:
        return True
    if is_symbolic((view.offset, view.shape, view.strides)):
        return True
    steps = [s for n, s in zip(view.shape, view.strides, strict=True) if n != 1 and s != 0]
    inner = steps.count(1)
    apart = all(step == 1 or step % multiple == 0 for step in steps)
    return inner <= 1 and apart and view.offset % (multiple * view.element_size) == 0


def is_apart(view: View) -> bool:
    """Tells whether no two elements of a view lie in one place, dense or not."""
    if view.is_dense or is_symbolic((view.shape, view.strides)):
        return view.is_dense
    pairs = ((s, n) for n, s in zip(view.shape, view.strides, strict=True) if n != 1)
    reach = 1
    for stride, size in sorted(pairs):
        if stride < reach:
            return False
        reach = stride * size
    return True
