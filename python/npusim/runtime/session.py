"""Session: a compiled model that is called like a function; and `load`, the short way to one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from npusim import _runtime
from npusim.errors import DeviceError, Error, ShapeError
from npusim.ir.notebook import cut, table
from npusim.ir.symbolic import is_symbolic
from npusim.program.program import TensorSpec
from npusim.runtime.cuda_array_calls import CudaArrayCalls, is_foreign
from npusim.runtime.device import Device, DeviceBuffer
from npusim.runtime.executor import Executor
from npusim.runtime.host import (
    dtype_of,
    is_bfloat16_array,
    is_cuda_array,
    is_dlpack,
    is_torch,
    torch_bits,
)
from npusim.runtime.host_arrays import as_library, host_arrays, taker
from npusim.runtime.native import ProgramLike, native_device, native_program
from npusim.runtime.plain_tensors import is_plain, plain, require_no_tracing
from npusim.runtime.torch_calls import TorchCalls, makers
from npusim.runtime.weights import Progress, WeightSource, load_weights


def load(
    program: ProgramLike,
    weights: WeightSource | _runtime.Weights | None = None,
    device: str | _runtime.Device = "cpu",
    threads: int | None = None,
    method: str | None = None,
    *,
    copy: bool = False,
    max_work: int | None = None,
    max_memory: int | None = None,
    progress: Progress | None = None,
) -> Session:
    """Loads a program and its weights and returns a callable.

    Args:
        program: the path of a `.npubin` file, or a CompiledProgram.
        weights: as `load_weights` takes them, or what it returned; None when there are none.
        device: a device or its name.
        threads: workers of the device, when it is given by name; None: one a physical core.
        method: the method to call; by default the first.
        copy: as `load_weights` has it: weights of the session's own, whatever becomes of the file.
        max_work: the most steps that a method may take, of a device given by name: see `Device`.
        max_memory: the most bytes that the program may declare, likewise.
        progress: as `load_weights` has it.

    Raises:
        Error: a method takes more steps than `max_work`, or the program declares more memory than
            `max_memory`.
        What `Device`, `load_weights` and `Executor` raise.
    """
    native = native_program(program)
    if isinstance(device, str):
        device = Device(device, threads=threads, max_work=max_work, max_memory=max_memory)
    else:
        native_device(device)
        options = {"threads": threads, "max_work": max_work, "max_memory": max_memory}
        for option in (name for name, value in options.items() if value is not None):
            raise DeviceError(
                f"{option} is an option of Device.", hint="Pass it where the device is made."
            )
    if not isinstance(weights, _runtime.Weights):
        weights = load_weights(weights, native, device, copy=copy, progress=progress)
    elif copy and weights.in_place:
        raise Error(
            "These weights are loaded already, and used where they lie.",
            hint="Give copy=True to load_weights.",
        )
    return Session(Executor(native, device), weights, method)


class Session(_runtime.Session):
    """A method of a program with its weights: `y, = session(x)`.

    Call it with the inputs in order or by name. NumPy arrays in, NumPy arrays out, as for what else
    shows host memory (memoryviews, `__array_interface__`); torch in, torch out; other DLPack
    tensors give the array type of their library where it can take DLPack, else a DeviceBuffer. The
    outputs come as a flat tuple, in order. Arrays may have any strides; a contiguous one is used in
    place. Nothing is cast, but see `npusim.runtime.host` on bfloat16: results of it come as
    float32, or as `ml_dtypes.bfloat16` where an input came so.

    A device with memory of its own uses tensors that lie there in place, and gives outputs there.
    When the call returns, the work stands in the current stream of the tensors' library (of
    DeviceBuffers, in `device.stream`); it is waited for only where the method can meet a value it
    cannot serve. What lies in host memory is uploaded, and the outputs come back to host memory.

    Raises (when called):
        ShapeError: a wrong number of inputs, an unknown name, shape, dtype or device.
        DeviceError: the session is running on another thread.
        Error: a kernel met a value it cannot serve, such as an index out of range.
    """

    def __init__(
        self, executor: Executor, weights: _runtime.Weights | None, method: str | None = None
    ) -> None:
        if weights is not None:
            weights.check()
        index = executor._native.method_index(method or "")
        super().__init__(executor._native, weights, index)
        self._index = index
        self._torch: TorchCalls | None = None
        self._cuda_arrays: CudaArrayCalls | None = None
        self.executor = executor
        self.weights = weights
        self.method = method or executor.methods[0]
        self.inputs = executor.inputs(method)
        self.outputs = executor.outputs(method)
        self._symbolic = any(is_symbolic(spec.shape) for spec in self.inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        # By what it is made of: program, device and the state in the executor, and weights.
        return type(self), (self.executor, self.weights, self.method)

    def __repr__(self) -> str:
        given = ", ".join(f"{s.name}: {s.dtype}{list(s.shape)}" for s in self.inputs)
        made = ", ".join(f"{s.dtype}{list(s.shape)}" for s in self.outputs)
        return f"Session({self.method}({cut(given)}) -> {cut(made)} on {self.device.name})"

    def _repr_html_(self) -> str:
        rows = [("input", s.name, s.dtype, list(s.shape)) for s in self.inputs]
        rows += [("output", s.name, s.dtype, list(s.shape)) for s in self.outputs]
        return table(repr(self), ("", "name", "dtype", "shape"), rows)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of a call's positional arguments."""
        return tuple(spec.name for spec in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, in the order of what a call returns.

        A model's lone result is `output`, the elements of a tuple are `output_0`, `output_1` …;
        entries of dicts and dataclasses keep their keys, deeper levels are joined with dots.
        """
        return tuple(spec.name for spec in self.outputs)

    @property
    def device(self) -> _runtime.Device:
        """The device the session runs on."""
        return self.executor.device

    def _call_slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Serves every call that is not plain contiguous NumPy; called from C++."""
        if kwargs:
            given = self._by_name(args, kwargs)
            return self(*(given[spec.name] for spec in self.inputs))
        if args and not kwargs and is_torch(args[0]):
            results = self._call_torch(args)
            if results is not None:
                return results
        if args and not kwargs and is_foreign(args[0]):
            results = self._call_cuda_arrays(args)
            if results is not None:
                return results
        arrays = host_arrays(args)
        if arrays is not None:
            return as_library(args[0], self(*arrays))
        given = self._by_name(args, kwargs)
        device = self.device
        buffers = {
            spec.name: as_buffer(given[spec.name], device, spec) for spec in self._wanted(given)
        }
        named = self.executor.run(buffers, self.weights, self.method)
        like = next(filter(is_bfloat16_array, given.values()), next(iter(given.values()), None))
        return tuple(tensor_like(like, named[spec.name]) for spec in self.outputs)

    def _wanted(self, given: dict[str, Any]) -> list[TensorSpec]:
        """Returns the inputs of a call, without symbolic sizes."""
        if not self._symbolic:
            return self.inputs
        shapes = [tuple(getattr(given[spec.name], "shape", ())) for spec in self.inputs]
        return self.executor.specs_for(shapes, self.method)[0]

    def _is_lazy(self, kind: type) -> Callable[[Any], bool] | None:
        """Returns what tells, of a tensor of a type, that its bits are not its values; for C++."""
        torch = sys.modules.get("torch")
        if torch is None or kind is not torch.Tensor:
            return None
        require_no_tracing()
        is_negative: Callable[[Any], bool] = vars(torch)["Tensor"].is_neg
        return is_negative

    def _count_modes(self, kind: type) -> Callable[[], int] | None:
        """Returns what counts PyTorch's active dispatch modes, in which it makes other tensors."""
        torch = sys.modules.get("torch")
        if torch is None or kind is not torch.Tensor:
            return None
        count: Callable[[], int] | None = getattr(torch._C, "_len_torch_dispatch_stack", None)
        return count

    def _tensor_makers(self, kind: type, sizes: Sequence[int]) -> list[Callable[[], Any]] | None:
        """Returns what makes each output as a tensor of a type, for C++; None: no such type.

        Args:
            sizes: the values of the symbolic sizes.
        """
        outputs = self.executor.outputs_at(sizes, self.method) if sizes else self.outputs
        if kind is DeviceBuffer:
            return [partial(DeviceBuffer.for_result, self.device, spec) for spec in outputs]
        return makers(kind, outputs, self.device)

    def _call_torch(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Serves PyTorch tensors that fit as they are; None for others."""
        require_no_tracing()
        if self._torch is None:
            self._torch = TorchCalls(self.inputs, self.outputs)
        if self._symbolic and not args[0].is_cpu:
            return None
        if not all(map(is_torch, args)) or not all(map(is_plain, args)):
            return None
        if args[0].is_cpu:
            arrays = self._torch.arrays(args)
            if arrays is None:
                return None
            import torch

            return tuple(map(torch.from_numpy, self(*arrays)))
        native, index = self.executor._native, self._index
        return self._torch.run(args, native, self.device, index, self.weights)

    def _call_cuda_arrays(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Serves foreign arrays of a GPU that fit and name their stream; None for others."""
        if not self.device.speaks_cuda:
            return None
        if self._cuda_arrays is None:
            self._cuda_arrays = CudaArrayCalls(self.inputs, self.outputs)
        native, index = self.executor._native, self._index
        return self._cuda_arrays.run(args, native, self.device, index, self.weights)

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = [spec.name for spec in self.inputs]
        given = dict(zip(names, args, strict=False))
        twice = sorted(set(given) & set(kwargs))
        given.update(kwargs)
        if len(args) > len(names) or twice or set(given) != set(names):
            count = len(args) + len(kwargs)
            wanted = ", ".join(f"{s.name}: {s.dtype}{list(s.shape)}" for s in self.inputs)
            named = f" (by name: {', '.join(kwargs)})" if kwargs else ""
            raise ShapeError(
                f"method '{self.method}' takes {len(names)} inputs ({wanted}); got {count}{named}."
            )
        return given


def as_buffer(
    value: Any, device: _runtime.Device, spec: TensorSpec
) -> DeviceBuffer | _runtime.DeviceBuffer:
    """Returns a buffer that shows a tensor of any library; copies only what cannot be lent.

    Raises:
        ShapeError: another shape or dtype than the spec's, elsewhere, or no tensor at all.
    """
    if isinstance(value, _runtime.DeviceBuffer):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return DeviceBuffer.from_numpy(value, device, spec)
    if not is_dlpack(value) and is_cuda_array(value):
        return DeviceBuffer.from_cuda_array(value, device)
    if not is_dlpack(value):
        raise ShapeError(
            f"'{spec.name}' is a {type(value).__name__}.",
            hint="Pass a NumPy array, a torch tensor, or any tensor that speaks DLPack.",
        )
    if not is_torch(value) and not hasattr(value, "shape") and _is_on_host(value):
        return DeviceBuffer.from_numpy(np.from_dlpack(value), device, spec)
    if is_torch(value):
        value = plain(value, spec.name)
    _check_tensor(value, spec, device)
    if is_torch(value):
        value = value.contiguous()
    dense = spec.shape == spec.alloc_shape
    if dense and (device.host_visible or not _is_on_host(value)):
        return DeviceBuffer.from_dlpack(value, device)
    if not is_torch(value):
        return DeviceBuffer.from_numpy(np.from_dlpack(value), device, spec)
    return DeviceBuffer.from_bits(torch_bits(value.cpu()), device, spec)


def _is_on_host(value: Any) -> bool:
    return int(value.__dlpack_device__()[0]) in (1, 3)


def _check_tensor(value: Any, spec: TensorSpec, device: _runtime.Device) -> None:
    shape, dtype = tuple(value.shape), dtype_of(value)
    if is_torch(value) and value.device.type != "cpu" and str(value.device) != device.torch_name:
        own = device.torch_name
        here = "the cpu" if device.uses_host_memory or own is None else f"{own} or the cpu"
        raise ShapeError(
            f"'{spec.name}' is on {value.device}, expected {here}.",
            hint=f"Pass {spec.name}.cpu().",
        )
    if shape != spec.shape:
        raise ShapeError(f"'{spec.name}' has shape {list(shape)}, expected {list(spec.shape)}.")
    if dtype != spec.dtype:
        cast = f"{spec.name}.to(torch.{spec.dtype})" if is_torch(value) else "a cast"
        raise ShapeError(
            f"'{spec.name}' has dtype {dtype}, expected {spec.dtype}.", hint=f"Pass {cast}."
        )


def tensor_like(like: Any, buffer: DeviceBuffer) -> Any:
    """Returns a buffer as the kind of tensor `like` is."""
    if isinstance(like, _runtime.DeviceBuffer):
        return buffer
    if is_torch(like):
        import torch

        if buffer.device.host_visible or like.device.type != "cpu":
            return torch.from_dlpack(buffer)
        return torch.from_numpy(buffer.to_numpy()).to(getattr(torch, buffer.dtype))
    on_host = isinstance(like, (np.ndarray, np.generic)) or like is None
    if on_host or (is_dlpack(like) and _is_on_host(like) and not buffer.device.uses_host_memory):
        array = buffer.to_numpy()
        given = buffer.dtype == "bfloat16" and is_bfloat16_array(like)
        return array.astype(like.dtype) if given else array
    from_dlpack = taker(like)
    return from_dlpack(buffer) if from_dlpack else buffer
