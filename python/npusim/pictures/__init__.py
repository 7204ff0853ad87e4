"""Pictures of graphs: modules as groups that open and close, tensors as the lines between them.

`outline.py` decides what is a box, `layers.py` in which row and order boxes stand; `svg.py` draws
that as an image, `page.py` as one HTML page in which groups open and close, `mermaid.py` as text.
"""

from npusim.pictures.mermaid import to_mermaid
from npusim.pictures.outline import Marks
from npusim.pictures.page import to_html
from npusim.pictures.png import to_png
from npusim.pictures.svg import to_svg

__all__ = ["Marks", "to_html", "to_mermaid", "to_png", "to_svg"]
