"""The demo's pipeline on a month of flights, and what plain Python makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from hadron.client import SyncClient
from hadron.demo.flights import EVENT_TYPE
from hadron.demo.verdicts import expected_verdicts, expected_weather
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec

PIPELINE, FLIGHTS, WEATHER, VERDICTS = "departures", "flights", "flights-weather", "verdicts"

_PACKAGE: Final = "hadron.demo.stages"


def declare(client: SyncClient, home: str, inputs: Sequence[str], output: str) -> None:
    """Flights come to `inputs`, and all that is made of them goes to the partition `output`."""
    stages = (
        StageSpec(name="weather", run=f"{_PACKAGE}:join_weather", output=Output(WEATHER, output)),
        StageSpec(
            name="verdict",
            run=f"{_PACKAGE}:verdict",
            output=Output(VERDICTS, output),
            dependencies=("weather",),
        ),
    )
    pipeline = PipelineSpec(
        replica_set=home, input=FLIGHTS, triggers=(EVENT_TYPE,), start="earliest", stages=stages
    )
    read, written = StreamSpec(partitions=tuple(inputs)), StreamSpec(partitions=(output,))
    client.apply(
        [
            SchemaObject(kind="Stream", name=FLIGHTS, spec=read),
            SchemaObject(kind="Stream", name=WEATHER, spec=written),
            SchemaObject(kind="Stream", name=VERDICTS, spec=written),
            SchemaObject(kind="Pipeline", name=PIPELINE, spec=pipeline),
        ]
    )


def judge(client: SyncClient) -> None:
    """Each flight of the month was judged once, to the byte."""
    for stream, expected in ((WEATHER, expected_weather()), (VERDICTS, expected_verdicts())):
        found = sorted(each.value_bytes for each in client.read(stream))
        assert found == _bytes_of(expected), stream


def _bytes_of(values: Sequence[dict[str, Any]]) -> list[bytes]:
    return sorted(json.dumps(each, separators=(",", ":")).encode() for each in values)
