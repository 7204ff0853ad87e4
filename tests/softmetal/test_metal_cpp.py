"""Apple's metal-cpp as the judge: a host program over it, and selectors against its list.

NPUSIM_METAL_CPP names the folder of the headers (Metal/Metal.hpp); `make metal` fetches them.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.softmetal import metal

# Of NSObject and its like, which metal-cpp does not send, and the device's own.
OWN = {
    "initialize",
    "class",
    "isKindOfClass:",
    "makeImmortal",
    "new",
    "bytes",
    "path",
    "readFrom:error:",
}
OWN |= {
    "initWithFunction:",
    "nextObject",
    "newBuffer:options:",
    "initWithBytes:length:",
    "add:",
    "checkOpen",
}
OWN |= {"checkOpen:", "checkIndex:", "finish", "flush", "put:", "command", "initWithDevice:"}
OWN |= {"checkIdle", "open", "put:group:"}
OWN |= {"initWithDevice:function:descriptor:error:", "initWithQueue:retains:", "initWithBuffer:"}
OWN |= {"initWithDevice:descriptor:count:isPrivate:", "initWithDevice:descriptor:error:"}


@pytest.fixture(scope="module")
def headers() -> Path:
    folder = Path(os.environ.get("NPUSIM_METAL_CPP", ""))
    if not (folder / "Metal" / "Metal.hpp").is_file():
        pytest.skip("Apple's metal-cpp is not here: NPUSIM_METAL_CPP names its folder (make metal)")
    return folder


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_host_program(softmetal_build: Path, headers: Path, tmp_path: Path, order: str) -> None:
    ended = subprocess.run(
        [str(softmetal_build / "metal_cpp_host"), str(tmp_path)],
        env={**os.environ, "SOFTMETAL_ORDER": order, "SOFTMETAL_LEAKS": "fatal"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "0 checks failed\n"), ended.stderr
    assert ended.stderr == "", "nothing may be alive at exit"


def selectors(softmetal_build: Path) -> Iterator[tuple[str, str]]:
    """Class and selector of each method that the device implements."""
    library = metal.runtime(softmetal_build)
    for name in ("class_copyMethodList", "method_getName"):
        getattr(library, name).restype = ctypes.c_void_p
    library.sel_getName.restype = ctypes.c_char_p
    library.class_getName.restype = ctypes.c_char_p
    count = library.objc_getClassList(None, 0)
    classes = (ctypes.c_void_p * count)()
    library.objc_getClassList(classes, count)
    for kind in classes:
        name = library.class_getName(ctypes.c_void_p(kind)).decode()
        if not name.startswith(("MTL", "NS", "SoftMTL")):
            continue
        for owner in (kind, ctypes.c_void_p.from_address(kind).value):  # its class methods
            number = ctypes.c_uint()
            methods = library.class_copyMethodList(ctypes.c_void_p(owner), ctypes.byref(number))
            found = ctypes.cast(methods, ctypes.POINTER(ctypes.c_void_p))
            for place in range(number.value):
                selector = ctypes.c_void_p(library.method_getName(ctypes.c_void_p(found[place])))
                yield name, library.sel_getName(selector).decode()


def apples(headers: Path) -> set[str]:
    text = "".join(
        (headers / part).read_text(encoding="utf-8")
        for part in ("Foundation/NSPrivate.hpp", "Metal/MTLHeaderBridge.hpp")
    )
    return set(re.findall(r'PRIVATE_DEF_SEL\(\w+,\s*"([^"]+)"\)', text))


def test_selectors_are_apples(softmetal_build: Path, headers: Path) -> None:
    """A method under a name that Apple's headers do not know would never be called on a Mac."""
    known, found = apples(headers), list(selectors(softmetal_build))
    assert len(found) > 200
    assert len(known) > 1000
    unknown = sorted({f"{c} {s}" for c, s in found if s not in known and s not in OWN})
    assert unknown == []
    assert not OWN & known - {"bytes", "class", "path", "nextObject"}


@pytest.mark.seeded_fault
def test_a_wrong_selector_would_show(headers: Path) -> None:
    assert "waitUntilCompleted" in apples(headers)
    assert "waitUntilFinished" not in apples(headers)
