"""Partitioning: what a target cannot run, PyTorch does; and an exact account of which is which.

Owns the public functions; each loads what it needs when it is called, since `import npusim` brings
this file. `support` gives the verdict on each node, `placement` decides where it runs, `grouping`
cuts the graph, `build` makes partitions of it, `executor` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.ir.graph import Attr, Graph
from npusim.ir.module import Module
from npusim.targets import TargetConfig

if TYPE_CHECKING:
    from npusim.compile import Progress
    from npusim.partition.cost import CostModel
    from npusim.partition.plan import PartitionPlan
    from npusim.partition.report import SupportReport


def check(
    ir: Graph | Module | str | Path,
    target: str | TargetConfig = "cpu",
    *,
    is_supported: Callable[[str, Mapping[str, Attr]], bool] | None = None,
    pin: Mapping[str, str] | None = None,
) -> SupportReport:
    """Reports what a target would run of a model, and what not, why, and at which cost.

    Compiles nothing: `partition` with the same arguments makes the plan that is reported, but that
    an operator which compiles only together with its neighbours may lose them to a cut.

    Args:
        ir: a graph, a Module of several methods, or the path of an IR file.
        target: a target's name, the path of a target file, or a TargetConfig.
        is_supported, pin: as `partition` takes them.

    Raises:
        TargetConstraintError: unknown target.
        GraphError: the model is malformed.
        Error: as `partition`, of the predicate and the pins.
    """
    from npusim.compile import configured
    from npusim.partition.partitioner import Wishes
    from npusim.partition.report import make_report

    return make_report(ir, configured(target), Wishes(is_supported, pin))


def partition(
    ir: Graph | Module | str | Path,
    is_supported: Callable[[str, Mapping[str, Attr]], bool] | None = None,
    target: str | TargetConfig = "cpu",
    *,
    pin: Mapping[str, str] | None = None,
    fallback: str = "cpu",
    quantize: str | None = None,
    precision: str | None = None,
    sizes: Sequence[Mapping[str, int]] = (),
    costs: CostModel | None = None,
    progress: Progress | None = None,
) -> PartitionPlan:
    """Cuts a model into partitions and compiles those that the target runs.

    Args:
        ir: a graph, or the path of an IR file.
        is_supported: called as (op, attrs) for every node, with the operator's name and its
            arguments that are no tensors; False gives the node to PyTorch. True changes nothing:
            the target's own limits hold, which `is_op_supported` tells.
        target: a target's name, the path of a target file, or a TargetConfig.
        pin: places modules by their path: {"decoder.head": "pytorch", "encoder": "native"}. The
            innermost module counts; "" is the whole model. What is pinned is not weighed by cost.
        fallback: "cpu" gives what is not native to PyTorch; "error" refuses it.
        quantize, precision: of what is native, as `npusim.compile` takes them. What PyTorch runs,
            and what crosses, keeps its dtypes.
        sizes: of a model with symbolic sizes, those for which programs bring device code, as
            `npusim.compile` takes them.
        costs: by what to weigh small partitions; by default from the target's file.
        progress: called as (stage, done, total) while compiling.

    Raises:
        UnsupportedOpError: nodes that PyTorch cannot run either; or, with fallback="error", any
            that are not native; or pinned to the device, which cannot run them. All are listed.
        Error: the predicate contradicts itself or a pin, or a pin names no module.
        ShapeError: `sizes` that calls cannot have.
        TargetConstraintError, GraphError: as `compile`.
    """
    from npusim.compile import configured
    from npusim.partition.partitioner import Wishes, graph_of, make_plan

    wishes = Wishes(is_supported, pin, costs, sizes)
    config = configured(target, quantize, precision)
    return make_plan(graph_of(ir), config, wishes, fallback, progress)
