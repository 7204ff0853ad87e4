"""The C++ runtime of npusim. `npusim.runtime` is its public face."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, CapsuleType

from npusim.errors import Error

__version__: str
__interface__: str

# name, buffer, dtype, shape, alloc_shape
_SpecRow = tuple[str, int, str, tuple[int | str, ...], tuple[int, ...]]

def device_names() -> list[str]:
    """The devices of this build, in order of preference."""

def device_parts(name: str, library_folders: Sequence[str]) -> list[tuple[str, str, bool]]:
    """What a device uses that npusim does not bring, and may lie in the folders: (name, version
    and place or why it is not there, whether it is there)."""

def device_options(name: str) -> dict[str, tuple[bool | int | str, str]]:
    """The options of a device: name -> (default, meaning)."""

def usable_cores() -> int:
    """Physical cores that this process may use: the workers of a cpu device by default."""

def isa_names() -> list[str]:
    """Instruction sets the cpu device can use here, best first."""

def in_place_kernels() -> list[str]:
    """The cpu kernels that may write a result where they read an operand."""

def kernel_schemas(isa: str = "") -> dict[str, str]:
    """The cpu kernels of an instruction set: name -> parameter schema."""

def array_cycles(array: Mapping[str, Any], m: int, n: int, k: int, repeats: int = 1) -> int:
    """Cycles of products on a systolic array whose operands are there (cpp/simulate/dataflow.h)."""

def assess_tiling(
    machine: Mapping[str, Any],
    work: Mapping[str, Any],
    tile: Sequence[int],
    n_before_m: bool = False,
    resident: int = -1,
) -> dict[str, Any]:
    """What a tile of a command takes: cycles and bytes (cpp/simulate/tile_choice.h)."""

def best_tiling(machine: Mapping[str, Any], work: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tile that is chosen for a command, as `assess_tiling` answers; None: none fits."""

def prompt_runs(
    max_context: int, prefill_chunk: int, larger_chunks: Sequence[int], recurrent: bool, tokens: int
) -> list[tuple[int, int, int]]:
    """The runs of a prompt: position, tokens, and the chunk of the method; 1 is `decode`."""

def walk_tiles(
    machine: Mapping[str, Any], work: Mapping[str, Any], timeline: int = 0, shortcut: bool = True
) -> dict[str, Any]:
    """The time of one scheduled command, with its causes (cpp/simulate/walk.h)."""

class Device:
    def __init__(
        self,
        name: str,
        options: dict[str, bool | int | str] = ...,
        library_folders: Sequence[str] = (),
        make_kernels: Callable[[list[tuple[str, str, bytes, bytes]]], list[bytes] | str]
        | None = None,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def description(self) -> str: ...
    def measure_rates(self) -> dict[str, float]:
        """What the device reaches at best: bytes a second that it reads ("read"), operations a
        second on factors of each dtype. Empty where that is not measured. Half a second."""

    @property
    def uses_host_memory(self) -> bool:
        """Whether kernels run over arrays of the host where they lie."""

    @property
    def host_visible(self) -> bool:
        """Whether the host can read the device's memory itself."""

    @property
    def synchronous(self) -> bool:
        """Whether nothing is under way when a call returns."""

    @property
    def alignment(self) -> int:
        """What a tensor's address has to be a multiple of, to be used in place."""

    @property
    def ordinal(self) -> int: ...
    def synchronize(self) -> None:
        """Waits for all work that was given to the device."""

    @property
    def has_streams(self) -> bool:
        """Whether work stands in streams that other libraries share."""

    @property
    def stream(self) -> int: ...
    def holds(self, address: int) -> bool:
        """Whether memory at an address that streams work on is this device's."""

    @property
    def speaks_cuda(self) -> bool:
        """Whether its addresses and streams are CUDA's."""

    @property
    def torch_name(self) -> str | None:
        """What PyTorch calls the device, such as 'cuda:1'; None where it has no tensors there."""

    @property
    def dlpack_device(self) -> tuple[int, int]: ...
    def wait_for(self, stream: int) -> None: ...
    def order(self, before: int, after: int) -> None: ...

class Arrival:
    """Bytes of a buffer on their way to the host, where they can be read and written when they
    have arrived."""

    def wait(self) -> None:
        """Returns when they have arrived."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class DeviceBuffer:
    """A dense row-major tensor on a device; zero at first."""

    @overload
    def __init__(
        self,
        device: Device,
        dtype: str,
        shape: Sequence[int],
        alloc_shape: Sequence[int] | None = None,
        zero: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device: Device,
        dtype: str,
        shape: Sequence[int],
        *,
        array: NDArray[Any],
        copy: bool | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self, device: Device, dtype: str, shape: Sequence[int], *, address: int, owner: object
    ) -> None: ...
    @overload
    def __init__(self, device: Device, capsule: CapsuleType, copy: bool | None = None) -> None: ...
    @property
    def device(self) -> Device: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def alloc_shape(self) -> tuple[int, ...]: ...
    @property
    def writable(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def is_aligned(self) -> bool: ...
    def fits(self, dtype: str, shape: Sequence[int], alloc_shape: Sequence[int]) -> bool:
        """Whether the buffer holds just that."""

    def read(self) -> bytes:
        """Downloads the bytes of alloc_shape."""

    def read_into(self, array: Buffer | NDArray[Any]) -> None:
        """Downloads the bytes of alloc_shape into a contiguous array."""

    def start_read(self) -> Arrival:
        """Starts to download the bytes of alloc_shape, behind what has been queued; until they
        have arrived, nothing may write to the buffer."""

    def write(self, bytes: Buffer | NDArray[Any]) -> None:
        """Uploads the bytes of alloc_shape, from bytes or a contiguous array."""

    def copy_from(self, other: DeviceBuffer) -> None:
        """Copies a buffer of the same device."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(self, *, stream: int | None = None, **kwargs: Any) -> CapsuleType:
        """Lends the tensor; the consumer's stream is made to wait for what is still computed."""

    def __dlpack_device__(self) -> tuple[int, int]: ...

class Program:
    @staticmethod
    def open(path: str | PathLike[str]) -> Program: ...
    @staticmethod
    def from_bytes(bytes: bytes) -> Program: ...
    def to_bytes(self) -> bytes:
        """The `.npubin` image."""

    @property
    def target(self) -> str: ...
    @property
    def metadata(self) -> str: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def methods(self) -> list[str]: ...
    def inputs(self, method: int) -> list[_SpecRow]: ...
    def outputs(self, method: int) -> list[_SpecRow]: ...
    @property
    def declared_bytes(self) -> int:
        """What a device's max_memory is compared with."""

    def work(self, method: int | None) -> list[int | None]:
        """Steps of each command at the greatest sizes, of method None those of init.

        None for kernels that the cpu does not have.
        """

    def symbols(self, method: int) -> list[tuple[str, int, int]]: ...
    def bind(self, method: int, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The values of a method's symbols that shapes of all its inputs imply."""

    def specs_at(self, method: int, sizes: Sequence[int]) -> tuple[list[_SpecRow], list[_SpecRow]]:
        """Inputs and outputs for values of the symbols."""

    def commands(self, method: int) -> list[tuple[str, str, str]]: ...
    def arena_bytes(self, method: int) -> int: ...
    @property
    def buffers(self) -> list[tuple[int, int, int, str]]: ...
    @property
    def weights(self) -> list[tuple[tuple[str, ...], str, tuple[int, ...]]]: ...
    @property
    def persistent_bytes(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...

def renamed(key: str, names: Sequence[tuple[str, str]]) -> str:
    """The checkpoint's name of a program's key: the longest beginning among `names` that it has is
    replaced."""

def renaming_hint(missing: Sequence[str], present: Sequence[str]) -> str:
    """A sentence that names the renaming which would find all missing keys, or nothing."""

def watch_files(memory: Sequence[tuple[int, int]]) -> CapsuleType:
    """memory: (address, bytes) of what others have mapped. What check_files takes, to be dropped
    before the memory is."""

def check_files(watched: CapsuleType) -> None:
    """Raises Error when a file was changed in place since it was watched."""

class Weights:
    """The weights of a program on a device; may serve several executors at once."""

    @staticmethod
    def from_file(
        program: Program,
        device: Device,
        path: str | PathLike[str],
        check_nan: bool = False,
        copy: bool = False,
        names: Sequence[tuple[str, str]] = ...,
        progress: Callable[[int, int], object] | None = None,
    ) -> Weights:
        """progress is called as (done, total) with bytes of weights, whenever one was prepared."""

    @staticmethod
    def from_memory(
        program: Program,
        device: Device,
        tensors: Mapping[str, tuple[str, tuple[int, ...], int, object]],
        check_nan: bool = False,
        copy: bool = False,
        names: Sequence[tuple[str, str]] = ...,
        progress: Callable[[int, int], object] | None = None,
    ) -> Weights:
        """tensors: name -> (dtype, shape, address, owner); the elements at address are dense."""

    @staticmethod
    def from_prepared(
        program: Program,
        device: Device,
        persistent: bytes,
        weights: Sequence[tuple[int, bytes]],
    ) -> Weights:
        """What `prepared` returned."""

    def prepared(self) -> tuple[bytes, list[tuple[int, bytes]]]:
        """(persistent memory, [(buffer, bytes)]): what the methods read, as init left it, for a
        device of the same kind."""

    def pack(
        self,
        path: str | PathLike[str],
        checkpoint: str | PathLike[str] | None = None,
        names: Sequence[tuple[str, str]] = ...,
        checked_nan: bool = False,
    ) -> None:
        """Writes what the methods read, as init left it, to a file that from_file takes."""

    @property
    def note(self) -> str:
        """Why packed weights had to be prepared anew; empty where they had not."""

    def check(self) -> None:
        """Raises Error when a file whose tensors are used where they lie was changed in place."""

    @property
    def in_place(self) -> bool:
        """Whether tensors of the checkpoint are used where they lie."""

    @property
    def extra(self) -> list[str]:
        """Tensors of the checkpoint that the program does not use."""

class State:
    """The state of one session; zero at first."""

    def __init__(self, program: Program, device: Device) -> None: ...
    def copy(self) -> State:
        """Another state with the same content."""

    def tensors(self) -> list[tuple[str, int, str, tuple[int, ...]]]: ...
    def read(self, buffer: int) -> bytes: ...
    def write(self, buffer: int, bytes: bytes) -> None: ...

class Executor:
    own_state: State | None
    """The state of runs that are given none; None before the first."""

    def __init__(self, program: Program, device: Device) -> None: ...
    @property
    def ranks_device(self) -> Device | None: ...
    def method_index(self, name: str) -> int: ...
    def run(
        self,
        method: int,
        inputs: Sequence[DeviceBuffer],
        outputs: Sequence[DeviceBuffer],
        weights: Weights | None,
        state: State | None = None,
        sizes: Sequence[int] = (),
    ) -> None: ...
    def run_at(
        self,
        method: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        weights: Weights | None,
        queue: int,
    ) -> None:
        """Runs over tensors at addresses of the device, which must fit the method's specs, in a
        stream of their library's. Waits only if the method can fail.
        """

    def observe(
        self,
        method: int,
        inputs: Sequence[DeviceBuffer],
        outputs: Sequence[DeviceBuffer],
        weights: Weights | None,
        after: Callable[[int], None],
        state: State | None = None,
        sizes: Sequence[int] = (),
    ) -> None: ...
    def time(
        self,
        method: int,
        inputs: Sequence[DeviceBuffer],
        outputs: Sequence[DeviceBuffer],
        weights: Weights | None,
        state: State | None = None,
        sizes: Sequence[int] = (),
    ) -> list[float]:
        """Runs one command at a time; how long each took, in seconds."""

    def time_run(
        self,
        method: int,
        inputs: Sequence[DeviceBuffer],
        outputs: Sequence[DeviceBuffer],
        weights: Weights | None,
        state: State | None = None,
        sizes: Sequence[int] = (),
    ) -> float:
        """Runs; how long it took by the host's clock, in seconds, without Python's part."""

    def implementations(self, method: int) -> list[str]:
        """The library that computes each command, with its version; empty: a kernel."""

    def read_buffer(self, index: int) -> bytes | None:
        """The bytes of a program buffer, or None when it is not bound."""
    def write_buffer(self, index: int, data: bytes) -> None:
        """Replaces the first bytes of a program buffer that commands write."""

class Session:
    def __init__(self, executor: Executor, weights: Weights | None, method: int) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]: ...
    def _call_slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]: ...

class Sampler:
    """Chooses the next token from the scores of all."""

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
    ) -> None: ...
    def sample(self, logits: NDArray[Any], history: Sequence[int] = ()) -> int: ...

class LanguageModel:
    def __init__(self, program: Program, device: Device, weights: Weights | None) -> None: ...
    @property
    def max_context(self) -> int: ...
    @property
    def prefill_chunk(self) -> int: ...
    @property
    def has_step(self) -> bool: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> list[int]: ...

# token, logarithm of its probability, the most probable ones with theirs
_Logprob = tuple[int, float, list[tuple[int, float]]]

class Engine:
    """Many requests to one language model; npusim.serve.paged has the words."""

    def __init__(
        self,
        program: Program,
        device: Device,
        weights: Weights | None,
        *,
        max_requests: int = 0,
        max_step_tokens: int = 0,
        prefix_cache: bool = True,
        step_seconds: float = 0.0,
        patience: int = 256,
        max_waiting: int = 1024,
    ) -> None: ...
    @staticmethod
    def of_model(
        model: LanguageModel,
        *,
        max_requests: int = 0,
        step_seconds: float = 0.0,
        max_waiting: int = 1024,
        most_step_seconds: float = 0.0,
    ) -> Engine: ...
    @staticmethod
    def memory(program: Program) -> dict[str, int]: ...
    def submit(self, tokens: Sequence[int], options: dict[str, Any], reader: int = 0) -> int: ...
    def leave(self, reader: int) -> None: ...
    def poll_packed(self, timeout: float, reader: int) -> bytes: ...
    # (request, tokens, logprobs, prompt_logprobs, ending, error, cached_tokens) of each
    def poll(
        self, timeout: float
    ) -> list[
        tuple[
            int,
            list[int],
            list[_Logprob] | None,
            list[_Logprob] | None,
            str | None,
            Error | None,
            int,
        ]
    ]: ...
    def cancel(self, request: int) -> None: ...
    def allow(self, request: int, mask: NDArray[np.bool_]) -> None: ...
    def allow_packed(self, request: int, bits: bytes) -> None: ...
    def failure(self) -> str: ...
    def stats(self) -> dict[str, Any]: ...
    def facts(self) -> dict[str, Any]: ...
    def drain(self, timeout: float) -> bool: ...
    def close(self) -> None: ...

class LanguageSession:
    def __init__(self, model: LanguageModel) -> None: ...
    def append(self, tokens: Sequence[int]) -> None: ...
    @property
    def logits(self) -> NDArray[np.float32]: ...
    def step(self, sampler: Sampler, more: bool = False) -> int: ...
    def score(self, tokens: Sequence[int]) -> list[float]: ...
    def fork(self) -> LanguageSession: ...
    def rewind(self, position: int) -> None: ...
    def reset(self) -> None: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def load(self, path: str | PathLike[str]) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
