"""The Metal backend on the software device, through the runtime: `pytest … --device metal`."""
