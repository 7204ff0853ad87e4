"""Lowering: graphs become commands over buffers, by what each op registered, and then a program."""
