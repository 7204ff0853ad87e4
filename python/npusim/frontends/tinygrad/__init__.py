"""Models written in tinygrad become graphs of the same dialect as everything else.

Owns the public functions. `capture` runs a model on stand-ins, `reader` turns its graph of UOps
into terms, one adapter a release in `releases`, and `importer` plans and builds the nodes. What
tinygrad writes as multiply and reduce is recovered by `contractions`, `windows`, `pooling`,
`lookups`, `padding`, `norms` and `pointwise`, with proof by `index`.
"""

from npusim.frontends.tinygrad.importer import Imported, Report, from_tinygrad

__all__ = ["Imported", "Report", "from_tinygrad"]
