"""Every feature: imported for the tables and commands that each of them registers."""

from __future__ import annotations

from typing import Final

from hadron.state import (
    adoption,
    attempts,
    digests,
    dropping,
    group_changes,
    group_endings,
    groups,
    leadership,
    pipelines,
    registry,
    retention,
    schema,
    streams,
)
from hadron.state.machine import all_tables

__all__ = ["FEATURES", "all_tables"]

FEATURES: Final = (
    leadership, streams, groups, attempts, group_endings, group_changes, schema, adoption,
    registry, dropping, pipelines, retention, digests,
)
