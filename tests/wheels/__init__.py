"""Wheels for every platform, built here by Zig's cross compiler and run as far as that goes."""
