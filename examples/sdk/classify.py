"""Which digit an image shows, by the C interface and Python's ctypes: no npusim package is needed.

python classify.py libnpusim.so digits.npubin digits.safetensors IMAGE.pgm
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

SIDE, CLASSES, FLOAT32 = 8, 10, 0


class Tensor(ctypes.Structure):
    """npusim_tensor."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class RunOptions(ctypes.Structure):
    """npusim_run_options, as far as it is needed: the library takes the rest as zero."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("weights", ctypes.c_void_p))


class Library:
    """Functions of libnpusim that raise what they report."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.npusim_last_error.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """Calls npusim_<name>. Raises RuntimeError with its sentence."""
        if getattr(self._library, f"npusim_{name}")(*arguments) != 0:
            raise RuntimeError(self._library.npusim_last_error().decode(errors="replace"))

    def make(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Calls npusim_<name>, whose last argument is where the handle goes."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle


def read_pgm(path: Path) -> list[float]:
    """Returns the 64 pixels of a binary PGM of 8 x 8, from 0 to 1."""
    kind, width, height, most, pixels = path.read_bytes().split(maxsplit=4)
    if (kind, int(width), int(height), len(pixels)) != (b"P5", SIDE, SIDE, SIDE * SIDE):
        raise ValueError(f"{path} is no binary PGM of {SIDE} x {SIDE} pixels")
    return [pixel / int(most) for pixel in pixels]


def tensor(data: ctypes.Array[ctypes.c_float], shape: tuple[int, ...]) -> Tensor:
    """Shows an array to the library."""
    extents = (ctypes.c_int64 * len(shape))(*shape)
    made = Tensor(ctypes.sizeof(Tensor), None, ctypes.addressof(data), ctypes.sizeof(data))
    made.shape, made.rank, made.dtype = extents, len(shape), FLOAT32
    return made


def main(library: str, program: str, weights: str, image: str) -> None:
    """Prints the digit."""
    npusim = Library(library)
    device = npusim.make("device_open", b"cpu", None)
    loaded = npusim.make("program_open", program.encode())
    held = npusim.make("weights_open", loaded, device, weights.encode(), None)
    executor = npusim.make("executor_create", loaded, device)
    pixels = (ctypes.c_float * (SIDE * SIDE))(*read_pgm(Path(image)))
    scores = (ctypes.c_float * CLASSES)()
    inputs, outputs = tensor(pixels, (1, 1, SIDE, SIDE)), tensor(scores, (1, CLASSES))
    options = RunOptions(ctypes.sizeof(RunOptions), held)
    one = ctypes.c_size_t(1)
    npusim.call(
        "executor_call", executor, ctypes.c_size_t(0), ctypes.byref(inputs), one,
        ctypes.byref(outputs), one, ctypes.byref(options),
    )  # fmt: skip
    print(max(range(CLASSES), key=lambda digit: scores[digit]))


if __name__ == "__main__":
    main(*sys.argv[1:])
