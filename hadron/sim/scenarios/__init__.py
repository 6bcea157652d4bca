"""Directed scenarios: the histories of PROTOCOL, played on purpose and judged by the checker.

    visibility   A: apply, answers and watermark
    leadership   B: ballots, memory, damage
    learners     B: members without memory
    membership   B: promotion, members that come and go
    files        A, B, D, F: what is dropped, room, write-ahead logs
    snapshots    A, B: what was trimmed comes by a copy
    conditions   D: records that expect an offset, producers that have a name
    readers      D: who asks what there is, and who changes the schema beside others
    damage       A, B, C: disks that change beneath a node
    copies       B: nodes that have what nobody else has, and what their copies say of it
    pipelines    A: stages' outputs, exactly once
    waits        P: stages that wait for a record, or for people
    lost_runners P: records, code and networks that end runners
    groups       D: members that are late, leaders that come and go
    hands        D: members that ask in every way, are busy, or leave
    letters      D: records that nobody can use, or that retention drops
    promises     C: what each setting survives
    regions      A, D: several replica sets, the schema that they share, failover
    steps        K: members that work in steps
    flows        E: pipelines over several replica sets
    prepared     E: what a transaction was promised, and what comes between
    transactions E: several replica sets, all or nothing
    bulk         E: what is staged by many tasks, and published at once
    endpoints    N: remote calls
    forwarded_calls
                 N: remote calls over several replica sets
    exchanges    X: who gets a message, and who hears of what it has missed
    bursts       E: transactions that are committed at the same time, and share an entry

`SCENARIOS` has them all by name; each names the rule that it proves.
"""

from hadron.sim.scenarios import (
    bulk,
    bursts,
    conditions,
    copies,
    damage,
    endpoints,
    exchanges,
    files,
    flows,
    forwarded_calls,
    groups,
    hands,
    leadership,
    learners,
    letters,
    lost_runners,
    membership,
    pipelines,
    prepared,
    promises,
    readers,
    regions,
    snapshots,
    steps,
    transactions,
    visibility,
    waits,
)
from hadron.sim.scenarios.play import SCENARIOS, Directed

__all__ = [
    "SCENARIOS",
    "Directed",
    "bulk",
    "bursts",
    "conditions",
    "copies",
    "damage",
    "endpoints",
    "exchanges",
    "files",
    "flows",
    "forwarded_calls",
    "groups",
    "hands",
    "leadership",
    "learners",
    "letters",
    "lost_runners",
    "membership",
    "pipelines",
    "prepared",
    "promises",
    "readers",
    "regions",
    "snapshots",
    "steps",
    "transactions",
    "visibility",
    "waits",
]
