"""The boundary between compiler and kernels: parameter structs, the scalar dialect, costs."""
