"""TargetConfig: the capabilities of a target that the passes and the lowering ask for.

One data file a target lies in `targets/data/`; unknown and missing keys are refused, so that a
file never says something nobody reads. A file with the key `like` says where it differs from an
installed target. `code_format` and `features` may be left out: they are the architecture's then,
and so may `measured`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from npusim.abi.kernels import KERNELS
from npusim.errors import TargetConstraintError
from npusim.ir.types import DTYPES
from npusim.targets.architecture import fitted
from npusim.targets.features import Architecture, architecture, listed_architectures
from npusim.targets.measured import Measured
from npusim.targets.native import native_architecture

# By format of device code, who says what pays; of Metal's devices none has been measured.
MEASURED = {"": "x86_64", "cubin": "sm_90a", "msl": "x86_64"}
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

    @classmethod
    def from_json(cls, data: object, where: str) -> KernelLimits:
        """Returns what a target file says; TargetConstraintError for anything else."""
        given = data if isinstance(data, dict) else {"": None}
        dtypes: Any = given.get("dtypes", [])
        rank = given.get("rank", 0)
        known = isinstance(dtypes, list) and all(d in DTYPES for d in dtypes)
        if set(given) - {"dtypes", "rank"} or not known or type(rank) is not int or rank < 0:
            raise TargetConstraintError(
                f"{where}: {json.dumps(data)} limits no kernel.",
                hint='Write {"dtypes": [names], "rank": most dimensions}; either may be left out.',
            )
        return cls(tuple(dtypes), rank)


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
        arch: what device code is generated for, such as "sm_90a"; empty: the backend has its own.
        libraries: which commands cuBLASLt and cuDNN compute where they are there: "auto", those
            they were measured to be faster at; "all" they can; or "none".
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

    @property
    def measurements(self) -> Measured:
        """What was fitted to measurements of the device, or of one that is like it.

        Raises:
            TargetConstraintError: `measured` names nothing, or a file that is malformed.
        """
        return fitted(self.measured or MEASURED.get(self.code_format, MEASURED[""]))

    def has(self, *stems: str) -> bool:
        """Tells whether the backend has all of these kernels."""
        return all(stem in self.kernels for stem in stems)

    def refusal(self, stem: str, operands: Iterable[tuple[str, int]]) -> str | None:
        """Returns why the target cannot run a kernel on such operands, or None when it can.

        Args:
            operands: (dtype, number of dimensions) of each.
        """
        if stem not in self.kernels:
            return f"target '{self.name}' has no kernel '{stem}'"
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
    def leaves_norms(self) -> bool:
        """Whether linears of many rows do a part of the norm after them.

        Worth it where their tiles are loaded by TMA, so that the norm's launch is what is saved.
        """
        return self.uses_tma and self.has("linear_before_norm", "linear_behind_norm")

    @classmethod
    def named(cls, name: str) -> TargetConfig:
        """Returns a target of this installation, or reads the file that `name` is a path to.

        After a colon stands the architecture to generate code for, "cuda:sm_80". Without one it is
        that of this machine's device, or where there is none, the one that the target's file names.

        Raises:
            TargetConstraintError: no such target; the message lists those that exist. Or the
                target has no architectures.
        """
        base, colon, arch = name.partition(":")
        if base in target_names():
            file = resources.files(__package__) / "data" / f"{base}.json"
            target = cls.from_json(file.read_text("utf-8"), base)
            arch = arch if colon else native_architecture(target.code_format)
            return target.with_arch(arch) if colon or arch else target
        path = Path(name)
        if path.suffix == ".json" and path.is_file():
            return cls.from_json(path.read_text("utf-8"), name)
        known = ", ".join(target_names())
        raise TargetConstraintError(
            f"Unknown target '{name}'.", hint=f"Known targets: {known}; or pass a .json file."
        )

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
    def from_json(cls, text: str, origin: str) -> TargetConfig:
        """Parses a target file; TargetConstraintError for a malformed one."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise TargetConstraintError(f"Target {origin} is not JSON: {error}.") from error
        if not isinstance(data, dict):
            raise TargetConstraintError(f"Target {origin}: expected an object at the top.")
        if (like := data.pop("like", None)) is not None:
            data = {**_installed(like, origin), **data}
        names = {f.name for f in fields(cls)}
        needed = {f.name for f in fields(cls) if f.default is f.default_factory is MISSING}
        if not needed <= set(data) <= names:
            wrong = sorted((set(data) - names) | (needed - set(data)))
            raise TargetConstraintError(
                f"Target {origin}: unknown or missing keys {wrong}.",
                hint=f"A target has exactly these: {sorted(names)}.",
            )
        data["kernels"] = _kernels(data["kernels"], origin)
        data = {**_device_code(data, origin), **data}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items()
        }
        values["limits"] = _limits(data.get("limits", {}), values["kernels"], origin)
        _refuse_unread_measurements(data, origin)
        return cls(**values)


def _installed(name: object, origin: str) -> dict[str, Any]:
    """Returns what the file of an installed target says, for one that is like it."""
    if name not in target_names():
        known = ", ".join(target_names())
        raise TargetConstraintError(
            f"Target {origin}: there is no target {name!r} to be like.",
            hint=f"Known targets: {known}.",
        )
    file = resources.files(__package__) / "data" / f"{name}.json"
    data: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return {**_installed(data.pop("like"), origin), **data} if "like" in data else data


def _device_code(data: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Returns `code_format` and `features` of a file's architecture; refuses what it has not."""
    arch = data["arch"]
    if arch == "":
        found = Architecture("", ())
    elif not isinstance(arch, str) or (known := architecture(arch)) is None:
        raise TargetConstraintError(
            f"Target {origin}: there is no architecture {arch!r} to generate code for.",
            hint=f'Write one such as {", ".join(listed_architectures())}; or "" for no code.',
        )
    else:
        found = known
    code_format, features = data.get("code_format", found.code_format), data.get("features", [])
    if code_format not in ("", found.code_format):
        raise TargetConstraintError(
            f"Target {origin}: code for {arch!r} has not the format {code_format!r}.",
            hint=f"Leave 'code_format' out, or write {found.code_format!r}; or '' for no code.",
        )
    if not isinstance(features, list) or not all(f in found.features for f in features):
        raise TargetConstraintError(
            f"Target {origin}: 'features' are {json.dumps(features)}, not of {arch!r}.",
            hint=f"Leave them out, or write some of {json.dumps(found.features)}.",
        )
    return {"code_format": found.code_format, "features": found.features}


def _refuse_unread_measurements(data: Mapping[str, Any], origin: str) -> None:
    """Refuses measurements that are not there, or that nobody would read."""
    name, code_format = data.get("measured", ""), data["code_format"]
    if not isinstance(name, str):
        raise TargetConstraintError(
            f"Target {origin}: 'measured' is {json.dumps(name)}, not a name or a path."
        )
    if name:
        fitted(name)
    # Rules of config do not know for which target they choose.
    if code_format and name not in ("", MEASURED.get(code_format)):
        raise TargetConstraintError(
            f"Target {origin}: code in the format {code_format!r} is chosen by what was measured "
            f"of {MEASURED.get(code_format)!r}, not by 'measured'.",
            hint="Leave 'measured' out.",
        )


def _kernels(given: object, origin: str) -> list[str]:
    """Returns the kernels that a file lists, or all but those; refuses one that nobody has."""
    if not isinstance(given, dict) or set(given) != {"all_but"}:
        return _known_kernels(given, origin)
    left_out = _known_kernels(given["all_but"], origin)
    return [stem for stem in KERNELS if stem not in left_out]


def _known_kernels(stems: object, origin: str) -> list[str]:
    hint = f"'kernels' is a list of these, or {{\"all_but\": [some]}}: {', '.join(KERNELS)}."
    if not isinstance(stems, list):
        raise TargetConstraintError(f"Target {origin}: 'kernels' is no list.", hint=hint)
    unknown = [s for s in stems if not isinstance(s, str) or s not in KERNELS]
    if unknown:
        names = ", ".join(map(json.dumps, unknown))
        raise TargetConstraintError(f"Target {origin}: no kernel is called {names}.", hint=hint)
    return stems


def _limits(data: object, kernels: Iterable[str], origin: str) -> dict[str, KernelLimits]:
    if not isinstance(data, dict) or not set(data) <= {ALL, *kernels}:
        raise TargetConstraintError(
            f"Target {origin}: limits are of no kernel that it lists.",
            hint=f'Write {{stem: limits}}, with one of its kernels or "{ALL}" as the stem.',
        )
    return {k: KernelLimits.from_json(v, f"Target {origin}, {k}") for k, v in data.items()}


def target_names() -> tuple[str, ...]:
    """Names of the targets of this installation."""
    files = (entry.name for entry in (resources.files(__package__) / "data").iterdir())
    return tuple(sorted(f[: -len(".json")] for f in files if f.endswith(".json")))
