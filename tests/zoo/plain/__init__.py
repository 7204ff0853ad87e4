"""Models of vision on plain PyTorch, written from their papers, small."""
