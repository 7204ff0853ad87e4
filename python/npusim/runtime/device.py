"""Device and DeviceBuffer: where programs run, and tensors that live there."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npusim import _runtime
from npusim.errors import DeviceError, ShapeError
from npusim.ir.symbolic import is_symbolic, lower, upper
from npusim.program.program import TensorSpec
from npusim.runtime.host import (
    Array,
    dtype_of,
    from_bfloat16_bits,
    numpy_dtype,
    to_bfloat16_bits,
)
from npusim.runtime.libraries import library_folders
from npusim.runtime.plain_tensors import plain

logger = logging.getLogger(__name__)

_DL_CPU, _DL_CUDA_HOST = 1, 3  # DLPack's device types in host memory


class Device(_runtime.Device):
    """A device to run programs on.

    Args:
        name: "cpu"; "cuda"; "metal" (macOS); or "null", which accepts every program and computes
            nothing.
        threads: workers of a cpu device, the calling thread included; None: one a physical core.
        pin_threads: keep each worker on a core of its own (Linux).
        isa: instruction set of a cpu device, of those `npusim doctor` lists; None: the one in the
            environment variable NPUSIM_ISA, or the best.
        ordinal: which of several cuda or metal devices, as the driver or Metal numbers them.
        max_work: on the cpu, the most steps that a method may take, as `npusim info` counts them;
            loading refuses more. None: any number.
        max_memory: the most bytes of memory that a program may declare, as `npusim info` counts
            them; loading refuses more before it takes any. None: any number.
        options: those of other devices. An option that is None is not given.

    Raises:
        DeviceError: no such device, driver or instruction set here, an option that the device does
            not have, or one it cannot serve.

    Attributes:
        description: processor, instruction set and threads, for people.
    """

    def __init__(
        self,
        name: str = "cpu",
        *,
        threads: int | None = None,
        pin_threads: bool | None = None,
        isa: str | None = None,
        ordinal: int | None = None,
        max_work: int | None = None,
        max_memory: int | None = None,
        **options: bool | int | str | None,
    ) -> None:
        for limit, of, value in (
            ("max_work", "steps", max_work),
            ("max_memory", "bytes", max_memory),
        ):
            if value is not None and value < 1:
                raise DeviceError(f"{limit} is a count of {of} from 1 on, got {value}.")
        options |= {"threads": threads, "pin_threads": pin_threads, "isa": isa}
        options |= {"ordinal": ordinal, "max_work": max_work, "max_memory": max_memory}
        given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
        folders = library_folders()
        super().__init__(name, given, folders, _make_kernels)
        self._options = given
        logger.info("device %s: %s", name, self.description)
        if logger.isEnabledFor(logging.INFO):
            _log_parts(name, folders)

    def __reduce__(self) -> tuple[Any, ...]:
        # The device of that name, with these options, of the process that reads this.
        return partial(type(self), **self._options), (self.name,)

    def __repr__(self) -> str:
        return f"Device({self.name!r}: {self.description})"


def _log_parts(name: str, folders: list[str]) -> None:
    """Says what a device found of what it uses besides its own, such as libraries of kernels."""
    for part, found, is_there in _runtime.device_parts(name, folders):
        logger.info("%s %s", part, found if is_there else f"is not there: {found}")


def _make_kernels(kernels: list[tuple[str, str, bytes, bytes]]) -> list[bytes] | str:
    """Has code generation make device code for the sizes of a call.

    It is imported when it is needed: running prepared sizes takes no compiler.
    """
    made: list[bytes] | str = import_module("npusim.codegen.made_kernels").make_images(kernels)
    return made


class DeviceBuffer(_runtime.DeviceBuffer):
    """A tensor on a device: dense, row-major, padded to `alloc_shape` where the target asks for it.

    Speaks DLPack (`torch.from_dlpack(buffer)`) without a copy; where the host can read the device's
    memory, the buffer protocol as well (`np.asarray(buffer)`), and on a cuda device
    `__cuda_array_interface__`. A metal device's buffers are the host's for DLPack. What is shown so
    keeps the buffer's memory. Zero when made by the constructor
    `DeviceBuffer(device, dtype, shape, alloc_shape=None)`.

    `from_numpy` and `from_dlpack` share memory with what they are given, and keep it alive: what
    either side writes, both see, and a run over such a buffer is waited for. A cpu device shares
    whatever is contiguous and aligned; a metal device what is at least a page (16 KiB on Macs),
    begins at a multiple of 16 bytes, and overlaps nothing that it shares already but lies in it or
    apart from it. What cannot be shared is copied, or with `copy=False` refused.
    """

    @classmethod
    def from_spec(cls, device: _runtime.Device, spec: TensorSpec) -> DeviceBuffer:
        """Returns a zeroed buffer for an input or output of a program."""
        return cls(device, spec.dtype, spec.shape, spec.alloc_shape)

    @classmethod
    def for_result(cls, device: _runtime.Device, spec: TensorSpec) -> DeviceBuffer:
        """Returns a buffer for an output that a run is about to write: only its padding is zero."""
        return cls(device, spec.dtype, spec.shape, spec.alloc_shape, zero=False)

    @classmethod
    def from_numpy(
        cls,
        array: ArrayLike,
        device: _runtime.Device,
        spec: TensorSpec | None = None,
        *,
        copy: bool | None = None,
    ) -> DeviceBuffer:
        """Returns a buffer that shows an array.

        Shares the array's memory when that is possible: a device that can use it, a contiguous
        array, no padding. A buffer over a read-only array is read-only.

        Args:
            array: any NumPy array of the spec's dtype; strides are free. For bfloat16, also
                float32, which is rounded to a copy.
            device: where the buffer lives.
            spec: an input of the program; by default the array's own dtype and shape. A symbolic
                size in its shape stands for any up to its greatest value; the run says more.
            copy: True: always copies. False: refuses what cannot be shared. None: copies that.

        Raises:
            ShapeError: another shape or dtype than the spec's, a dtype npusim does not have, or an
                array that would be copied though `copy` is False.
        """
        given = np.asarray(plain(array, "array" if spec is None else spec.name))
        if spec is None:
            spec = TensorSpec("array", 0, dtype_of(given), given.shape, given.shape)
        raw = _raw(given, spec)
        if copy is False and raw.dtype.itemsize != given.dtype.itemsize:
            raise _unshared(spec, "it is rounded to bfloat16")
        if is_symbolic(spec.shape):
            spec = replace(spec, shape=given.shape, alloc_shape=given.shape)
        return cls.from_bits(raw, device, spec, copy=copy)

    @classmethod
    def from_bits(
        cls,
        given: Array,
        device: _runtime.Device,
        spec: TensorSpec,
        *,
        copy: bool | None = None,
    ) -> DeviceBuffer:
        """Returns a buffer that shows an array, as `from_numpy`; bfloat16 is given as uint16."""
        if spec.shape == spec.alloc_shape and _is_plain(given):
            return cls(device, spec.dtype, spec.shape, array=given, copy=copy)
        if copy is False:
            padded = spec.shape != spec.alloc_shape
            why = "the buffer is padded" if padded else "it is not contiguous, aligned and native"
            raise _unshared(spec, why)
        if device.uses_host_memory:
            buffer = cls.from_spec(device, spec)
            np.asarray(buffer)[...] = given
        else:
            buffer = cls.for_result(device, spec)
            buffer.write(np.ascontiguousarray(_padded(given, spec), given.dtype.newbyteorder("=")))
        return buffer

    @classmethod
    def from_dlpack(
        cls, tensor: Any, device: _runtime.Device, *, copy: bool | None = None
    ) -> DeviceBuffer:
        """Returns a buffer that shows a contiguous tensor of any DLPack library.

        Shares its memory; the device waits for what its library has queued on it. On a GPU, one
        that does not start at a multiple of 16 bytes is copied there; a metal device shares what
        it can of tensors of the host, as arrays, and copies others.

        Args:
            tensor: on the device; for a cpu or metal device, in the host's memory.
            device: where the buffer lives.
            copy: as `from_numpy` has it.

        Raises:
            ShapeError: the tensor is elsewhere, is not contiguous, is read-only, has a dtype npusim
                lacks, or would be copied though `copy` is False.
        """
        tensor = plain(tensor, "the tensor")
        kind, index = map(int, tensor.__dlpack_device__())
        if device.host_visible:
            if kind not in (_DL_CPU, _DL_CUDA_HOST):
                hint = "Copy it to the cpu first."
                raise ShapeError("the tensor is not in host memory.", hint=hint)
            return cls(device, _capsule(tensor), copy)
        if (kind, index) != device.dlpack_device:
            where = f"{device.name}:{device.ordinal}"
            raise ShapeError(f"the tensor is not on {where}.", hint="Copy it there first.")
        stream = {"stream": device.stream} if device.has_streams else {}
        return cls(device, _capsule(tensor, **stream))._aligned(copy)

    @classmethod
    def from_cuda_array(cls, array: Any, device: _runtime.Device) -> DeviceBuffer:
        """Returns a buffer that shows an object with `__cuda_array_interface__`, as from_dlpack.

        Raises:
            ShapeError: the array is elsewhere, is not contiguous, or has a dtype npusim lacks.
        """
        given = array.__cuda_array_interface__
        shape, (address, _) = tuple(given["shape"]), given["data"]
        dtype = np.dtype(given["typestr"])
        if not is_row_major(shape, given.get("strides"), dtype.itemsize):
            raise ShapeError("the array is not contiguous.", hint="Copy it first.")
        if address and not device.holds(address):
            raise ShapeError(f"the array is not on {device.name}:{device.ordinal}.")
        if given.get("stream") is not None:
            device.wait_for(given["stream"])
        name = dtype_of(np.empty(0, dtype))
        return cls(device, name, shape, address=address, owner=array)._aligned()

    def _aligned(self, copy: bool | None = None) -> DeviceBuffer:
        """Returns the buffer, or a copy that begins where kernels can read it, or is asked for."""
        if self.is_aligned and not copy:
            return self
        if copy is False:
            raise ShapeError(
                f"the tensor does not begin at a multiple of {self.device.alignment} bytes, and "
                "would be copied.",
                hint="Leave copy out, or say copy=True.",
            )
        twin = type(self)(self.device, self.dtype, self.shape)
        twin.copy_from(self)
        return twin

    def to_numpy(self, spec: TensorSpec | None = None) -> Array:
        """Returns the tensor as a NumPy array without its padding.

        The array shares the buffer's memory where the host can read that, and keeps it alive; a run
        over a buffer that was shown so is waited for. bfloat16 comes as a float32 copy.

        Args:
            spec: an output of the program, to be checked against the buffer.

        Raises:
            ShapeError: the buffer is not what the spec says.
            DeviceError: the work that computes it failed on the device.
        """
        if spec is not None and (spec.dtype, spec.shape) != (self.dtype, self.shape):
            raise ShapeError(
                f"'{spec.name}' is {spec.dtype}{list(spec.shape)}, the buffer holds "
                f"{self.dtype}{list(self.shape)}."
            )
        if self.device.host_visible:
            array = np.asarray(self)
        else:
            raw = np.dtype("uint16") if self.dtype == "bfloat16" else numpy_dtype(self.dtype)
            whole = np.empty(self.alloc_shape, raw)
            self.read_into(whole)
            corner: tuple[Any, ...] = (..., *_corner(self.shape))
            array = whole[corner]  # of a scalar too, a view
        return from_bfloat16_bits(array) if self.dtype == "bfloat16" else array

    def __array__(self, *_: Any, **__: Any) -> Array:
        """Is asked by NumPy where the buffer protocol refused, and says why that did.

        NumPy would make an array of one object otherwise.
        """
        try:
            return np.asarray(memoryview(self))
        except BufferError as error:
            raise error.__cause__ or error from None

    def __reduce__(self) -> tuple[Any, ...]:
        shapes = (self.dtype, tuple(self.shape), tuple(self.alloc_shape))
        return _buffer_of, (type(self), self.device, *shapes, self.read())

    def __repr__(self) -> str:
        return f"DeviceBuffer({self.dtype}{list(self.shape)} on {self.device.name})"


def _buffer_of(
    kind: type[DeviceBuffer],
    device: _runtime.Device,
    dtype: str,
    shape: tuple[int, ...],
    alloc_shape: tuple[int, ...],
    content: bytes,
) -> DeviceBuffer:
    buffer = kind(device, dtype, shape, alloc_shape)
    buffer.write(content)
    return buffer


def _unshared(spec: TensorSpec, why: str) -> ShapeError:
    return ShapeError(
        f"'{spec.name}' cannot be shared with the device: {why}.",
        hint="Leave copy out, or say copy=True.",
    )


def _capsule(tensor: Any, **stream: int) -> Any:
    """Returns what a tensor lends by DLPack."""
    try:
        return tensor.__dlpack__(**stream)
    except BufferError as error:  # DLPack's word for what a library does not lend
        raise ShapeError(
            f"the tensor cannot be lent by DLPack: {str(error).rstrip('.')}.",
            hint="Pass a NumPy array to DeviceBuffer.from_numpy, or a copy.",
        ) from error


def _corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(0, extent) for extent in shape)


def _padded(array: Array, spec: TensorSpec) -> Array:
    if spec.shape == spec.alloc_shape:
        return array
    padded = np.zeros(spec.alloc_shape, array.dtype)
    padded[_corner(spec.shape)] = array
    return padded


def is_row_major(shape: tuple[int, ...], strides: Any, itemsize: int) -> bool:
    """Tells whether strides in bytes, or None, are those of a dense row-major array."""
    if strides is None or 0 in shape:
        return True
    dense = (itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
    steps = zip(shape, strides, dense, strict=True)
    return all(extent == 1 or stride == step for extent, stride, step in steps)


def _is_plain(array: Array) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative)


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    if not is_symbolic(spec.shape):
        return shape == spec.shape
    return len(shape) == len(spec.shape) and all(
        lower(size) <= n <= upper(size) for n, size in zip(shape, spec.shape, strict=True)
    )


def _raw(array: Array, spec: TensorSpec) -> Array:
    """Returns the elements as the device stores them, checked against the spec."""
    if not _fits(array.shape, spec):
        raise ShapeError(
            f"'{spec.name}' has shape {list(array.shape)}, expected {list(spec.shape)}."
        )
    given, wanted = dtype_of(array), spec.dtype
    if wanted == "bfloat16" and given == "float32":
        return to_bfloat16_bits(array)
    if given != wanted:
        shown = "float32 (it is rounded)" if wanted == "bfloat16" else wanted
        raise ShapeError(
            f"'{spec.name}' has dtype {given}, expected {shown}.",
            hint=f"Cast it: array.astype('{numpy_dtype(wanted).name}').",
        )
    return array.view(np.uint16) if wanted == "bfloat16" else array
