"""A dry run of the release: `twine check`, an index on this machine, and an install by name.

python -m tests.wheels.index WHEELS WORK

Takes the wheels of a folder that others built, and runs what it installs.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.wheels.commands import run
from tests.wheels.toolchain import Toolchain


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serves folders of wheels as an index does; yields its address."""
    handler = functools.partial(_Quiet, directory=f"{folder}")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
        finally:
            server.shutdown()
            thread.join()


def install(toolchain: Toolchain, wheels: Sequence[Path], work: Path) -> Path:
    """Installs npusim by its name, from an index with all wheels; returns its Python."""
    run([toolchain.python, "-m", "twine", "check", "--strict", *wheels])
    shutil.rmtree(work, ignore_errors=True)
    ours = work / "index" / "simple" / "npusim"
    ours.mkdir(parents=True)
    for wheel in wheels:
        shutil.copy(wheel, ours)
    others = work / "dependencies"
    wanted = ["--only-binary=:all:", "--dest", f"{others}", "numpy>=1.24"]
    run([sys.executable, "-m", "pip", "download", "--quiet", *wanted])
    for wheel in others.glob("*.whl"):
        folder = work / "index" / "simple" / wheel.name.split("-")[0].lower()
        folder.mkdir(exist_ok=True)
        wheel.rename(folder / wheel.name)
    run([sys.executable, "-m", "venv", work / "env"])
    python = work / "env" / "bin" / "python"
    with _served(work / "index") as address:
        run(
            [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--index-url", address,
             "npusim"], {"PIP_CONFIG_FILE": "/dev/null", "PYTHONPATH": ""},
        )  # fmt: skip
    return python


def main(arguments: Sequence[str]) -> None:
    """Does all of it."""
    from tests.wheels.running import released

    wheels, work = sorted(Path(arguments[0]).glob("npusim-*.whl")), Path(arguments[1]).resolve()
    python = install(Toolchain(work / "tools"), wheels, work / "release")
    print(released(python, work))


if __name__ == "__main__":
    main(sys.argv[1:])
