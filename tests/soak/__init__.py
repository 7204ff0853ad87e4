"""Use for a long time and under bad conditions: what must hold is flat memory, whole files, an end.

`python -m tests.soak` runs it all; `--scale 0.001` a small version, which the tests run.
"""
