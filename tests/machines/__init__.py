"""Programs for described machines: their values, where their nodes run, what does not fit."""
