"""Tests that need a CUDA device; each file is skipped, with the reason, where there is none.

    pytest tests/gpu -n 8
    pytest tests/gpu/test_faults.py

`NPUSIM_FULL_SIZE=1` adds the language model at its published size: some minutes, 10 GB of disk.
"""
