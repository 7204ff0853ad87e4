"""PNG images of SVG ones, as graphs are: by resvg, with the font that matplotlib brings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from npusim.errors import Error
from npusim.ir.graph import Graph
from npusim.pictures.outline import Marks
from npusim.pictures.svg import to_svg


def to_png(
    graph: Graph | Mapping[str, Graph],
    marks: Mapping[str, Marks] | None = None,
    *,
    max_boxes: int = 150,
    load_time: bool = False,
    zoom: float = 2.0,
) -> bytes:
    """Returns a PNG image; the arguments are those of `to_svg`, enlarged `zoom` times.

    Raises:
        Error: resvg-py or matplotlib is not installed.
    """
    return svg_to_png(to_svg(graph, marks, max_boxes=max_boxes, load_time=load_time), zoom=zoom)


def svg_to_png(svg: str, *, zoom: float = 2.0) -> bytes:
    """Returns an SVG image as PNG, enlarged `zoom` times.

    Raises:
        Error: resvg-py or matplotlib is not installed.
    """
    try:
        import matplotlib
        import resvg_py
    except ImportError as error:
        raise Error(
            f"A PNG image needs {error.name}, which is not installed.",
            hint="pip install 'npusim[plot]', or write .svg, which needs nothing.",
        ) from None
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    names = ("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSans", "DejaVuSans-Bold")
    image = resvg_py.svg_to_bytes(
        svg_string=svg,
        skip_system_fonts=True,
        font_files=[str(fonts / f"{name}.ttf") for name in names],
        monospace_family="DejaVu Sans Mono",
        sans_serif_family="DejaVu Sans",
        zoom=zoom,
    )
    return bytes(image)
