"""From MSL text to a shared library for the CPU: lints, a rewriter, two passes of clang."""
