"""Installs libnpusim into an empty prefix, checks it, and builds and runs the examples from there.

python -m tests.sdk [--quick] WORK [BUILD [CMAKE_OPTION …]]

WORK is made anew; BUILD, a folder of CMake that may be kept, is WORK/build unless given. Exits with
0 when everything held, and prints each check. --quick leaves out what builds the library again: by
FetchContent, with the least that it can have.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.sdk import chat_model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "sdk"
ABI = Path(__file__).parent / "libnpusim.abi"
# Most bytes of the stripped library: of everything, and with one instruction set of the cpu alone.
MOST_FULL, MOST_MINIMAL = 6_000_000, 1_500_000
_IMAGES = 20


def run(command: Sequence[str | Path], said: str = "", **env: str) -> str:
    """Runs a command, with `said` on its standard input; returns its output."""
    done = subprocess.run(
        [str(part) for part in command], input=said,
        capture_output=True, text=True, check=False, env={**os.environ, **env},
    )  # fmt: skip
    if done.returncode != 0:
        text = f"{done.stdout}{done.stderr}"[-4000:]
        raise SystemExit(f"FAILED ({done.returncode}): {' '.join(map(str, command))}\n{text}")
    return done.stdout


def _build(build: Path, prefix: Path, *options: str) -> Path:
    """Builds and installs; returns the shared library."""
    run(["cmake", "-S", ROOT, "-B", build, "-DNPUSIM_SDK=ON", "-DNPUSIM_PYTHON=OFF", *options])
    run(["cmake", "--build", build, "--target", "npusim_shared", "npusim_static"])
    run(["cmake", "--install", build, "--prefix", prefix])
    return (prefix / "lib" / "libnpusim.so").resolve()


def _check_symbols(library: Path) -> None:
    header = (ROOT / "include/npusim/npusim.h").read_text()
    declared = set(re.findall(r"^NPUSIM_API [^;(]*?\b(npusim_\w+)\(", header, re.MULTILINE))
    rows = run(["nm", "-D", "--defined-only", library]).splitlines()
    exported = {row.split()[-1] for row in rows}
    if exported != declared:
        raise SystemExit(
            f"FAILED: exported but not declared, or the reverse: {exported ^ declared}"
        )
    print(f"symbols: {len(exported)}, those of the header")


def _check_size(library: Path, most: int, what: str) -> None:
    stripped = library.with_suffix(".stripped")
    run(["strip", "-o", stripped, library])
    size = stripped.stat().st_size
    stripped.unlink()
    if size > most:
        raise SystemExit(f"FAILED: the {what} library has {size} bytes stripped, at most {most}")
    print(f"size, {what}: {size} bytes stripped")


def record_command(library: Path) -> list[str | Path]:
    """Returns what records the interface of a library."""
    options = ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--drop-private-types"]
    where: list[str | Path] = ["--headers-dir", ROOT / "include", "--exported-interfaces-only"]
    return ["abidw", *options, *where, library, "--out-file", ABI]


def check_abi(library: Path) -> None:
    """Compares the library with the recorded interface, where abidiff is there."""
    if shutil.which("abidiff") is None:
        print("abi: not compared, abidiff is not installed (Debian: abigail-tools)")
        return
    done = subprocess.run(
        ["abidiff", "--no-show-locs", "--no-architecture", str(ABI), str(library)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:  # also for what is added: it is recorded
        record = " ".join(map(str, record_command(library)))
        raise SystemExit(
            f"FAILED: the interface is another than the recorded one:\n{done.stdout}{done.stderr}\n"
            "Functions and fields that were only added at the end break nobody. For anything else\n"
            "count NPUSIM_ABI_VERSION in npusim.h up, and with it the SONAME. Then record it:\n"
            f"  {record}\nand name the change in CHANGELOG.md."
        )
    print("abi: the recorded one")


def _programs(folder: Path) -> Iterator[tuple[Path, int]]:
    """Makes what the examples run; yields images with the digits that PyTorch sees in them."""
    import torch
    from safetensors.numpy import save_file

    import npusim
    from npusim.demo import digits

    data = digits.load_digits()
    model = digits.train(data, 3)
    images = torch.from_numpy(data.test_images)
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    npusim.compile(npusim.extract_ir(model, (images[:1],))).save(folder / "digits.npubin")
    save_file(weights, folder / "digits.safetensors")
    batch = torch.export.Dim("batch", max=8)
    dynamic = npusim.extract_ir(model, (images[:2],), dynamic_shapes={"x": {0: batch}})
    npusim.export_onnx(dynamic, folder / "digits.onnx", weights)
    imported = npusim.from_onnx(folder / "digits.onnx", dynamic_shapes={"batch": 8})
    npusim.compile(imported.graph).save(folder / "batches.npubin")
    save_file(dict(imported.weights), folder / "batches.safetensors")
    for index, image in enumerate(data.test_images[:_IMAGES]):
        pixels = np.rint(image[0] * 255).astype(np.uint8)
        path = folder / f"{index}.pgm"
        path.write_bytes(b"P5\n8 8\n255\n" + pixels.tobytes())
        path.with_suffix(".png").write_bytes(_png(pixels.repeat(4, 0).repeat(4, 1)))
        seen = torch.from_numpy(pixels.astype(np.float32)[None, None] / 255)
        yield path, int(model(seen).argmax())


def _png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Returns a PNG of grey levels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    height, width = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _run_examples(prefix: Path, work: Path) -> None:
    build = work / "examples"
    run(["cmake", "-S", EXAMPLES, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"])
    run(["cmake", "--build", build])
    classifiers: dict[str, list[str | Path]] = {
        "C": [build / "classify"],
        "C, static": [build / "classify_static"],
        "ctypes": [sys.executable, EXAMPLES / "classify.py", prefix / "lib" / "libnpusim.so"],
        **_by_pkg_config(prefix, work),
    }
    if shutil.which("rustc"):
        run(["rustc", "-O", EXAMPLES / "classify.rs", "-L", prefix / "lib", "-o", build / "rust"])
        classifiers["Rust"] = [build / "rust"]
    where = {"LD_LIBRARY_PATH": str(prefix / "lib"), "PYTHONPATH": ""}
    files: list[str | Path] = [work / "digits.npubin", work / "digits.safetensors"]
    images = list(_programs(work))
    for name, command in classifiers.items():
        for image, digit in images:
            picture = image.with_suffix(".png") if name.startswith("C") else image
            said = run([*command, *files, picture], **where).strip()
            if said != str(digit):
                raise SystemExit(f"FAILED: {name} takes {picture} for {said}, PyTorch for {digit}")
        print(f"classifier, {name}: {len(images)} images as PyTorch says")
    batches = [build / "batches", work / "batches.npubin", work / "batches.safetensors", "3", "20"]
    print("batches:", run(batches, **where).strip())
    _run_chat(build / "chat", work, where)


def _by_pkg_config(prefix: Path, work: Path) -> dict[str, list[str | Path]]:
    """Builds the classifier without CMake, with the shared and with the static library alone."""
    if not shutil.which("pkg-config"):
        return {}
    archive = work / "archive"  # a place without the shared library, which linkers would prefer
    shutil.copytree(prefix, archive, symlinks=True, ignore=shutil.ignore_patterns("*.so*"))
    made: dict[str, list[str | Path]] = {}
    for name, folder, kind in (("", prefix, []), (", static", archive, ["--static"])):
        flags = run(
            ["pkg-config", *kind, "--cflags", "--libs", "npusim"],
            PKG_CONFIG_PATH=str(folder / "lib" / "pkgconfig"),
        ).split()
        program = work / f"classify_pc{len(made)}"
        run(["cc", "-std=c99", EXAMPLES / "classify.c", "-o", program, *flags, "-lpng"])
        made[f"C, pkg-config{name}"] = [program]
    return made


def _run_chat(program: Path, work: Path, where: dict[str, str]) -> None:
    """Talks to a model that was taught its answers, in two orders, and asks for what is wrong."""
    if not program.exists():
        print("chat: not built, SentencePiece is not installed (Debian: libsentencepiece-dev)")
        return
    chat_model.make(work)
    command = [program, work / "chat.npubin", work / "chat.safetensors", work / "chat.model"]
    taught = list(chat_model.ANSWERS.items())
    for first, second in zip(taught, taught[1:] + taught[:1], strict=True):
        said = run(command, said=f"{first[0]}\n{second[0]}\n", **where).splitlines()
        if said != [first[1], second[1]]:
            raise SystemExit(f"FAILED: chat answers {said}, not {[first[1], second[1]]}")
    print(f"chat: {len(taught)} conversations as they were taught")


_OTHER_HEADER = """
#include <cstdio>
#include <npusim/npusim.hpp>
int main() {
  try { npusim::Device device; } catch (const npusim::Error& error) { std::puts(error.what()); }
}
"""


def _check_other_header(prefix: Path, work: Path) -> None:
    """Builds a program with the header of another interface: it is told at its first call."""
    include = work / "other" / "npusim"
    shutil.copytree(prefix / "include" / "npusim", include)
    header = (include / "npusim.h").read_text()
    known = re.search(r"define NPUSIM_ABI_VERSION (\d+)", header)
    assert known is not None
    other = known[0].replace(known[1], str(int(known[1]) + 1))
    (include / "npusim.h").write_text(header.replace(known[0], other))
    source, program = work / "other.cpp", work / "other_program"
    source.write_text(_OTHER_HEADER)
    library = prefix / "lib"
    flags = [f"-I{include.parent}", f"-L{library}", f"-Wl,-rpath,{library}"]
    run(["c++", "-std=c++17", source, "-o", program, *flags, "-lnpusim"])
    said = run([program])
    if f"has version {known[1]} of the C interface" not in said:
        raise SystemExit(f"FAILED: a program with a newer header says {said!r}")
    print(f"a newer header: {said.strip()}")


def _check_multiarch(build: Path, prefix: Path) -> None:
    """Installs where libraries lie deeper: pkg-config has to find the prefix from there."""
    if shutil.which("pkg-config") is None:
        return
    run(["cmake", "-S", ROOT, "-B", build, "-DCMAKE_INSTALL_LIBDIR=lib/some-arch"])
    run(["cmake", "--install", build, "--prefix", prefix])
    run(["cmake", "-S", ROOT, "-B", build, "-DCMAKE_INSTALL_LIBDIR=lib"])
    folder = prefix / "lib" / "some-arch" / "pkgconfig"
    said = run(
        ["pkg-config", "--variable=includedir", "npusim"], PKG_CONFIG_PATH=str(folder)
    ).strip()
    if Path(said).resolve() != (prefix / "include").resolve():
        raise SystemExit(f"FAILED: npusim.pc in {folder} says that headers lie in {said}")
    print("pkg-config: finds the headers from lib/some-arch")


def _check_fetched(build: Path, work: Path) -> None:
    """Builds a project that fetches npusim, with the least that it can have, and runs it."""
    least = ["-DNPUSIM_SMALL=ON", "-DNPUSIM_CUDA=OFF", "-DNPUSIM_LANGUAGE_MODELS=OFF"]
    least += ["-DNPUSIM_ISAS=baseline", f"-DNPUSIM_ROOT={ROOT}"]
    run(["cmake", "-S", Path(__file__).parent / "fetched", "-B", build, *least])
    run(["cmake", "--build", build, "--target", "classify", "classify_static"])
    (minimal,) = {path.resolve() for path in build.rglob("libnpusim.so")}
    _check_symbols(minimal)
    _check_size(minimal, MOST_MINIMAL, "minimal")
    files = [work / "digits.npubin", work / "digits.safetensors", work / "0.png"]
    digits = {run([build / name, *files]).strip() for name in ("classify", "classify_static")}
    if len(digits) != 1 or not digits.pop().isdigit():
        raise SystemExit(f"FAILED: the programs of {build} say {digits}")
    print("FetchContent: npusim::npusim and npusim::static, built and run")


def main(arguments: Sequence[str]) -> None:
    """Does all of it."""
    quick = arguments[0] == "--quick"
    arguments = arguments[quick:]
    work = Path(arguments[0]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    build = Path(arguments[1]).resolve() if len(arguments) > 1 else work / "build"
    prefix = work / "prefix"
    library = _build(build, prefix, *arguments[2:])
    _check_symbols(library)
    _check_size(library, MOST_FULL, "full")
    check_abi(library)
    _run_examples(prefix, work)
    _check_other_header(prefix, work)
    _check_multiarch(build, work / "multiarch-prefix")
    if not quick:
        _check_fetched(work / "fetched", work)


if __name__ == "__main__":
    main(sys.argv[1:])
