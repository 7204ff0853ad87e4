"""Builds one commit twice, in folders of other names and depths, and compares the bytes.

python -m tests.sdk.reproducible WORK [CMAKE_OPTION …]

Of libnpusim, shared and static, the wheel and the source archive; CMAKE_OPTIONs such as
-DNPUSIM_ISAS=baseline shorten it. What is committed is built, by this Python's environment and no
compiler cache. WORK is made anew. Exits with 0 when all bytes are the same.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.sdk.__main__ import ROOT, run

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
_NO_CACHE = {"CCACHE_DISABLE": "1", "CMAKE_CXX_COMPILER_LAUNCHER": "", "SOURCE_DATE_EPOCH": ""}


def _build(commit: str, folder: Path, options: Sequence[str]) -> Path:
    """Builds a commit in a folder; returns where the results lie."""
    source, made = folder / "npusim", folder / "made"
    run(["git", "clone", "--quiet", "--no-checkout", ROOT, source])
    run(["git", "-C", source, "checkout", "--quiet", commit])
    epoch = run(["git", "-C", source, "log", "-1", "--format=%ct"]).strip()
    env = {**_NO_CACHE, "SOURCE_DATE_EPOCH": epoch}
    sdk = ["-DNPUSIM_SDK=ON", "-DNPUSIM_PYTHON=OFF", *options]
    run(["cmake", "-G", "Ninja", "-S", source, "-B", source / "build" / "sdk", *sdk], **env)
    targets = ["--target", "npusim_shared", "npusim_static"]
    run(["cmake", "--build", source / "build" / "sdk", *targets], **env)
    run(["cmake", "--install", source / "build" / "sdk", "--prefix", made / "sdk"], **env)
    settings = ["--config-settings=build-dir=build/wheel"]
    if options:
        settings.append(f"--config-settings=cmake.args={';'.join(options)}")
    run([*_PIP, "--no-deps", "--no-build-isolation", *settings, "-w", made, source], **env)
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(["env", "-C", source, sys.executable, "-c", code, made], **env)
    return made


def _digests(made: Path) -> Iterator[tuple[str, str]]:
    """Yields every file that was made, and every member of the wheel, with its digest."""
    for path in sorted(made.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(made)), hashlib.sha256(path.read_bytes()).hexdigest()
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    yield f"{path.name}: {name}", hashlib.sha256(wheel.read(name)).hexdigest()


def main(arguments: Sequence[str]) -> None:
    """Builds, compares, and names what differs."""
    work = Path(arguments[0]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    places = (work / "one", work / "another" / "deeper" / "place of the same")
    found = []
    commit = run(["git", "-C", ROOT, "rev-parse", "HEAD"]).strip()
    for place in places:
        place.mkdir(parents=True)
        found.append(dict(_digests(_build(commit, place, arguments[1:]))))
    first, second = found
    different = sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
    if different:
        raise SystemExit("FAILED: other bytes in the second build:\n" + "\n".join(different))
    kinds = {Path(name).suffix for name in first if ": " not in name}
    if not {".whl", ".gz", ".a"} <= kinds:
        raise SystemExit(f"FAILED: only {kinds} were built")
    print(f"reproducible: {len(first)} files, the same bytes in both builds")


if __name__ == "__main__":
    main(sys.argv[1:])
