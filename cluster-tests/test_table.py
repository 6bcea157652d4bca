"""The README's table of what survives what names tests that exist, and a test for every cell."""

from __future__ import annotations

import re
from pathlib import Path

from hadron.sim.scenarios import SCENARIOS

_HERE = Path(__file__).parent


def test_every_cell_has_its_proof() -> None:
    text = (_HERE.parent / "README.md").read_text()
    begin = text.index("What an acknowledged record survives")
    section = text[begin : text.index("## What is not")]
    known = {
        name
        for path in _HERE.glob("test_*.py")
        for name in re.findall(r"^async def (test_\w+)", path.read_text(), re.MULTILINE)
    } | set(SCENARIOS)
    proofs = dict(re.findall(r"(\d+) `([\w-]+)`", section))
    heading, *rows = [
        line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")
    ]
    assert "promotion" in heading[-1]
    used = set()
    for setting, *cells in rows:
        for cell in cells:
            numbers = re.findall(r"\d+", cell[cell.index("(") :])
            assert numbers, f"{setting}: {cell}"
            used.update(numbers)
        used.update(re.findall(r"\d+", setting))
    assert set(proofs.values()) <= known, set(proofs.values()) - known
    assert used == set(proofs), used ^ set(proofs)
