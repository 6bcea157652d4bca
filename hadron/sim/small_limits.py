"""Small limits of what is done in one go: schemas of a few streams are pushed in parts, and whole,
as otherwise only those of many thousands; groups with a few gaps are read a window at a time, and
write a few acknowledgements at a time; what is dropped, triggered and retried goes in slices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from hadron.client import pipelines as pipeline_calls
from hadron.delivery import machine, progress
from hadron.metadata import push
from hadron.pipelines import driver as pipelines
from hadron.sim.model import groups as model_groups
from hadron.sim.model import machine as model_machine
from hadron.sim.model import streams as model_streams
from hadron.state import dropping, group_changes, groups, schema, slices


@dataclass(frozen=True)
class SmallLimits:
    """0 for what the product has.

    Attributes:
        part_bytes: of the schema, in one entry.
        tombstones: deletions that are remembered, for those behind.
        window_rows: ranges of a group that are read at once.
        entry_ranges: ranges of a group that one entry ends.
        slice_batches: batches that retention, or a deletion, drops in one entry.
        slice_rows: rows of deleted objects, or groups, that one entry drops.
        unsettled: pieces of a group that are open while something new is delivered.
        parked: records that are put into line at a time.
        instances: that are made, or retried, in one entry.
    """

    part_bytes: int = 0
    tombstones: int = 0
    window_rows: int = 0
    entry_ranges: int = 0
    slice_batches: int = 0
    slice_rows: int = 0
    unsettled: int = 0
    parked: int = 0
    instances: int = 0


_CONSTANTS: Final = {
    "tombstones": ((schema, "MAX_TOMBSTONES"),),
    "entry_ranges": ((progress, "_RANGES_PER_ENTRY"),),
    "slice_batches": ((slices, "SLICE_BATCHES"), (model_streams, "SLICE_BATCHES")),
    "slice_rows": (
        (dropping, "SLICE_ROWS"), (model_machine, "SLICE_ROWS"),
        (group_changes, "SLICE_ROWS"), (model_groups, "SLICE_ROWS"),
    ),
    "unsettled": ((machine, "MAX_UNSETTLED"),),
    "parked": ((machine, "_PARKED_PER_STEP"),),
    "instances": (
        (pipelines, "_TRIGGERS_PER_ENTRY"), (pipelines, "MAX_RETRIES"),
        (pipeline_calls, "_RETRY_SLICE"),
    ),
}
"""Where each of them stands. The model has some of its own: a limit says what an entry does."""

_DEFAULTS: Final = {"part_bytes": push.split, "window_rows": groups.window}
"""Functions of which it is the default of the last argument."""


@contextmanager
def limited(limits: SmallLimits) -> Iterator[None]:
    """Nodes have these limits, for the length of the block."""
    with ExitStack() as undo:
        for name, places in _CONSTANTS.items():
            for module, constant in places if getattr(limits, name) else ():
                undo.callback(setattr, module, constant, getattr(module, constant))
                setattr(module, constant, getattr(limits, name))
        for name, function in _DEFAULTS.items():
            if getattr(limits, name):
                undo.callback(_set_defaults, function, function.__defaults__)
                _set_defaults(function, (getattr(limits, name),))
        yield


def _set_defaults(function: Any, defaults: tuple[Any, ...] | None) -> None:
    function.__defaults__ = defaults
