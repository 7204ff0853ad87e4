"""A software Metal device for tests: the API in Objective-C, kernels on the CPU (README.md)."""
