"""TargetConfig: the capabilities of a target that the passes and the lowering ask for.

One TOML file a target lies in `targets/data/`; unknown and missing keys are refused, so that a
file never says something nobody reads. A file with the key `like` says where it differs from an
installed target. `code_format` and `features` may be left out: they are the architecture's then,
and so may `measured`. Tables beside these keys describe the machine (`hardware.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from importlib import resources
from math import lcm
from typing import Any

from npusim.abi.kernels import KERNELS
from npusim.errors import TargetConstraintError
from npusim.ir.types import DTYPES, dtype_size
from npusim.targets import data_file
from npusim.targets.architecture import fitted, gpu
from npusim.targets.data_file import DataFile
from npusim.targets.dtype_tables import taken_over
from npusim.targets.features import Architecture, architecture, listed_architectures
from npusim.targets.hardware import NPU_TABLES, Calibration, Hardware, Npu
from npusim.targets.launch_limits import LaunchLimits
from npusim.targets.measured import Measured, Recurrent
from npusim.targets.native import native_architecture
from npusim.targets.records import Contradiction, read_record, unknown_key
from npusim.targets.roofline import Roofline

# By format of device code, who says what pays; of Metal's devices none has been measured.
MEASURED = {"": "x86_64", "cubin": "sm_90a", "msl": "x86_64"}
_MOST_ALIGNED = 4096
ALL = "*"  # in `TargetConfig.limits`: every kernel that has no limits of its own


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """What a target's kernel takes.

    Attributes:
        dtypes: those its operands may have; empty: all.
        rank: most dimensions an operand may have; 0: any number.
    """

    dtypes: tuple[str, ...] = ()
    rank: int = 0

    def __post_init__(self) -> None:
        for at, dtype in enumerate(self.dtypes):
            if dtype not in DTYPES:
                raise Contradiction(f"no dtype is called that. {', '.join(DTYPES)}.", "dtypes", at)


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Capabilities of one target.

    Attributes:
        name: what `compile(target=…)` is given and what the program carries.
        device: the runtime backend that runs it.
        kernels: stems (`abi/kernels.py`) of the kernels the backend has. No other is emitted for
            the target, and passes fuse nothing into an op that would need another. A file lists
            them, or says `{"all_but": [stems]}`.
        pointwise_inputs: most tensors one fused chain may read.
        pointwise_instructions: most instructions of one fused chain.
        pointwise_registers: most values alive at once in one fused chain.
        conv_channels_last: convolution and pooling kernels want channels-last tensors.
        conv_vectors: most vectors that the bias operand of a convolution may consist of: 1, the
            bias; 2, factors of the sums before it; 3, offsets that are added last of all.
        winograd_tiles: output tile sizes of the Winograd kernels, smallest first; empty: none.
        epilogue_activations: scalar opcodes that gemm and conv can apply to their results.
        weight_quantization: how linears have their weights: "none", or a scheme such as "int8",
            "int4-g32" or "int4-g128-asymmetric" (`abi/quantization.py` lists them).
        precision: what models of float32 are multiplied and stored in: "float32", or one of
            `abi/precision.py`, such as "bfloat16".
        carries_float32: what sums add to, one after the other without a product between them, stays
            float32 in such a precision, and norms of rows read and write either dtype.
        arch: what device code is generated for, such as "sm_90a"; empty: the backend has its own.
        libraries: which commands cuBLASLt and cuDNN, or on Metal MPS, compute where they are
            there: "auto", those they were measured to be faster at; "all" they can; or "none".
        batch_invariance: where rows of a method over pages have the same bits in any number of rows
            and any chunks: "auto", where that costs little, which is products that TMA loads, over
            quantized weights as well, and of these up to 64 rows elsewhere; "all", in other
            products too; or "none", for speed alone. Only where device code is generated: other
            kernels have one order.
        run_seconds: fixed time of calling a program, in seconds. This and the rates below are
            estimates, by which a partitioned model is cut (`npusim/partition/cost.py`).
        compute_rate: floating-point operations a second.
        memory_rate: bytes a second from the device's memory.
        transfer_seconds: fixed time of a transfer between host and device, in seconds.
        transfer_rate: bytes a second of such a transfer; 0 where both share their memory.
        limits: by stem, or `ALL`, what a kernel takes; by default all that its op allows.
        code_format: of the device code that is generated, such as "cubin"; empty: none is.
        features: what that code may use (`targets/features.py` lists them), such as "tma".
        measured: who says what pays on the device: an installed file of `targets/architectures/`
            by its name, or the path of another one; empty: the one measured for such device code.
        normed_rows: most rows of x that the kernel `normed_linear` normalises on the way.
        launches: what launches of device code keep to; None: the backend's own code does.
        channel_align_bytes: what rows of a tensor in memory begin at multiples of: its innermost
            stored dimension, the channels of a channels-last image, is padded to it.
        channel_tile: elements that these are padded to multiples of besides. What a described
            machine asks for (`Constraints.channel_align`) is heeded as well.
        hardware: the machine, where the file describes it: what programs are scheduled for and
            simulated on.
    """

    name: str
    device: str
    kernels: tuple[str, ...]
    pointwise_inputs: int
    pointwise_instructions: int
    pointwise_registers: int
    conv_channels_last: bool
    conv_vectors: int
    winograd_tiles: tuple[int, ...]
    epilogue_activations: tuple[str, ...]
    weight_quantization: str
    arch: str
    libraries: str
    run_seconds: float
    compute_rate: float
    memory_rate: float
    transfer_seconds: float
    transfer_rate: float
    limits: Mapping[str, KernelLimits] = field(default_factory=dict, hash=False)
    code_format: str = ""
    features: tuple[str, ...] = ()
    measured: str = ""
    normed_rows: int = 1
    launches: LaunchLimits | None = None
    channel_align_bytes: int = 1
    channel_tile: int = 1
    precision: str = "float32"
    carries_float32: bool = False
    hardware: Hardware | None = None
    batch_invariance: str = "auto"

    def __post_init__(self) -> None:
        for key in ("channel_align_bytes", "channel_tile"):
            value = getattr(self, key)
            if not 1 <= value <= _MOST_ALIGNED:
                raise Contradiction(f"'{key}' is {value}, not from 1 to {_MOST_ALIGNED}.", key)
        if self.batch_invariance not in ("auto", "all", "none"):
            raise Contradiction(
                f"'batch_invariance' is '{self.batch_invariance}', not 'auto', 'all' or 'none'.",
                "batch_invariance",
            )

    def channel_multiple(self, dtype: str) -> int:
        """Returns what the innermost stored extent of a tensor is padded to a multiple of."""
        size = dtype_size(dtype)
        of_bytes = lcm(self.channel_align_bytes, size) // size
        npu = self.npu
        of_machine = 1 if npu is None else npu.constraints.channel_align.get(dtype, 1)
        return lcm(of_bytes, self.channel_tile, of_machine)

    @property
    def measurements(self) -> Measured:
        """What was fitted to measurements of the device, or of one that is like it.

        Raises:
            TargetConstraintError: `measured` names nothing, or a file that is malformed.
        """
        return fitted(self.measured or MEASURED.get(self.code_format, MEASURED[""]))

    @property
    def recurrent(self) -> Recurrent:
        """When a step of a recurrence is one command; where nobody measured it, as on the H200."""
        return (self.measurements.gpu or gpu(MEASURED["cubin"])).recurrent

    def has(self, *stems: str) -> bool:
        """Tells whether the backend has all of these kernels."""
        return all(stem in self.kernels for stem in stems)

    def refusal(
        self, stem: str, operands: Iterable[tuple[str, int]], *, at_load: bool = False
    ) -> str | None:
        """Returns why the target cannot run a kernel on such operands, or None when it can.

        Args:
            operands: (dtype, number of dimensions) of each.
            at_load: the kernel prepares weights before any call, which is no affair of a described
                machine: they come to it prepared.
        """
        if stem not in self.kernels:
            return f"target '{self.name}' has no kernel '{stem}'"
        operands = tuple(operands)
        machine = None if at_load else self.hardware
        if machine is not None and (why := machine.refusal(stem, operands)) is not None:
            return f"machine '{self.name}' {why}"
        limits = self.limits.get(stem) or self.limits.get(ALL)
        if limits is None:
            return None
        kernel = f"kernel '{stem}' of target '{self.name}'"
        for dtype, rank in operands:
            if limits.dtypes and dtype not in limits.dtypes:
                return f"{kernel} takes dtype {' or '.join(limits.dtypes)}, not {dtype}"
            if limits.rank and rank > limits.rank:
                return f"{kernel} takes at most {limits.rank} dimensions, not {rank}"
        return None

    @property
    def leaves_nodes(self) -> bool:
        """Whether PyTorch may run the nodes that it cannot: its machine may rule that out."""
        return self.npu is None or self.npu.constraints.fallback == "host"

    @property
    def npu(self) -> Npu | None:
        """The machine that the file describes part by part, if it does."""
        return None if self.hardware is None else self.hardware.npu

    @property
    def multiplies_bytes(self) -> bool:
        """Whether products of bytes are to be: a described machine has them, or else kernels do.

        Where a machine has them and its device has no kernels, they are refused, since floats in
        their place would have other values.
        """
        if self.npu is not None:
            return "int8" in self.npu.multiplied
        return self.has("conv_int8", "pack_int8")

    @property
    def has_linears(self) -> bool:
        """Whether a kernel multiplies by weights: as a checkpoint has them, or in panels."""
        return self.has("linear") or self.has("pack_b", "gemm")

    @property
    def uses_tma(self) -> bool:
        """Whether device code loads tiles of matrices to shared memory by TMA.

        Only worth it where the tensor cores multiply them there.
        """
        return {"tma", "wgmma"} <= set(self.features)

    @property
    def joins_phases(self) -> bool:
        """Whether `conv` takes all phases of a transposed convolution at once."""
        return self.code_format == "cubin"

    @property
    def rows_normed(self) -> int:
        """Most rows of x that a product can begin with the norm of; 0: it takes a command."""
        return self.normed_rows if self.has("normed_linear") else 0

    @property
    def leaves_norms(self) -> bool:
        """Whether linears of many rows do a part of the norm after them.

        Worth it where their tiles are loaded by TMA, so that the norm's launch is what is saved.
        """
        return self.uses_tma and self.has("linear_before_norm", "linear_behind_norm")

    @classmethod
    def named(cls, name: str) -> TargetConfig:
        """Returns a target of this installation, or reads the file that `name` is a path to.

        After a colon stands the architecture to generate code for, "cuda:sm_80". Without one it is
        that of this machine's device; where there is none, or where the target's file describes
        another machine, the one that it names.

        Raises:
            TargetConstraintError: no such target; the message lists those that exist. Or the
                target has no architectures.
        """
        base, colon, arch = name.partition(":")
        if base not in target_names():
            known = f"Known targets: {', '.join(target_names())}"
            return _target(_like(data_file.own_file(name, f"Unknown target '{name}'.", known)))
        target = _installed_target(base)
        if not colon and target.hardware is None:
            arch = native_architecture(target.code_format)
        return target.with_arch(arch) if colon or arch else target

    def with_arch(self, arch: str) -> TargetConfig:
        """Returns this target for another architecture of its device."""
        if not self.code_format:
            raise TargetConstraintError(
                f"Target '{self.name}' has no architectures to choose from."
            )
        found = architecture(arch)
        if found is None or found.code_format != self.code_format:
            raise TargetConstraintError(
                f"'{arch}' is not an architecture of target '{self.name}'.",
                hint=f"Write one such as {', '.join(listed_architectures(self.code_format))}.",
            )
        return replace(self, arch=arch, features=found.features)

    @classmethod
    def from_toml(cls, text: str, origin: str) -> TargetConfig:
        """Parses a target file; TargetConstraintError for a malformed one."""
        return _target(_like(data_file.parse(text, origin)))

    @classmethod
    def from_data(cls, file: DataFile) -> TargetConfig:
        """Returns what a whole file says, which is like no other."""
        return _target(file)


_TABLES = (*NPU_TABLES, "roofline", "calibration")  # that describe the machine
_OF_CALLERS = ("hardware",)  # fields that no key of a file is


def _target(file: DataFile) -> TargetConfig:
    names = [f.name for f in fields(TargetConfig) if f.name not in _OF_CALLERS]
    for key in file.data:
        if key not in names and key not in _TABLES:
            raise unknown_key(file.place, (key,), (*names, *_TABLES, "like"))
    data = {k: v for k, v in file.data.items() if k in names}
    if "kernels" in data:
        data["kernels"] = _kernels(data["kernels"], file)
    target = read_record(TargetConfig, {**_device_code(data, file), **data}, file.place)
    for stem in target.limits:
        if stem != ALL and stem not in target.kernels:
            raise unknown_key(file.place, ("limits", stem), (ALL, *target.kernels))
    _refuse_unread_measurements(target, file)
    hardware = _hardware(target.name, file)
    layout = "NHWC" if target.conv_channels_last else "NCHW"
    npu = None if hardware is None else hardware.npu
    if npu is not None and layout not in npu.constraints.layouts:
        raise TargetConstraintError(
            f"{file.place(('constraints', 'layouts'))}: images lie as {layout} in its programs "
            f"('conv_channels_last'), and 'constraints.layouts' does not name that."
        )
    return replace(target, hardware=hardware)


def _hardware(name: str, file: DataFile) -> Hardware | None:
    """Returns the machine that a file describes, if it does."""
    if not any(key in file.data for key in _TABLES):
        return None
    data, place = file.data, file.place
    parts = {key: data[key] for key in NPU_TABLES if key in data}
    roofline = data.get("roofline")
    if (roofline is None) == (not parts):
        wrong = "both of parts and of a roofline" if parts else "neither of parts nor of a roofline"
        raise TargetConstraintError(
            f"{place(('roofline',) if parts else ('calibration',))}: the machine is described by "
            f"{wrong}.",
            hint=f"Write [roofline], or the tables {', '.join(NPU_TABLES)}.",
        )
    return Hardware(
        name,
        npu=read_record(Npu, parts, place) if parts else None,
        roofline=None if parts else read_record(Roofline, roofline, place, ("roofline",)),
        calibration=read_record(Calibration, data.get("calibration", {}), place, ("calibration",)),
    )


@cache  # every compilation names one, and reading its file takes as long as compiling a small model
def _installed_target(name: str) -> TargetConfig:
    return _target(_installed(name))


@cache
def _installed(name: str) -> DataFile:
    """Returns what the file of an installed target says, with what it takes over."""
    folder = resources.files(__package__) / "data"
    return _like(data_file.read(folder / f"{name}.toml", f"targets/data/{name}.toml"))


def _like(file: DataFile) -> DataFile:
    return data_file.like(file, partial(_base, file), target_names())


def _base(file: DataFile, name: str) -> DataFile:
    """Returns an installed target for a file to be like, without a machine that is not the file's.

    Another device, or a machine of another kind, is described by the file alone.
    """
    base = _installed(name)
    other_device = file.data.get("device", base.data["device"]) != base.data["device"]
    parts, roofline = any(key in file.data for key in NPU_TABLES), "roofline" in file.data
    other_kind = parts if "roofline" in base.data else roofline
    return base.without(*_TABLES) if other_device or other_kind else taken_over(base, file)


def _device_code(data: Mapping[str, Any], file: DataFile) -> dict[str, Any]:
    """Returns `code_format` and `features` of a file's architecture; refuses what it has not."""
    arch = data.get("arch", "")
    if arch == "":
        found = Architecture("", ())
    elif not isinstance(arch, str) or (known := architecture(arch)) is None:
        raise TargetConstraintError(
            f"{file.place(('arch',))}: there is no architecture {arch!r} to generate code for.",
            hint=f'Write one such as {", ".join(listed_architectures())}; or "" for no code.',
        )
    else:
        found = known
    code_format, features = data.get("code_format", found.code_format), data.get("features", [])
    if code_format not in ("", found.code_format):
        raise TargetConstraintError(
            f"{file.place(('code_format',))}: code for {arch!r} has not the format "
            f"{code_format!r}.",
            hint=f"Leave 'code_format' out, or write {found.code_format!r}; or '' for no code.",
        )
    if not isinstance(features, list) or not all(f in found.features for f in features):
        raise TargetConstraintError(
            f"{file.place(('features',))}: 'features' are {json.dumps(features)}, not of {arch!r}.",
            hint=f"Leave them out, or write some of {json.dumps(found.features)}.",
        )
    return {"code_format": found.code_format, "features": list(found.features)}


def _refuse_unread_measurements(target: TargetConfig, file: DataFile) -> None:
    """Refuses measurements that are not there, or that nobody would read."""
    name, code_format = target.measured, target.code_format
    if name:
        fitted(name)
    # Rules of config do not know for which target they choose.
    if code_format and name not in ("", MEASURED.get(code_format)):
        raise TargetConstraintError(
            f"{file.place(('measured',))}: code in the format {code_format!r} is chosen by what "
            f"was measured of {MEASURED.get(code_format)!r}, not by 'measured'.",
            hint="Leave 'measured' out.",
        )


def _kernels(given: object, file: DataFile) -> list[str]:
    """Returns the kernels that a file lists, or all but those; refuses one that nobody has."""
    if not isinstance(given, dict) or set(given) != {"all_but"}:
        return _known_kernels(given, file)
    left_out = _known_kernels(given["all_but"], file)
    return [stem for stem in KERNELS if stem not in left_out]


def _known_kernels(stems: object, file: DataFile) -> list[str]:
    where = file.place(("kernels",))
    hint = f"'kernels' is a list of these, or {{all_but = [some]}}: {', '.join(KERNELS)}."
    if not isinstance(stems, list):
        raise TargetConstraintError(f"{where}: 'kernels' is no list.", hint=hint)
    unknown = [s for s in stems if not isinstance(s, str) or s not in KERNELS]
    if unknown:
        names = ", ".join(map(json.dumps, unknown))
        raise TargetConstraintError(f"{where}: no kernel is called {names}.", hint=hint)
    return stems


def target_names() -> tuple[str, ...]:
    """Names of the targets of this installation."""
    files = (entry.name for entry in (resources.files(__package__) / "data").iterdir())
    return tuple(sorted(f.removesuffix(".toml") for f in files if f.endswith(".toml")))
