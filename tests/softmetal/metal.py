"""Metal's API from Python, by messages: what the tests drive the software device with.

Selectors are Apple's; nothing here knows the software device but `set_option` and where its library
lies. Objects are released by `release()`, or all at once by leaving `Device`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = "libsoftmetal.so"
# MTLDataType of what NumPy holds; uint16 as bfloat has to be said.
DATA_TYPES = {"float32": 3, "float16": 16, "int32": 29, "uint32": 33, "int16": 37, "uint16": 41}
DATA_TYPES |= {"int8": 45, "uint8": 49, "bool": 53, "int64": 81, "uint64": 85}
# Of threads: all SIMD groups alike, or one after the other up to a threadgroup barrier.
ALIKE, EAGER = ("forward", "reverse", "shuffle"), ("eager", "eager-reverse")
ORDERS = ALIKE + EAGER
PRIVATE = 2 << 4  # MTLResourceStorageModePrivate
UNTRACKED = 1 << 8


class Size(ctypes.Structure):
    _fields_ = [("width", ctypes.c_ulong), ("height", ctypes.c_ulong), ("depth", ctypes.c_ulong)]


class Range(ctypes.Structure):
    _fields_ = [("location", ctypes.c_ulong), ("length", ctypes.c_ulong)]


class MetalError(Exception):
    """An NSError: `code`, and its localized description."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def size(*numbers: int) -> Size:
    """MTLSize of one to three numbers, 1 where none is given."""
    return Size(*numbers, *(1,) * (3 - len(numbers)))


_runtime: ctypes.CDLL | None = None


def runtime(folder: Path | None = None) -> ctypes.CDLL:
    """The loaded library; the first call says in which folder it was built."""
    global _runtime
    if _runtime is None:
        where = folder or Path(os.environ["NPUSIM_SOFTMETAL"])
        _runtime = ctypes.CDLL(str(where / LIBRARY))
        for name in ("objc_lookUpClass", "sel_registerName", "MTLCreateSystemDefaultDevice"):
            getattr(_runtime, name).restype = ctypes.c_void_p
        _runtime.softmetal_alive.restype = ctypes.c_long
        _runtime.softmetal_counted.restype = ctypes.c_long
    return _runtime


def is_loaded() -> bool:
    """Whether this process has the library."""
    return _runtime is not None


def set_option(name: str, value: object) -> None:
    """A setting of the software device (README.md), such as ORDER."""
    if runtime().softmetal_set(name.encode(), str(value).encode()) != 0:
        raise ValueError(f"{name}={value} is no setting of the software device")


def counted(name: str) -> int:
    """How often the software device has done something so far (engine/counts.cpp has the names)."""
    number = int(runtime().softmetal_counted(name.encode()))
    assert number >= 0, name
    return number


def alive() -> int:
    """How many objects have been made and not released."""
    return int(runtime().softmetal_alive())


def send(receiver: Any, selector: str, *arguments: Any, returns: Any = ctypes.c_void_p) -> Any:
    """A message: Python ints go as 64-bit integers, Objects as pointers, ctypes as they are."""
    name = ctypes.c_void_p(runtime().sel_registerName(selector.encode()))
    values = [_argument(value) for value in (receiver, *arguments)]
    values.insert(1, name)
    kind = ctypes.CFUNCTYPE(returns, *(type(value) for value in values))
    return ctypes.cast(runtime().objc_msgSend, kind)(*values)


def _argument(value: Any) -> Any:
    if isinstance(value, Object):
        return ctypes.c_void_p(value.pointer)
    if isinstance(value, bool):
        return ctypes.c_bool(value)
    if isinstance(value, int):
        return ctypes.c_ulong(value)
    if value is None:
        return ctypes.c_void_p(None)
    return value


def class_named(name: str) -> ctypes.c_void_p:
    """A class; AssertionError where the device has none of that name."""
    found = runtime().objc_lookUpClass(name.encode())
    assert found, f"no class {name}"
    return ctypes.c_void_p(found)


class Pool:
    """An autorelease pool, for a `with` statement."""

    def __enter__(self) -> Pool:
        self.pointer = send(send_pointer(class_named("NSAutoreleasePool"), "alloc"), "init")
        return self

    def __exit__(self, *_: object) -> None:
        send(ctypes.c_void_p(self.pointer), "drain", returns=None)


def send_pointer(receiver: Any, selector: str, *arguments: Any) -> ctypes.c_void_p:
    """A message whose answer is the receiver, or an argument, of another."""
    return ctypes.c_void_p(send(receiver, selector, *arguments))


def string(text: str) -> ctypes.c_void_p:
    """An autoreleased NSString."""
    return send_pointer(
        class_named("NSString"),
        "stringWithCString:encoding:",
        ctypes.c_char_p(text.encode()),
        4,
    )


def text(pointer: Any) -> str:
    """The text of an NSString."""
    return str(send(pointer, "UTF8String", returns=ctypes.c_char_p).decode())


def raise_error(error: ctypes.c_void_p) -> None:
    """Raises MetalError for an NSError."""
    raise MetalError(
        send(error, "code", returns=ctypes.c_long),
        text(send_pointer(error, "localizedDescription")),
    )


class Object:
    """One that this side owns."""

    def __init__(self, pointer: int | None) -> None:
        if not pointer:
            raise MemoryError("the device made no object")
        self.pointer: int | None = pointer

    def release(self) -> None:
        """Gives the object up."""
        pointer, self.pointer = self.pointer, None
        if pointer:
            send(ctypes.c_void_p(pointer), "release", returns=None)


class Buffer(Object):
    """An MTLBuffer; `array()` is its contents."""

    def array(self, dtype: Any = np.uint8, shape: Sequence[int] | None = None) -> NDArray[Any]:
        """The contents, not a copy. ValueError for private storage, which has none."""
        address = send(self, "contents")
        if not address:
            raise ValueError("private storage has no contents")
        length = send(self, "length", returns=ctypes.c_ulong)
        data = (ctypes.c_ubyte * length).from_address(address)
        array = np.frombuffer(data, dtype=dtype)
        return array if shape is None else array.reshape(shape)


class Device(Object):
    """The device, and what it has made through this object, which goes with it."""

    def __init__(self) -> None:
        super().__init__(runtime().MTLCreateSystemDefaultDevice())
        self.made: list[Object] = []
        self.queue = self.keep(Object(send(self, "newCommandQueue")))

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for made in reversed(self.made):
            made.release()
        self.release()

    def keep(self, made: Any) -> Any:
        """Releases `made` with the device, and returns it."""
        self.made.append(made)
        return made

    def buffer(self, content: NDArray[Any] | int, options: int = 0) -> Buffer:
        """A buffer with the bytes of an array, or of a number of bytes."""
        if isinstance(content, int):
            made = send(self, "newBufferWithLength:options:", content, options)
        else:
            data = np.ascontiguousarray(content)
            made = send(
                self,
                "newBufferWithBytes:length:options:",
                ctypes.c_void_p(data.ctypes.data),
                data.nbytes,
                options,
            )
        return self.keep(Buffer(made))

    def library(self, source: str, macros: Mapping[str, object] | None = None) -> Object:
        """An MTLLibrary from MSL text. Raises MetalError with the compiler's messages."""
        with Pool():
            options = Object(send(send_pointer(class_named("MTLCompileOptions"), "alloc"), "init"))
            if macros:
                send(options, "setPreprocessorMacros:", _dictionary(macros), returns=None)
            error = ctypes.c_void_p()
            made = send(
                self,
                "newLibraryWithSource:options:error:",
                string(source),
                options,
                ctypes.pointer(error),
            )
            options.release()
            if not made:
                raise_error(error)
            return self.keep(Object(made))

    def function(
        self, library: Object, name: str, constants: Mapping[int, Any] | None = None
    ) -> Object:
        """An MTLFunction with constants by index: NumPy scalars. Raises MetalError."""
        with Pool():
            error = ctypes.c_void_p()
            values = _constants(constants or {})
            made = send(
                library,
                "newFunctionWithName:constantValues:error:",
                string(name),
                values,
                ctypes.pointer(error),
            )
            values.release()
            if not made:
                raise_error(error)
            return self.keep(Object(made))

    def pipeline(self, function: Object, *, indirect: bool = False, threads: int = 0) -> Object:
        """An MTLComputePipelineState. Raises MetalError."""
        with Pool():
            descriptor = Object(
                send(send_pointer(class_named("MTLComputePipelineDescriptor"), "alloc"), "init")
            )
            send(descriptor, "setComputeFunction:", function, returns=None)
            send(descriptor, "setSupportIndirectCommandBuffers:", indirect, returns=None)
            send(descriptor, "setMaxTotalThreadsPerThreadgroup:", threads, returns=None)
            error = ctypes.c_void_p()
            made = send(
                self,
                "newComputePipelineStateWithDescriptor:options:reflection:error:",
                descriptor,
                0,
                None,
                ctypes.pointer(error),
            )
            descriptor.release()
            if not made:
                raise_error(error)
            return self.keep(Object(made))

    def kernel(
        self,
        source: str,
        name: str,
        constants: Mapping[int, Any] | None = None,
        macros: Mapping[str, object] | None = None,
    ) -> Object:
        """A pipeline from text."""
        return self.pipeline(self.function(self.library(source, macros), name, constants))

    def commands(self) -> Commands:
        """A new command buffer of the device's queue."""
        return Commands(self)

    def run(
        self,
        pipeline: Object,
        buffers: Sequence[Buffer | NDArray[Any] | bytes],
        grid: Sequence[int],
        group: Sequence[int],
        threadgroup_memory: Mapping[int, int] | None = None,
    ) -> None:
        """One dispatch, waited for. Arrays and bytes go by setBytes. Raises MetalError."""
        with Pool():
            commands = self.commands()
            encoder = commands.encoder()
            encoder.bind(pipeline, buffers)
            for index, length in (threadgroup_memory or {}).items():
                encoder.send("setThreadgroupMemoryLength:atIndex:", length, index)
            encoder.dispatch(grid, group)
            encoder.end()
            commands.run()


class Commands:
    """A command buffer, while a pool is open."""

    def __init__(self, device: Device) -> None:
        self.pointer = send_pointer(device.queue, "commandBuffer")

    def send(self, selector: str, *arguments: Any, returns: Any = None) -> Any:
        """A message to the command buffer."""
        return send(self.pointer, selector, *arguments, returns=returns)

    def encoder(self, *, concurrent: bool = False) -> Encoder:
        """A compute encoder."""
        kind = 1 if concurrent else 0
        return Encoder(send_pointer(self.pointer, "computeCommandEncoderWithDispatchType:", kind))

    def blit(self) -> Encoder:
        """A blit encoder."""
        return Encoder(send_pointer(self.pointer, "blitCommandEncoder"))

    def run(self) -> None:
        """Commits, waits, and raises MetalError for the buffer's error."""
        self.send("commit")
        self.send("waitUntilCompleted")
        error = self.send("error", returns=ctypes.c_void_p)
        if error:
            raise_error(ctypes.c_void_p(error))


class Encoder:
    """An open encoder."""

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self.pointer = pointer

    def send(self, selector: str, *arguments: Any) -> None:
        """A message to the encoder."""
        send(self.pointer, selector, *arguments, returns=None)

    def bind(self, pipeline: Object, buffers: Sequence[Any]) -> None:
        """A pipeline, and buffers, arrays or bytes from index 0 on; None leaves one out."""
        self.send("setComputePipelineState:", pipeline)
        for index, content in enumerate(buffers):
            if isinstance(content, Buffer):
                self.send("setBuffer:offset:atIndex:", content, 0, index)
            elif content is not None:
                data = np.frombuffer(bytes(memoryview(content)), np.uint8)
                self.send(
                    "setBytes:length:atIndex:", ctypes.c_void_p(data.ctypes.data), data.size, index
                )

    def dispatch(self, grid: Sequence[int], group: Sequence[int]) -> None:
        """Threads of the grid, threads of a threadgroup."""
        self.send("dispatchThreads:threadsPerThreadgroup:", size(*grid), size(*group))

    def barrier(self) -> None:
        """What comes later sees what buffers hold now."""
        self.send("memoryBarrierWithScope:", 1)

    def end(self) -> None:
        """endEncoding."""
        self.send("endEncoding")


def _dictionary(entries: Mapping[str, object]) -> ctypes.c_void_p:
    keys = (ctypes.c_void_p * len(entries))(*(string(key).value for key in entries))
    values = (ctypes.c_void_p * len(entries))(*(string(str(v)).value for v in entries.values()))
    return send_pointer(
        class_named("NSDictionary"), "dictionaryWithObjects:forKeys:count:", values, keys, len(keys)
    )


def _constants(values: Mapping[int, Any]) -> Object:
    made = Object(send(send_pointer(class_named("MTLFunctionConstantValues"), "alloc"), "init"))
    for index, value in values.items():
        data = np.asarray(value)
        send(
            made,
            "setConstantValue:type:atIndex:",
            ctypes.c_void_p(data.ctypes.data),
            DATA_TYPES[data.dtype.name],
            index,
            returns=None,
        )
    return made
