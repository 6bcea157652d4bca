"""What has happened to pipelines, as in `events`."""

from __future__ import annotations

from hadron.state.machine import Event


class InstancesChanged(Event, frozen=True):
    """A pipeline has other instances than before, or other stages are ready."""

    pipeline_id: int


class StagesEnded(Event, frozen=True):
    """An attempt at a stage of these instances is over, however it ended.

    Attributes:
        by_runner: whoever ran them has ended them, well or not, and was there to say so.
    """

    pipeline_id: int
    stage: str
    instance_ids: tuple[int, ...]
    by_runner: bool
