"""Random graphs, compiled and compared with PyTorch."""
