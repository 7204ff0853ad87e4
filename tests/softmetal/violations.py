"""Hosts that break a rule of Metal's API, one a function; each ends its process with a message.

`python -m tests.softmetal.violations NAME`, with NPUSIM_SOFTMETAL naming the built device's folder.
Without a name it reads names, and answers each with how its process ended, in a line of JSON: the
processes are forked from one that has NumPy and the device's library already.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.softmetal import metal

COPY = """#include <metal_stdlib>
using namespace metal;
kernel void copy(device const float4* x [[buffer(0)]], device float4* y [[buffer(1)]],
                 constant uint& n [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i < n) y[i] = x[i];
}
kernel void scratch(device float* y [[buffer(0)]], threadgroup float* s [[threadgroup(0)]],
                    uint i [[thread_index_in_threadgroup]]) {
  s[i] = 1; y[i] = s[i];
}
"""
RULES: dict[str, str] = {}  # name of a violation: what its message says
_CASES: dict[str, Callable[[Host], None]] = {}


class Host:
    """A device with a kernel, buffers, and an open encoder in which they are bound."""

    def __init__(self) -> None:
        self.device = metal.Device()
        library = self.device.library(COPY)
        self.copy = self.device.pipeline(self.device.function(library, "copy"))
        self.scratch = self.device.pipeline(self.device.function(library, "scratch"))
        self.x, self.y = self.device.buffer(256), self.device.buffer(256)
        self.commands = self.device.commands()
        self.encoder = self.commands.encoder()
        self.encoder.bind(self.copy, [self.x, self.y, np.uint32(16)])

    def dispatch(self, grid: int = 16, group: int = 16) -> None:
        self.encoder.dispatch([grid], [group])


def rule(message: str) -> Callable[[Callable[[Host], None]], None]:
    """Makes a function a violation, whose message holds this."""

    def put(case: Callable[[Host], None]) -> None:
        RULES[case.__name__], _CASES[case.__name__] = message, case

    return put


@rule("copy: buffer(1) 'y' is not bound")
def unbound(host: Host) -> None:
    host.encoder.send("setBuffer:offset:atIndex:", None, 0, 1)
    host.dispatch()


@rule("a dispatch without a pipeline")
def no_pipeline(host: Host) -> None:
    host.encoder.end()
    host.commands.encoder().dispatch([1], [1])


@rule("a compute encoder before endEncoding")
def two_encoders(host: Host) -> None:
    host.commands.encoder()


@rule("commit before endEncoding")
def open_encoder(host: Host) -> None:
    host.commands.send("commit")


@rule("commit after commit")
def two_commits(host: Host) -> None:
    host.encoder.end()
    host.commands.send("commit")
    host.commands.send("commit")


@rule("a compute encoder after commit")
def encoder_after_commit(host: Host) -> None:
    host.encoder.end()
    host.commands.send("commit")
    host.commands.encoder()


@rule("encoding after endEncoding")
def dispatch_after_end(host: Host) -> None:
    host.encoder.end()
    host.dispatch()


@rule("endEncoding twice")
def two_ends(host: Host) -> None:
    host.encoder.end()
    host.encoder.end()


@rule("an encoder was released before endEncoding")
def forgotten_encoder(host: Host) -> None:
    with metal.Pool():
        host.encoder.end()
        host.device.commands().encoder()


@rule("waitUntilCompleted before commit")
def wait_without_commit(host: Host) -> None:
    host.commands.send("waitUntilCompleted")


@rule("addCompletedHandler: after commit")
def late_handler(host: Host) -> None:
    host.encoder.end()
    host.commands.send("commit")
    host.commands.send("addCompletedHandler:", None)


@rule("index 31: there are 31 buffers")
def buffer_index(host: Host) -> None:
    host.encoder.send("setBuffer:offset:atIndex:", host.x, 0, 31)


@rule("setBytes: of 4097 bytes")
def many_bytes(host: Host) -> None:
    data = ctypes.c_char_p(bytes(4097))
    host.encoder.send("setBytes:length:atIndex:", data, 4097, 2)


@rule("setBufferOffset: where no buffer is bound")
def offset_of_nothing(host: Host) -> None:
    host.encoder.send("setBufferOffset:atIndex:", 16, 9)


@rule("buffer(0) 'x' has offset 4, which is no multiple of 16")
def misaligned_offset(host: Host) -> None:
    host.encoder.send("setBufferOffset:atIndex:", 4, 0)
    host.dispatch()


@rule("buffer(0) 'x' begins at byte 272 of a buffer of 256")
def offset_behind_end(host: Host) -> None:
    host.encoder.send("setBufferOffset:atIndex:", 272, 0)
    host.dispatch()


@rule("buffer(0) 'x' needs 16 bytes and has 0")
def no_element(host: Host) -> None:
    host.encoder.send("setBufferOffset:atIndex:", 256, 0)
    host.dispatch()


@rule("a threadgroup of 1025 threads; the pipeline takes 1024")
def many_threads(host: Host) -> None:
    host.dispatch(1025, 1025)


@rule("a threadgroup of 64 threads; the pipeline takes 32")
def pipeline_limit(host: Host) -> None:
    function = host.device.function(host.device.library(COPY), "copy")
    limited = host.device.pipeline(function, threads=32)
    host.encoder.send("setComputePipelineState:", limited)
    host.dispatch(64, 64)


@rule("a size is 0")
def empty_grid(host: Host) -> None:
    host.dispatch(0, 16)


@rule("scratch: threadgroup(0) 's' needs setThreadgroupMemoryLength")
def no_threadgroup_memory(host: Host) -> None:
    host.encoder.bind(host.scratch, [host.y])
    host.dispatch()


@rule("threadgroup memory of 32784 bytes; there are 32768")
def much_threadgroup_memory(host: Host) -> None:
    host.encoder.bind(host.scratch, [host.y])
    host.encoder.send("setThreadgroupMemoryLength:atIndex:", 32784, 0)
    host.dispatch()


@rule("multiples of 16 bytes")
def odd_threadgroup_memory(host: Host) -> None:
    host.encoder.send("setThreadgroupMemoryLength:atIndex:", 20, 0)


@rule("a buffer of 0 bytes")
def empty_buffer(host: Host) -> None:
    host.device.buffer(0)


@rule("shared or in private storage")
def managed_buffer(host: Host) -> None:
    host.device.buffer(16, 1 << 4)


@rule("newBufferWithBytes: in private storage")
def private_bytes(host: Host) -> None:
    host.device.buffer(np.zeros(4), metal.PRIVATE)


@rule("whole pages of")
def unaligned_host_memory(host: Host) -> None:
    address = ctypes.c_void_p(host.x.array().ctypes.data + 64)
    selector = "newBufferWithBytesNoCopy:length:options:deallocator:"
    metal.send(host.device, selector, address, 4096, 0, None)


@rule("bytes 240 to 272 of a buffer of 256")
def copy_behind_end(host: Host) -> None:
    host.encoder.end()
    selector = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"
    host.commands.blit().send(selector, host.x, 240, host.y, 0, 32)


@rule("multiples of 4 bytes")
def odd_copy(host: Host) -> None:
    host.encoder.end()
    host.commands.blit().send(
        "fillBuffer:range:value:", host.x, metal.Range(0, 6), ctypes.c_ubyte(1)
    )


@rule("copyFromBuffer: onto itself")
def copy_onto_itself(host: Host) -> None:
    host.encoder.end()
    selector = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"
    host.commands.blit().send(selector, host.x, 0, host.x, 16, 32)


@rule("NSString is used after its last release")
def released_twice(host: Host) -> None:
    with metal.Pool():
        metal.send(metal.string("x"), "release", returns=None)


@rule("SoftMTLBuffer is used after its last release")
def used_after_release(host: Host) -> None:
    pointer = ctypes.c_void_p(host.x.pointer)
    metal.send(pointer, "release", returns=None)
    metal.send(pointer, "length")


@rule("SoftMTLDevice does not know the message 'newTextureWithDescriptor:'")
def unknown_message(host: Host) -> None:
    metal.send(host.device, "newTextureWithDescriptor:", None)


@rule("MTLDataType 1 is none of a function constant")
def unknown_type(host: Host) -> None:
    values = metal.send_pointer(
        metal.send_pointer(metal.class_named("MTLFunctionConstantValues"), "alloc"), "init"
    )
    metal.send(values, "setConstantValue:type:atIndex:", ctypes.c_char_p(b"x"), 1, 0)


@rule("a command buffer was released with an open encoder")
def forgotten_commands(host: Host) -> None:
    for _ in range(2):  # the pool's reference, and the encoder's
        host.commands.send("release")


@rule("enqueue comes once")
def two_enqueues(host: Host) -> None:
    host.commands.send("enqueue")
    host.commands.send("enqueue")


@rule("waitUntilScheduled before commit")
def wait_for_no_schedule(host: Host) -> None:
    host.commands.send("waitUntilScheduled")


@rule("a compute pipeline without a function")
def pipeline_of_nothing(host: Host) -> None:
    metal.send(host.device, "newComputePipelineStateWithFunction:error:", None, None)


@rule("a grid is three uint32 in a buffer, at a multiple of 4 bytes")
def odd_grid(host: Host) -> None:
    selector = "dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:threadsPerThreadgroup:"
    host.encoder.send(selector, host.x, 2, metal.size(16))


@rule("a grid is three uint32 in a buffer, at a multiple of 4 bytes")
def grid_behind_end(host: Host) -> None:
    selector = "dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:threadsPerThreadgroup:"
    host.encoder.send(selector, host.x, 248, metal.size(16))


@rule("didModifyRange: is for managed storage")
def modified_range(host: Host) -> None:
    metal.send(host.x, "didModifyRange:", metal.Range(0, 16), returns=None)


# --- samples of counters


def _samples(host: Host, count: int = 2) -> metal.Object:
    sets = metal.send_pointer(host.device, "counterSets")
    made = metal.send_pointer(metal.class_named("MTLCounterSampleBufferDescriptor"), "alloc")
    descriptor = metal.Object(metal.send(made, "init"))
    first = metal.send_pointer(sets, "objectAtIndex:", 0)
    metal.send(descriptor, "setCounterSet:", first, returns=None)
    metal.send(descriptor, "setStorageMode:", 0, returns=None)
    metal.send(descriptor, "setSampleCount:", count, returns=None)
    selector = "newCounterSampleBufferWithDescriptor:error:"
    return metal.Object(metal.send(host.device, selector, descriptor, None))


_SAMPLE = "sampleCountersInBuffer:atSampleIndex:withBarrier:"


@rule("a sample beyond the end of its buffer")
def sample_behind_end(host: Host) -> None:
    host.encoder.send(_SAMPLE, _samples(host), 2, True)


@rule("a sample between concurrent dispatches needs its barrier")
def sample_among_others(host: Host) -> None:
    host.encoder.end()
    host.encoder = host.commands.encoder(concurrent=True)
    host.encoder.bind(host.copy, [host.x, host.y, np.uint32(16)])
    host.dispatch()
    host.encoder.send(_SAMPLE, _samples(host), 0, False)


@rule("resolveCounters: beyond the end")
def resolved_behind_end(host: Host) -> None:
    host.encoder.end()
    selector = "resolveCounters:inRange:destinationBuffer:destinationOffset:"
    host.commands.blit().send(selector, _samples(host), metal.Range(1, 2), host.x, 0)


@rule("a compute pass has one sample buffer here")
def second_sample_buffer(host: Host) -> None:
    made = metal.send_pointer(metal.class_named("MTLComputePassDescriptor"), "alloc")
    descriptor = metal.send_pointer(made, "init")
    attachments = metal.send_pointer(descriptor, "sampleBufferAttachments")
    metal.send(attachments, "objectAtIndexedSubscript:", 1)


# --- what objects are made of


@rule("an autorelease pool cannot be autoreleased")
def autoreleased_pool(host: Host) -> None:
    with metal.Pool() as pool:
        metal.send(ctypes.c_void_p(pool.pointer), "autorelease")


@rule("addObject: on a pool that is not the innermost")
def outer_pool(host: Host) -> None:
    with metal.Pool() as outer, metal.Pool():
        metal.send(ctypes.c_void_p(outer.pointer), "addObject:", host.x, returns=None)


@rule("strings are ASCII or UTF-8 here")
def unknown_encoding(host: Host) -> None:
    utf16 = 10
    selector = "stringWithCString:encoding:"
    metal.send(metal.class_named("NSString"), selector, ctypes.c_char_p(b"x"), utf16)


@rule("URLs are of files here: https://example.org")
def web_address(host: Host) -> None:
    made = metal.send_pointer(metal.class_named("NSURL"), "alloc")
    metal.send(made, "initWithString:", metal.string("https://example.org"))


@rule("MPSMatrix: without a buffer or a descriptor")
def matrix_of_nothing(host: Host) -> None:
    made = metal.send_pointer(metal.class_named("MPSMatrix"), "alloc")
    metal.send(made, "initWithBuffer:offset:descriptor:", host.x, 0, None)


# --- indirect command buffers

DISPATCH, THREADS = 1 << 5, 1 << 6  # MTLIndirectCommandType
READ, WRITE = 1, 2  # MTLResourceUsage
GROUPS = "concurrentDispatchThreadgroups:threadsPerThreadgroup:"
MAKE = "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"


class Recorded:
    """An indirect command buffer whose first command, a copy of x to y, is ready to be encoded."""

    def __init__(self, host: Host, *, count: int = 2, options: int = 0, **properties: Any) -> None:
        self.host = host
        made = metal.send_pointer(metal.class_named("MTLIndirectCommandBufferDescriptor"), "alloc")
        descriptor = metal.Object(metal.send(made, "init"))
        chosen: dict[str, Any] = {"CommandTypes": DISPATCH, "MaxKernelBufferBindCount": 3}
        chosen |= {"InheritBuffers": False, "InheritPipelineState": False, **properties}
        for name, value in chosen.items():
            metal.send(descriptor, f"set{name}:", value, returns=None)
        self.commands = metal.Object(metal.send(host.device, MAKE, descriptor, count, options))
        function = host.device.function(host.device.library(COPY), "copy")
        self.pipeline = host.device.pipeline(function, indirect=True)
        self.n = host.device.buffer(np.full(1, 16, np.uint32))

    def send(self, selector: str, *arguments: Any, index: int = 0) -> None:
        command = metal.send_pointer(self.commands, "indirectComputeCommandAtIndex:", index)
        metal.send(command, selector, *arguments, returns=None)

    def bind(self) -> None:
        for place, buffer in enumerate((self.host.x, self.host.y, self.n)):
            self.send("setKernelBuffer:offset:atIndex:", buffer, 0, place)

    def encode(self) -> None:
        self.send("setComputePipelineState:", self.pipeline)
        self.bind()
        self.send(GROUPS, metal.size(1), metal.size(16))

    def execute(self, usage: int = READ | WRITE, first: int = 0, count: int = 2) -> None:
        for buffer in (self.host.x, self.host.y, self.n):
            self.host.encoder.send("useResource:usage:", buffer, usage)
        self.host.encoder.send(
            "executeCommandsInBuffer:withRange:", self.commands, metal.Range(first, count)
        )

    def finish(self) -> None:
        self.host.encoder.end()
        self.host.commands.run()


@rule("an indirect command has written a buffer of 256 bytes, for which useResource: has named no")
def use_for_reading_alone(host: Host) -> None:
    host.x.array()[:] = 1
    recorded = Recorded(host)
    recorded.encode()
    recorded.execute(usage=READ)
    recorded.finish()


@rule("copy: an indirect command reads buffer(0) 'x', for which useResource: has named no such")
def use_for_writing_alone(host: Host) -> None:
    recorded = Recorded(host)
    recorded.encode()
    recorded.execute(usage=WRITE)
    recorded.finish()


@rule("useResource: for read, write or both")
def use_for_nothing(host: Host) -> None:
    host.encoder.send("useResource:usage:", host.x, 0)


@rule("useResource: of no resource")
def use_of_a_pipeline(host: Host) -> None:
    host.encoder.send("useResource:usage:", host.copy, READ)


@rule("the pipeline does not support indirect command buffers")
def pipeline_without_support(host: Host) -> None:
    Recorded(host).send("setComputePipelineState:", host.copy)


@rule("copy: its pipeline does not support indirect command buffers")
def inherited_pipeline_without_support(host: Host) -> None:
    recorded = Recorded(host, InheritPipelineState=True)
    recorded.bind()
    recorded.send(GROUPS, metal.size(1), metal.size(16))
    recorded.execute()
    recorded.finish()


@rule("an indirect command is encoded before its pipeline is set")
def indirect_without_pipeline(host: Host) -> None:
    recorded = Recorded(host)
    recorded.bind()
    recorded.send(GROUPS, metal.size(1), metal.size(16))


@rule("an indirect command without a pipeline")
def nothing_to_inherit(host: Host) -> None:
    recorded = Recorded(host, InheritPipelineState=True)
    recorded.bind()
    recorded.send(GROUPS, metal.size(1), metal.size(16))
    host.encoder.end()
    host.encoder = host.commands.encoder()
    recorded.execute()
    recorded.finish()


@rule("an indirect command inherits its pipeline")
def pipeline_that_is_inherited(host: Host) -> None:
    recorded = Recorded(host, InheritPipelineState=True)
    recorded.send("setComputePipelineState:", recorded.pipeline)


@rule("an indirect command inherits its buffers")
def buffers_that_are_inherited(host: Host) -> None:
    Recorded(host, InheritBuffers=True).bind()


@rule("copy: buffer(2) 'n' is not bound")
def indirect_unbound(host: Host) -> None:
    recorded = Recorded(host)
    recorded.send("setComputePipelineState:", recorded.pipeline)
    for place in range(2):
        recorded.send("setKernelBuffer:offset:atIndex:", host.x, 0, place)
    recorded.send(GROUPS, metal.size(1), metal.size(16))
    recorded.execute()
    recorded.finish()


@rule("index 3 of an indirect command; it has 3 buffers")
def indirect_buffer_index(host: Host) -> None:
    Recorded(host).send("setKernelBuffer:offset:atIndex:", host.x, 0, 3)


@rule("threadgroup memory 1 of an indirect command; it has 1")
def indirect_threadgroup_index(host: Host) -> None:
    recorded = Recorded(host, MaxKernelThreadgroupMemoryBindCount=1)
    recorded.send("setThreadgroupMemoryLength:atIndex:", 16, 0)
    recorded.send("setThreadgroupMemoryLength:atIndex:", 16, 1)


@rule("an indirect command has at most 31 buffers")
def many_indirect_buffers(host: Host) -> None:
    Recorded(host, MaxKernelBufferBindCount=32)


@rule("concurrentDispatchThreads: is no command type here")
def command_of_another_type(host: Host) -> None:
    recorded = Recorded(host)
    recorded.send("setComputePipelineState:", recorded.pipeline)
    selector = "concurrentDispatchThreads:threadsPerThreadgroup:"
    recorded.send(selector, metal.size(16), metal.size(16))


@rule("an indirect command is encoded anew without a reset")
def indirect_without_reset(host: Host) -> None:
    recorded = Recorded(host)
    for _ in range(2):
        recorded.encode()


@rule("an indirect command is encoded anew without a reset")
def barrier_behind_its_dispatch(host: Host) -> None:
    recorded = Recorded(host)
    recorded.encode()
    recorded.send("setBarrier")


@rule("an indirect command is changed while a command buffer executes it")
def indirect_changed_in_use(host: Host) -> None:
    metal.set_option("DELAY_US", 500_000)
    recorded = Recorded(host)
    recorded.encode()
    recorded.execute()
    host.encoder.end()
    host.commands.send("commit")
    recorded.send("reset", index=1)


@rule("resetWithRange: while a command buffer executes the commands")
def indirect_reset_in_use(host: Host) -> None:
    recorded = Recorded(host)
    recorded.encode()
    recorded.execute()
    metal.send(recorded.commands, "resetWithRange:", metal.Range(0, 2), returns=None)


@rule("resetWithRange: beyond the end")
def reset_behind_end(host: Host) -> None:
    commands = Recorded(host).commands
    metal.send(commands, "resetWithRange:", metal.Range(1, 2), returns=None)


@rule("executeCommandsInBuffer: beyond the end")
def execute_behind_end(host: Host) -> None:
    Recorded(host).execute(first=1)


@rule("executeCommandsInBuffer: a range of 16385 commands; 16384 are taken")
def long_range(host: Host) -> None:
    Recorded(host, count=16385).execute(count=16385)


@rule("indirectComputeCommandAtIndex: beyond the end")
def command_behind_end(host: Host) -> None:
    Recorded(host).send("reset", index=2)


@rule("of private storage, which the host does not reach")
def private_commands(host: Host) -> None:
    Recorded(host, options=metal.PRIVATE).encode()


@rule("an indirect command buffer of no commands")
def no_indirect_commands(host: Host) -> None:
    Recorded(host, count=0)


class Product:
    """y = x · w of floats, by Metal Performance Shaders; what is given differs from what fits."""

    def __init__(self, host: Host, **given: Any) -> None:
        self.host = host
        self.given = {"rows": 4, "columns": 4, "matrices": 1, "row": 16, "matrix": 64, **given}
        kind = metal.class_named("MPSMatrixMultiplication")
        made = metal.send_pointer(kind, "alloc")
        sizes = "resultRows:resultColumns:interiorColumns:"
        self.kernel = metal.send(
            made,
            f"initWithDevice:transposeLeft:transposeRight:{sizes}alpha:beta:",
            *(host.device, False, False, 4, 4, 4, ctypes.c_double(1), ctypes.c_double(0)),
        )

    def matrix(self, *, buffer: Any = None, offset: int = 0, **given: Any) -> ctypes.c_void_p:
        """Returns a matrix of floats in x, unless something else is given."""
        it = {"type": 0x10000000 | 32, **self.given, **given}
        descriptor = metal.send_pointer(
            metal.class_named("MPSMatrixDescriptor"),
            "matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:",
            *(it["rows"], it["columns"], it["matrices"], it["row"], it["matrix"]),
            ctypes.c_uint(it["type"]),
        )
        made = metal.send_pointer(metal.class_named("MPSMatrix"), "alloc")
        return metal.send_pointer(
            made,
            "initWithBuffer:offset:descriptor:",
            *(self.host.x if buffer is None else buffer, offset, descriptor),
        )

    def encode(self, x: ctypes.c_void_p, w: ctypes.c_void_p, *, behind: bool = True) -> None:
        """Encodes the product into y, behind the end of the open encoder."""
        if behind:
            self.host.encoder.end()
        metal.send(
            ctypes.c_void_p(self.kernel),
            "encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:",
            *(self.host.commands.pointer, x, w, self.matrix(buffer=self.host.y)),
            returns=None,
        )


@rule("MPSMatrixDescriptor: the data type")
def product_of_integers(host: Host) -> None:
    Product(host).matrix(type=0x20000000 | 32)


@rule("MPSMatrixDescriptor: an empty matrix")
def empty_matrix(host: Host) -> None:
    Product(host).matrix(rows=0)


@rule("MPSMatrixDescriptor: rowBytes are no whole elements, or rows overlap")
def overlapping_rows(host: Host) -> None:
    Product(host).matrix(row=12)


@rule("MPSMatrixDescriptor: matrixBytes are no whole rows, or matrices overlap")
def overlapping_matrices(host: Host) -> None:
    Product(host).matrix(matrices=2, matrix=48)


@rule("MPSMatrix: bytes 208 to 272 of a buffer of 256")
def matrix_behind_end(host: Host) -> None:
    Product(host).matrix(offset=208)


@rule("MPSMatrix: the offset is no whole element")
def odd_matrix(host: Host) -> None:
    Product(host).matrix(offset=2)


@rule("MPSMatrixMultiplication before endEncoding")
def product_in_encoder(host: Host) -> None:
    product = Product(host)
    product.encode(product.matrix(), product.matrix(), behind=False)


@rule("MPSMatrixMultiplication: a matrix is too small for the product")
def small_matrix(host: Host) -> None:
    product = Product(host)
    product.encode(product.matrix(), product.matrix(rows=3, matrix=48))


@rule("MPSMatrixMultiplication: batches of several sizes")
def uneven_batches(host: Host) -> None:
    product = Product(host)
    product.encode(product.matrix(matrices=2), product.matrix())


@rule("MPSMatrixMultiplication: matrices of two types")
def two_types(host: Host) -> None:
    product = Product(host)
    product.encode(product.matrix(), product.matrix(type=0x10000000 | 16))


@rule("MPSMatrixMultiplication: the device has no MPS")
def no_performance_shaders(host: Host) -> None:
    metal.set_option("PERFORMANCE_SHADERS", 0)
    Product(host)


@rule("an archive is read that was written in part, or changed")
def damaged_archive(host: Host) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"softmetal binary archive 1\na pipeline\nend 3\n")
        file.flush()
        made = metal.send_pointer(metal.class_named("MTLBinaryArchiveDescriptor"), "alloc")
        descriptor = metal.Object(metal.send(made, "init"))
        url = metal.send_pointer(
            metal.class_named("NSURL"), "fileURLWithPath:", metal.string(file.name)
        )
        metal.send(descriptor, "setUrl:", url, returns=None)
        metal.send(host.device, "newBinaryArchiveWithDescriptor:error:", descriptor, None)


def nothing(host: Host) -> None:
    """Breaks no rule: what the others would be told apart from."""
    host.dispatch()
    host.encoder.end()
    host.commands.run()


_CASES["nothing"] = nothing


def violate(name: str) -> None:
    """Breaks the rule, which ends this process where the device enforces it."""
    with metal.Pool():
        _CASES[name](Host())
    print("nothing was wrong")


LONGEST = 120  # seconds of a violation


def forked(name: str) -> tuple[int, str]:
    """Exit status (negative: a signal) and messages of a child in which the rule is broken."""
    with tempfile.TemporaryFile() as messages:
        child = os.fork()
        if child == 0:
            signal.alarm(LONGEST)
            os.dup2(messages.fileno(), 2)
            os.dup2(2, 1)
            status = 1
            try:
                violate(name)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        messages.seek(0)
        return status, messages.read().decode()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        violate(sys.argv[1])
    else:
        metal.runtime()  # no device yet: its threads would not be in a child
        for line in sys.stdin:
            print(json.dumps(forked(line.strip())), flush=True)
