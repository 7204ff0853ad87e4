"""Checks what a Linux wheel brings for native programs, with the Python that it is installed in.

python -m tests.sdk.wheel WHEEL WORK

WORK is made anew. Exits with 0 when everything held, and prints each check.
"""

from __future__ import annotations

import shutil
import sys
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


def main(arguments: Sequence[str]) -> None:
    """Does all of it."""
    wheel, work = Path(arguments[0]), Path(arguments[1])
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"FAILED: {wheel} has {size} bytes, at most {MOST_BYTES}")
    print(f"size, wheel: {size} bytes")
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


if __name__ == "__main__":
    main(sys.argv[1:])
