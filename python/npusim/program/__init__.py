"""The compiled program: its data, how a graph is lowered to it, and its bytes in a file."""
