"""What passes ask a graph: patterns, views, formulas, known and affine values. Changes nothing."""
