"""`python -m npusim.cli`: the `npusim` command where the script is not on the PATH."""

from __future__ import annotations

import sys

from npusim.cli import main

sys.exit(main())
