"""The intermediate representation: what a graph is, how it is checked, written and drawn."""
