"""Checkpoints whose weights are stored as codes: which there are, and what a weight is made of.

A graph's weight is what the model's code reads, `[rows, k]` in the model's dtype. A quantized
checkpoint holds other tensors for it: codes, scales, zero points. One file owns one way of storing
(`awq.py`, `gptq.py`, `compressed_tensors.py`, `fine_grained_fp8.py`, `bits_and_bytes.py`,
`gguf_blocks.py`): which tensors there are for a weight, and how PyTorch writes the weight in terms
of them. `expansion.py` writes that into graphs, in front of the weight's users; it depends on
weights alone, so a program computes it once, when its weights are loaded.
"""
