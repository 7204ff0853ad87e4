"""Checks what a Linux wheel brings for native programs, with the Python that it is installed in.

python -m tests.sdk.wheel WHEEL WORK

WORK is made anew. Exits with 0 when everything held, and prints each check.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.sdk.__main__ import EXAMPLES, run

MOST_BYTES = 8_000_000  # of the wheel


def _loaded_libraries() -> list[str]:
    """Returns the files of npusim that a process maps that has loaded the module."""
    code = (
        "import npusim; npusim.Device('cpu')\n"
        "rows = open('/proc/self/maps').read().splitlines()\n"
        "print(*sorted({row.split()[-1] for row in rows if 'npusim' in row}), sep='\\n')"
    )
    return run([sys.executable, "-c", code]).split()


def _check_bill_of_materials(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (n for n in files.namelist() if ".dist-info/sboms/" in n)
        bill = json.loads(files.read(name))
    version = wheel.name.split("-")[1]
    about = bill["metadata"]["component"]
    parts = {part["name"]: part for part in bill["components"]}
    if (bill["bomFormat"], about["name"], about["version"]) != ("CycloneDX", "npusim", version):
        raise SystemExit(f"FAILED: {name} is of {about}")
    if set(parts) != {"pybind11"} or not parts["pybind11"]["version"][:1].isdigit():
        raise SystemExit(f"FAILED: {name} lists {parts}, the module has pybind11 alone")
    print(f"bill of materials: {name}")


def _check_pkg_config(package: Path, work: Path) -> None:
    """Builds a program by pkg-config with the wheel's library, and has it start."""
    if shutil.which("pkg-config") is None:
        return
    folder = package.parents[1] / "pkgconfig"
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PKG_CONFIG_PATH")]))
    flags = run(["pkg-config", "--cflags", "--libs", "npusim"], PKG_CONFIG_PATH=path).split()
    source, program = work / "version.c", work / "version"
    source.write_text(
        "#include <npusim/npusim.h>\n#include <stdio.h>\n"
        "int main(void) { puts(npusim_version()); return 0; }\n"
    )
    run(["cc", "-std=c99", source, "-o", program, *flags])
    print(f"pkg-config: npusim {run([program]).strip()} from {folder}")


def main(arguments: Sequence[str]) -> None:
    """Does all of it."""
    wheel, work = Path(arguments[0]), Path(arguments[1])
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"FAILED: {wheel} has {size} bytes, at most {MOST_BYTES}")
    print(f"size, wheel: {size} bytes")
    _check_bill_of_materials(wheel)
    package = run([sys.executable, "-m", "npusim", "--cmake-dir"]).strip()
    (library,) = Path(package).parents[1].glob("libnpusim*")
    loaded = _loaded_libraries()
    if str(library) not in loaded or len(loaded) != 2:
        raise SystemExit(f"FAILED: {loaded} are loaded, not the module and {library}")
    module = next(Path(path) for path in loaded if path != str(library))
    if module.stat().st_size > library.stat().st_size / 2:
        raise SystemExit(f"FAILED: {module} is so large that it has a runtime of its own")
    print(f"one runtime: {library.name}, which {module.name} uses")
    shutil.rmtree(work, ignore_errors=True)
    run(["cmake", "-S", EXAMPLES, "-B", work, f"-Dnpusim_DIR={package}"])
    run(["cmake", "--build", work])
    print("examples: built with the package of the wheel")
    _check_pkg_config(Path(package), work)


if __name__ == "__main__":
    main(sys.argv[1:])
