"""Every rule has somebody who sees it when it is broken."""

from __future__ import annotations

import re
from pathlib import Path

from hadron.sim import watch
from hadron.sim.checks import checker
from hadron.sim.checks import regions as region_checks
from hadron.sim.checks.rules import ORACLES
from hadron.sim.model.machine import AREAS
from hadron.sim.scenarios import SCENARIOS

_RULES = (
    *(f"A{number}" for number in range(1, 8)),
    *(f"B{number}" for number in range(1, 9)),
    "C",
    *(f"D{number}" for number in range(1, 7)),
    *(f"E{number}" for number in (1, 2, 3, 4, 6, 7, 10, 11)),
    "K13",
    "F2",
    "W2",
    "W9",
)


def complaints() -> set[str]:
    """What those who watch nodes complain of."""
    found: set[str] = set(AREAS)
    for module in Path(watch.__file__).parent.rglob("*.py"):
        found.update(re.findall(r'"([A-FKW]\d+ [^"{}]+)"', module.read_text()))
    return found


def test_every_rule_has_an_oracle_that_exists() -> None:
    assert [name.partition(" ")[0] for name in ORACLES] == list(_RULES)
    known = (
        {check.__name__ for check in checker.CHECKS}
        | {check.__name__ for check in region_checks.CHECKS}
        | complaints()
        | set(SCENARIOS)
    )
    for rule, oracles in ORACLES.items():
        assert oracles, rule
        assert set(oracles) <= known, (rule, set(oracles) - known)


def test_every_oracle_belongs_to_a_rule() -> None:
    named = {oracle for oracles in ORACLES.values() for oracle in oracles}
    checks = {check.__name__ for check in (*checker.CHECKS, *region_checks.CHECKS)}
    beside = {
        "real_time_order",
        "nothing_from_nowhere",
        "tables_follow_the_log",
        "one_letter_each",
        "no_unprovoked_stop",
        "schema_arrives_everywhere",
    }
    assert checks | complaints() <= named | beside
