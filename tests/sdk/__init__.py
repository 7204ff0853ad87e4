"""The native package as users get it: `make sdk`."""
