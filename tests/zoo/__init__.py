"""The model zoo: many architectures, each small and seeded, taken the whole way and compared.

`ENTRIES` is the one table; `python -m tests.zoo` runs it and writes docs/models.md.
"""

from __future__ import annotations

from tests.zoo.entry import Entry
from tests.zoo.families import FAMILIES

ENTRIES: dict[str, Entry] = {name: e for family in FAMILIES for name, e in family.items()}
