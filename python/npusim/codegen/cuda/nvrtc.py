"""NVRTC, NVIDIA's run-time compiler, through ctypes: CUDA source in, device code and its log out.

Owns finding the library: `NPUSIM_NVRTC` names one; else the wheels of NVIDIA (which PyTorch brings
as well), a CUDA toolkit, and what the system's loader knows are tried in this order. No GPU and no
driver are needed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from npusim.errors import Error, TargetConstraintError

logger = logging.getLogger(__name__)

_INSTALL = (
    "Install it: pip install 'npusim[cuda13]' (or 'npusim[cuda12]' for a driver older than 580), "
    "or set NPUSIM_NVRTC to the path of libnvrtc.so of a CUDA toolkit."
)
_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


class CompilerError(Error):
    """NVRTC refused a kernel npusim generated: a defect of npusim, with the compiler's log."""


class Nvrtc:
    """A loaded NVRTC library. Compiling releases the GIL, so threads compile in parallel."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._lib = library
        self.path = path
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._must(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def architectures(self) -> tuple[int, ...]:
        """Returns the compute capabilities it compiles for: 90 means sm_90."""
        count = ctypes.c_int()
        self._must(self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._must(self._lib.nvrtcGetSupportedArchs(found))
        return tuple(found)

    def require(self, arch: str) -> None:
        """Raises TargetConstraintError unless it compiles for an architecture such as "sm_90"."""
        number = re.fullmatch(r"sm_(\d+)[af]?", arch)
        known = self.architectures()
        if number is None or int(number[1]) not in known:
            names = ", ".join(f"sm_{n}" for n in known)
            version = ".".join(map(str, self.version))
            raise TargetConstraintError(
                f"NVRTC {version} does not compile for '{arch}'.", hint=f"It knows {names}."
            )

    def compile(self, source: str, options: Sequence[str], name: str) -> tuple[bytes, str]:
        """Compiles one translation unit.

        Returns:
            The cubin, and the compiler's log (empty unless an option asks for one).

        Raises:
            CompilerError: the source does not compile; the message ends with the log.
        """
        lib, program = self._lib, ctypes.c_void_p()
        self._must(
            lib.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), name.encode(), 0, None, None
            )
        )
        try:
            arguments = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            status = lib.nvrtcCompileProgram(program, len(options), arguments)
            log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if status != 0:
                error = lib.nvrtcGetErrorString(status).decode()
                raise CompilerError(f"The CUDA kernel {name} does not compile ({error}):\n{log}")
            return self._text(program, "CUBIN"), log
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._must(getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        data = ctypes.create_string_buffer(max(size.value, 1))
        self._must(getattr(self._lib, f"nvrtcGet{what}")(program, data))
        return data.raw[: size.value]

    def _must(self, status: int) -> None:
        if status != 0:
            reason = self._lib.nvrtcGetErrorString(status).decode()
            raise Error(f"NVRTC ({self.path}) failed: {reason}.", hint=_INSTALL)


@cache
def load() -> Nvrtc:
    """Returns the NVRTC of this machine.

    Raises:
        Error: there is none; the message says what to install.
    """
    for candidate in _candidates():
        try:
            found = Nvrtc(ctypes.CDLL(candidate), candidate)
            logger.info("NVRTC %s in %s", ".".join(map(str, found.version)), candidate)
            return found
        except (OSError, AttributeError):
            continue
    raise Error("Compiling for CUDA needs NVRTC, and libnvrtc was not found.", hint=_INSTALL)


def _candidates() -> Iterator[str]:
    """Yields paths and names to try; wheels hold it in nvidia/cu13 or nvidia/cuda_nvrtc."""
    chosen = os.environ.get("NPUSIM_NVRTC")
    if chosen:
        yield chosen
        return
    for entry in sys.path:
        root = Path(entry or ".") / "nvidia"
        for folder in ("cu13/lib", "cuda_nvrtc/lib"):
            yield from map(str, sorted((root / folder).glob("libnvrtc.so.*")))
    toolkits = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    for toolkit in (*filter(None, toolkits), "/usr/local/cuda"):
        for folder in ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
            yield from map(str, sorted((Path(toolkit) / folder).glob("libnvrtc.so.*")))
    yield from _SONAMES
