"""The picture of a simulation's page in the docs: `make screenshot`, or `python -m` of this file.

ResNet-50 on a machine that ships, drawn by a headless Chromium. The picture is kept below 300 KB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import npusim
from tests.models import build
from tests.simulate.test_page import BROWSER

MOST = 300_000  # bytes
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "simulation.png"


def screenshot(page: Path, picture: Path, width: int = 1100, height: int = 1480) -> None:
    """Draws the top of a page; RuntimeError where that cannot be, or the picture is too large."""
    if BROWSER is None:
        raise RuntimeError("there is no Chromium to draw the page")
    with tempfile.TemporaryDirectory() as profile:
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        command += ["--virtual-time-budget=3000", f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
    if not 0 < picture.stat().st_size < MOST:
        raise RuntimeError(f"{picture} has {picture.stat().st_size} bytes, not below {MOST}")


def main() -> None:
    """Simulates ResNet-50 and draws its page to the path that is given, or into the docs."""
    model, inputs = build("resnet50")
    program = npusim.compile(npusim.extract_ir(model, inputs), "npu-edge-32x32")
    picture = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        npusim.simulate(program).save(folder)
        screenshot(Path(folder) / "report.html", picture.resolve())


if __name__ == "__main__":
    main()
