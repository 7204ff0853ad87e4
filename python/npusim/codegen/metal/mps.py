"""What Metal Performance Shaders (MPS) can compute in place of own kernels: products without more.

Its MPSMatrixMultiplication takes matrices of float32 or float16 whose rows, and whose matrices of a
batch, lie at whole rows' distance. It is offered where a target asks for it (`libraries = "all"`):
nobody has measured yet where it is faster, so "auto" leaves all commands to own kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.codegen.library import LibraryProblem, product_problem

NAME = "mps"
_DTYPES = ("float32", "float16")


def mps_problem(stem: str, params: bytes) -> LibraryProblem | None:
    """Returns a command's products, or None where MPS does not compute exactly that."""
    problem = product_problem(stem, params, NAME)
    if problem is None or problem.cast is not None:
        return None
    header = problem.header
    plain = header["dtype"] in _DTYPES and header["activation"] == "none"
    return problem if plain and all(map(_is_plain, header["products"])) else None


def _is_plain(product: Mapping[str, Any]) -> bool:
    """Tells whether matrices of a batch lie at whole rows' distance, and nothing is added."""
    if "bias" in product or "residual" in product:
        return False
    inner = product["k"] if product.get("columns_inside") else product["n"]
    rows = {"x": product["m"], "w": inner, "y": product["m"]}
    return product.get("batch", 1) == 1 or all(
        step >= count * row and row > 0 and step % row == 0
        for count, (_, _, row, step) in ((rows[name], product[name]) for name in rows)
    )
