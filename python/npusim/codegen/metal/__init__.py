"""Metal: each distinct command becomes MSL text of its own, compiled where it runs."""
