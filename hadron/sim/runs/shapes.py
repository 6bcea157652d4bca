"""What a seed's world is like: one replica set or several, how many nodes, which settings, which
faults.

Drawn from the seed alone, so that a number is all that is needed to see a run again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hadron.model.schema import Retention
from hadron.node.settings import Settings
from hadron.sim.faults import plots
from hadron.sim.faults.nemesis import FaultPlan
from hadron.sim.runs.small_limits import drawn
from hadron.sim.world.replica_set import SETTINGS

_NODES: Final = ((3, 12.0), (5, 3.0), (2, 2.0), (4, 1.0))
"""Sizes of replica sets, and how often each is drawn."""

_REGIONS: Final = 0.25
"""Of all seeds: worlds of several replica sets."""

_UNFLUSHED: Final = 0.15
"""Of worlds of one replica set: what is acknowledged is written, and not flushed."""

_NARROW: Final = 0.2
"""Of worlds: replicas are fed little at a time."""

_SET_SIZES: Final = (
    ((1, 3), (3.0, 1.0)),
    ((1, 2, 3), (4.0, 1.0, 3.0)),
    ((1, 2, 3), (5.0, 1.0, 2.0)),
)
"""Of the metadata set and of the two in regions, and how often each is drawn: every node costs."""

_FOCUS: Final = 10.0
"""Weight of the kind of fault that a world is about; all others together have up to 40."""


@dataclass(frozen=True)
class Shape:
    nodes: int
    settings: Settings
    plan: FaultPlan
    retention: Retention
    set_nodes: tuple[int, int, int] | None = None
    """Of several replica sets; None where there is one."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Of `small_limits`."""


def shape_of(seed: int) -> Shape:
    """The shape of a seed's world."""
    rng = random.Random(f"shape/{seed}")
    nodes = rng.choices([size for size, _ in _NODES], [weight for _, weight in _NODES])[0]
    settings = replace(
        SETTINGS,
        checkpoint_bytes=rng.choice((64 << 10, 1 << 20, 4 << 20)),
        keepalive_s=rng.choice((0.5, 1.0, 2.0)),
        idle_commit_notice_s=rng.choice((0.0, 0.005, 0.01)),
        state_digest_interval_s=rng.choice((0.5, 10.0)),
        scrub_interval_s=rng.choice((1.0, 5.0, 86_400.0)),
    )
    if rng.random() < 0.4:
        # So short that who is away for a second needs a snapshot.
        settings = replace(
            settings,
            log_keep_bytes=rng.choice((1 << 10, 8 << 10)),
            log_max_lag_bytes=rng.choice((4 << 10, 32 << 10)),
        )
    parts = random.Random(f"parts/{seed}")
    if parts.random() < _NARROW:
        settings = replace(settings, replication_window_bytes=parts.choice((1, 1_000, 10_000)))
    set_nodes = _set_nodes(seed)
    if set_nodes is None and parts.random() < _UNFLUSHED:
        settings = replace(settings, durability="os")
    return Shape(
        nodes=nodes,
        settings=settings,
        plan=_plan(rng),
        retention=_retention(seed),
        set_nodes=set_nodes,
        limits=drawn(seed),
    )


def _set_nodes(seed: int) -> tuple[int, int, int] | None:
    """Of a stream of chance of its own: worlds of one replica set are what they were before."""
    rng = random.Random(f"regions/{seed}")
    if rng.random() >= _REGIONS:
        return None
    metadata, one, other = (rng.choices(sizes, weights)[0] for sizes, weights in _SET_SIZES)
    return metadata, one, other


def _retention(seed: int) -> Retention:
    """Of a quarter of all seeds: so little that it drops records under everybody's eyes."""
    rng = random.Random(f"retention/{seed}")
    if rng.random() >= 0.25:
        return Retention()
    return Retention(
        max_age_ms=rng.choice((0, 2_000, 5_000)), max_bytes=rng.choice((2_000, 10_000, 40_000))
    )


def _plan(rng: random.Random) -> FaultPlan:
    """Every kind of fault, or, more often, some of them: rare ones need a quiet world."""
    plan = FaultPlan()
    share = rng.choice((1.0, 0.6, 0.3))
    weights = {
        kind: weight * rng.choice((0.5, 1.0, 2.0))
        for kind, weight in plan.weights.items()
        if rng.random() < share
    }
    if rng.random() < 0.75:
        # A world that is about one thing.
        weights[rng.choice(sorted(plots.WEIGHTS))] = _FOCUS
    low_s = rng.choice((0.02, 0.2, 1.0))
    return replace(
        plan,
        weights=weights or plan.weights,
        pause_s=(low_s, low_s * rng.choice((3.0, 10.0))),
        length_s=(0.05, rng.choice((0.5, 3.0, 8.0))),
        lying_disks=1 if rng.random() < 0.1 else 0,
    )
