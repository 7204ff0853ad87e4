"""How long a program takes on a device that is described."""
