"""The backend tests that are not run, by name, and why."""

EXCLUDED: dict[str, str] = {}
