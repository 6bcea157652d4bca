"""Every feature, and the state machine that is made of them: the one list."""

from __future__ import annotations

from typing import Final

from hadron.state import adoption, bodies, digests, dropping, leadership, registry, schema, together
from hadron.state.groups import attempts
from hadron.state.groups import changes as group_changes
from hadron.state.groups import checks as group_checks
from hadron.state.groups import endings as group_endings
from hadron.state.groups import progress as groups
from hadron.state.groups import statements as group_statements
from hadron.state.machine import StateMachine
from hadron.state.pipelines import feature as pipelines
from hadron.state.sinks import progress as sinks
from hadron.state.sinks import staging
from hadron.state.streams import checks as stream_checks
from hadron.state.streams import keys as stream_keys
from hadron.state.streams import partitions as streams
from hadron.state.streams import producers, retention, skips
from hadron.state.streams import statements as stream_statements
from hadron.state.transactions import checks as transaction_checks
from hadron.state.transactions import (
    decisions,
    intents,
    joint_decisions,
    key_locks,
    locks,
    participations,
)

FEATURES: Final = tuple(
    room.FEATURE
    for room in (
        leadership,
        bodies,
        streams,
        producers,
        stream_keys,
        together,
        groups,
        attempts,
        group_endings,
        group_changes,
        schema,
        adoption,
        registry,
        dropping,
        pipelines,
        retention,
        skips,
        stream_statements,
        group_statements,
        participations,
        locks,
        key_locks,
        intents,
        decisions,
        joint_decisions,
        staging,
        sinks,
        digests,
        stream_checks,
        group_checks,
        transaction_checks,
    )
)

MACHINE: Final = StateMachine(FEATURES, version=1)
"""Of this version of Hadron."""
