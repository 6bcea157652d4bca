"""Planted bugs: does the harness find what it is made to find?

seams        patching a named function or constant
mutant       what a planted bug is
replication, visibility, storage, state, groups, regions, transactions, prepared, readers, bulk,
pipelines, waits, endpoints, exchanges
             the bugs, by where they are
chance       bugs that nobody thought of, drawn by number
hunt         looks for each with random seeds and directed scenarios
"""

from hadron.sim.mutants import (
    bulk,
    endpoints,
    exchanges,
    groups,
    pipelines,
    prepared,
    readers,
    regions,
    replication,
    state,
    storage,
    transactions,
    visibility,
    waits,
)
from hadron.sim.mutants.mutant import MUTANTS, Mutant
from hadron.sim.mutants.seams import SeamError, patched

__all__ = [
    "MUTANTS",
    "Mutant",
    "SeamError",
    "bulk",
    "endpoints",
    "exchanges",
    "groups",
    "patched",
    "pipelines",
    "prepared",
    "readers",
    "regions",
    "replication",
    "state",
    "storage",
    "transactions",
    "visibility",
    "waits",
]
