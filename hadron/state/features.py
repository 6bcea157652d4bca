"""Every feature, and the state machine that is made of them: the one list."""

from __future__ import annotations

from typing import Final

from hadron.state import (
    adoption,
    attempts,
    bodies,
    decisions,
    digests,
    dropping,
    group_changes,
    group_checks,
    group_endings,
    groups,
    intents,
    joint_decisions,
    key_locks,
    leadership,
    locks,
    participations,
    pipelines,
    producers,
    registry,
    retention,
    schema,
    sinks,
    skips,
    staging,
    statements,
    stream_checks,
    stream_keys,
    streams,
    together,
    transaction_checks,
)
from hadron.state.machine import StateMachine

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
        statements,
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
