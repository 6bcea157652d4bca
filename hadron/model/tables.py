"""How Hadron's tables are told from a user's own in the same file.

A table's name is said once, beside its columns, as a constant; statements are put together with it.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "hadron_"
