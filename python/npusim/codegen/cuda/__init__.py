"""CUDA: each distinct command becomes a kernel of its own, compiled by NVRTC to a cubin."""
