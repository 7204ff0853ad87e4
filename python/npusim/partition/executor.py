"""DAGExecutor: runs a partition plan, its programs on a device and the rest in PyTorch.

Owns the order of a run, and the states that no single program keeps. Everything that can be done
before inputs are known is done once: programs are loaded, weights prepared, what depends on weights
alone is computed.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npusim import _runtime
from npusim.errors import Error, ShapeError, UnsupportedOpError, WeightMismatchError
from npusim.partition.crossing import Held, check_given, is_for_host, shape_of
from npusim.partition.forms import Form, Forms
from npusim.partition.native import NativeRun, Values
from npusim.partition.placement import refuse_fallback
from npusim.partition.plan import NATIVE, PYTORCH, Partition, PartitionPlan, TransferOp
from npusim.partition.support import host_refusal
from npusim.runtime.device import Device
from npusim.runtime.native import native_device
from npusim.runtime.plain_tensors import plain
from npusim.runtime.weights import Progress, WeightSource

if TYPE_CHECKING:
    from torch import Tensor


class DAGExecutor:
    """A partition plan made ready for a device.

    Args:
        plan: what `npusim.partition` made, or `PartitionPlan.load` read.
        device: a device or its name.
        fallback: "cpu" runs in PyTorch what is not native; "error" refuses a plan that needs it.
        summary: write one line to stderr when PyTorch runs a part: how much, and which.

    One thread may run it at a time.

    Raises:
        UnsupportedOpError: the plan needs PyTorch, and fallback is "error"; or PyTorch lacks an
            operator here.
        Error: the plan needs PyTorch, which is not installed.
        ProgramFormatError: a program is for another device.
        DeviceError: no such device.
    """

    def __init__(
        self,
        plan: PartitionPlan,
        device: str | _runtime.Device = "cpu",
        *,
        fallback: str = "cpu",
        summary: bool = True,
    ) -> None:
        if fallback not in ("cpu", "error"):
            raise Error(f"fallback is {fallback!r}; it is 'cpu' or 'error'.")
        if fallback == "error":
            refuse_fallback(plan.graph, plan.verdicts, plan.target)
        if any(not p.is_native for p in plan.partitions):
            _require_torch(plan)
        self.plan = plan
        self.device = Device(device) if isinstance(device, str) else native_device(device)
        self._natives = {p.index: NativeRun(p, self.device) for p in plan.partitions if p.is_native}
        self._forms = Forms(plan, {i: native.inputs for i, native in self._natives.items()})
        self._fixed: Values = {}
        self._carried: Values = {}
        self._loaded = False
        self._last_uses = _last_uses(plan)
        self._to_host = {t.value for t in plan.transfers if t.to == PYTORCH}
        self._to_device = {t.value for t in plan.transfers if t.to == NATIVE}
        if summary and plan.fallback_nodes:
            print(plan.summary(), file=sys.stderr)

    def load_weights(
        self,
        weights: WeightSource | None,
        *,
        copy: bool = False,
        progress: Progress | None = None,
    ) -> DAGExecutor:
        """Loads a checkpoint, once for all partitions, and returns the executor.

        Files are mapped into memory: what several partitions read is there once.

        Args:
            weights: as `npusim.load_weights` takes them; None for a model without any.
            copy: as `npusim.load_weights` has it, and of what PyTorch reads as well.
            progress: as `npusim.load_weights` has it, for one partition after the other.

        Raises:
            WeightMismatchError: tensors are missing or do not fit; all are listed at once.
            ProgramFormatError: a `.safetensors` file is malformed.
            Error: a file cannot be read.
        """
        problems = []
        for native in self._natives.values():
            try:
                native.load(weights, copy, progress)
            except WeightMismatchError as error:
                problems.append(str(error))
        try:
            self._forms.load(weights, copy)
        except WeightMismatchError as error:
            problems.append(str(error))
        if problems:
            raise WeightMismatchError("\n".join(dict.fromkeys(problems)))
        self._fixed = {}
        for step in self.plan.steps:
            if isinstance(step, Partition) and step.at_load:
                self._run(step, self._fixed, self._forms.greatest())
        self._forms.check_files()
        self._loaded = True
        self.reset()
        return self

    def reset(self) -> None:
        """Makes every state zero again."""
        for native in self._natives.values():
            native.reset()
        types = self.plan.graph.types
        self._carried = {
            name: Held(name, types[name], self.device) for name in self.plan.carried_states
        }

    def execute(
        self,
        inputs: Mapping[str, Any] | Sequence[Any] = (),
        *,
        seconds: list[list[float]] | None = None,
    ) -> dict[str, Any]:
        """Runs the model and returns its outputs by name.

        Args:
            inputs: a tensor for every input of the graph, by name or in order. NumPy arrays in,
                NumPy arrays out; torch in, torch out; others as `npusim.Session` takes them.
            seconds: receives the times of this run's steps, those of `plan.steps` that do not run
                at load, in order. A copy that a step has started counts where it is waited for.

        Raises:
            ShapeError: a wrong number of inputs, an unknown name, shape, dtype or device.
            WeightMismatchError: the model has weights, and `load_weights` was not called.
            Error: a kernel met a value it cannot serve, or PyTorch refused an operator.
        """
        if not self._loaded:
            self._require_no_weights()
        given = {name: plain(x, name) for name, x in self._by_name(inputs).items()}
        like = next(iter(given.values()), None)
        form = self._forms.for_call([shape_of(name, x) for name, x in given.items()])
        values = {**self._fixed, **self._carried}
        for name, x in given.items():
            check_given(name, form.types[name], x)
            values[name] = Held(name, form.types[name], self.device, given=x)
        wanted = (
            self._to_host | self.plan.graph.output_values if is_for_host(like) else self._to_host
        )
        times: list[float] = []
        for index, step in enumerate(self.plan.steps):
            start = time.perf_counter()
            if isinstance(step, TransferOp):
                self._transfer(step, values, form)
            elif not step.at_load:
                self._run(step, values, form, wanted)
            if not step.at_load:
                times.append(time.perf_counter() - start)
            for name in self._last_uses[index]:
                values.pop(name, None)
        results = self._results(values, like)
        self._forms.check_files()
        if seconds is not None:
            seconds.append(times)
        return results

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Runs the model as `execute` does, and returns its outputs in order."""
        names = [value.name for value in self.plan.graph.inputs]
        twice = sorted(set(names[: len(args)]) & set(kwargs))
        if len(args) > len(names) or twice:
            what = f"{twice[0]!r} twice" if twice else f"{len(args)}"
            raise ShapeError(
                f"The model takes {len(names)} inputs ({', '.join(names)}), not {what}."
            )
        return tuple(self.execute({**dict(zip(names, args, strict=False)), **kwargs}).values())

    def state(self, name: str) -> Any:
        """Returns a copy of a state as an array; bfloat16 comes as float32.

        Raises:
            ShapeError: the model has no such state.
        """
        if name in self._carried:
            return self._carried[name].copy().like(None)
        for native in self._natives.values():
            if name in native.states:
                return native.state_of(name)
        known = ", ".join(s.name for s in self.plan.graph.states) or "none"
        raise ShapeError(f"The model has no state '{name}'; it has: {known}.")

    def _require_no_weights(self) -> None:
        if self.plan.graph.weights:
            raise WeightMismatchError(
                f"'{self.plan.graph.name}' has weights, and none are loaded.",
                hint="Call load_weights first.",
            )
        self.load_weights(None)

    def _by_name(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        names = [value.name for value in self.plan.graph.inputs]
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(names):
                raise ShapeError(
                    f"The model takes {len(names)} inputs ({', '.join(names)}), not {len(inputs)}."
                )
            return dict(zip(names, inputs, strict=True))
        if set(inputs) != set(names):
            wrong = sorted(map(str, set(names) ^ set(inputs)))
            raise ShapeError(
                f"The model's inputs are {', '.join(names) or 'none'}; "
                f"missing or unknown: {', '.join(wrong)}."
            )
        return {name: inputs[name] for name in names}

    def _transfer(self, step: TransferOp, values: Values, form: Form) -> None:
        """Starts a copy that has not been started where its value was made."""
        held = values[step.value]
        if step.to == NATIVE:
            held.buffer(form.wanted.get(step.value))
        else:
            held.start_download()

    def _run(
        self, step: Partition, values: Values, form: Form, wanted: Collection[str] = ()
    ) -> None:
        """Runs a partition. What it makes starts to cross at once: `wanted` to the host."""
        if step.is_native:
            results = self._natives[step.index].run(values, form.inputs[step.index])
            for name, buffer in results.items():
                values[name] = Held(name, form.types[name], self.device, buffer=buffer)
                if name in wanted:
                    values[name].start_download()
            return

        def made(name: str, tensor: Tensor) -> None:
            values[name] = Held(name, form.types[name], self.device, tensor=tensor)
            if name in self._to_device:
                values[name].buffer(form.wanted.get(name))

        form.hosts[step.index](lambda name: values[name].tensor(), made)

    def _results(self, values: Values, like: Any) -> dict[str, Any]:
        """Returns the outputs, and keeps what the run leaves in the carried states."""
        graph = self.plan.graph
        kept = {u.name: values[u.value] for u in graph.updates if u.name in self._carried}
        # A caller may write to what it gave and to what it gets: states have memory of their own.
        self._carried.update((name, held.copy()) for name, held in kept.items())
        return {o.name: values[o.value].like(like) for o in graph.outputs}


def _last_uses(plan: PartitionPlan) -> list[list[str]]:
    """Returns, for each step, the values that no later one reads and nobody sees outside."""
    last: dict[str, int] = {}
    for index, step in enumerate(plan.steps):
        if isinstance(step, Partition):
            last.update(dict.fromkeys((*step.inputs, *step.outputs), index))
    done: list[list[str]] = [[] for _ in plan.steps]
    for name, index in last.items():
        if name not in plan.graph.output_values:
            done[index].append(name)
    return done


def _require_torch(plan: PartitionPlan) -> None:
    """Checks that PyTorch is here and has, and may run, every operator: a plan may be a file."""
    if importlib.util.find_spec("torch") is None:
        raise Error(
            f"{plan.summary()}; and PyTorch is not installed.", hint="pip install 'npusim[torch]'"
        )
    ops = dict.fromkeys(n.op for p in plan.partitions if not p.is_native for n in p.graph.nodes)
    refused = [(op, host_refusal(op)) for op in ops]
    lines = [f"\n  {op}: {why}" for op, why in refused if why is not None]
    if lines:
        raise UnsupportedOpError(f"PyTorch cannot run operators of the plan here:{''.join(lines)}")
