"""How what not everybody needs is installed."""

from __future__ import annotations


def install(extra: str) -> str:
    """The hint of whoever needs it. No index has this Hadron: a package of its name there is
    somebody else's."""
    return f"install the extra: pip install '.[{extra}]' in a clone, 'CLONE[{extra}]' elsewhere"
