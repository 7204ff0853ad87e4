"""The demo: a small network trained on real data, compiled and run natively, start to end."""
