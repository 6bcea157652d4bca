"""The demo's judge: from each node's own file, was every flight processed exactly once?

Nothing is believed. For every node: the hash chain is recomputed over its whole log; the three
streams must hold each flight once, with the values that plain Python computes from the CSV; and
every instance must be done, its outputs naming the flight that triggered it. Then the nodes'
chains are compared with each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from hadron.demo.flights import flight_record, load_flights
from hadron.demo.node_file import NodeFile, decode
from hadron.demo.verdicts import expected_flights, expected_verdicts, expected_weather
from hadron.model.errors import HadronError
from hadron.model.record import Record
from hadron.model.words import counted

PIPELINE: Final = "departures"
STAGES: Final = {"weather": "flights-weather", "verdict": "verdicts"}
"""Each stage of the pipeline, and the stream of its outputs."""
EXPECTED: Final[dict[str, Callable[[], list[dict[str, Any]]]]] = {
    "flights": expected_flights,
    "flights-weather": expected_weather,
    "verdicts": expected_verdicts,
}
NAMED: Final = 5
"""Problems of one kind that are spelled out; the rest is counted."""
_DONE: Final = 2
_OF_AN_OUTPUT: Final[tuple[object, str, dict[str, str]]] = (None, "", {})
"""Key, type and headers: the demo's stages give values only."""


@dataclass(slots=True)
class Report:
    """What was found.

    Attributes:
        flights: how many flights each stream must hold.
        nodes: names of the nodes whose files were read.
        lsn: the highest log entry that all of them hold.
        chain: the hash chain there, hex; "" when they disagree.
        problems: what is wrong, a sentence each; empty when all is well.
    """

    flights: int
    nodes: list[str] = field(default_factory=list)
    lsn: int = 0
    chain: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def add(self, node: str, found: Sequence[str]) -> None:
        """Note problems of one kind at one node: the first few, and how many more."""
        self.problems += [f"{node}: {text}" for text in found[:NAMED]]
        if len(found) > NAMED:
            self.problems.append(f"{node}: … and {len(found) - NAMED:,} more of this kind")

    def summary(self) -> str:
        """One line: what was verified, or how much is wrong."""
        if not self.ok:
            count = len(self.problems)
            return f"NOT verified: {counted(count, 'problem')} found"
        return (
            f"verified: {self.flights:,} flights, every one exactly once through "
            f"{len(STAGES)} stages; {len(self.nodes)} replicas hold the same log "
            f"(chain {self.chain[:8]}… at lsn {self.lsn:,})"
        )


def verify(files: Mapping[str, Path], through_lsn: int = 0) -> Report:
    """Read every node's `hadron.db` and judge.

    Args:
        files: node name → its file.
        through_lsn: every log must reach at least this entry.

    A file that cannot be read is a problem in the report, not an error.
    """
    report = Report(flights=len(load_flights()))
    chains: dict[str, dict[int, bytes]] = {}
    for name, path in files.items():
        try:
            with NodeFile(name, path) as file:
                chains[name] = _check_chain(file, report)
                offsets = {stream: _check_stream(file, stream, report) for stream in EXPECTED}
                _check_pipeline(file, offsets, report)
        except HadronError as error:
            report.add(name, [error.message])
            continue
        report.nodes.append(name)
    _compare_chains(chains, through_lsn, report)
    return report


# --- the log ------------------------------------------------------------------------------------


def _check_chain(file: NodeFile, report: Report) -> dict[int, bytes]:
    """lsn → chain as stored, the anchor's first, after checking that each follows from its
    content."""
    chains = dict([file.anchor()])
    found = []
    for lsn, chain, problem in file.chains():
        chains[lsn] = chain
        if problem:
            found.append(problem)
    report.add(file.name, found)
    return chains


def _compare_chains(
    chains: Mapping[str, Mapping[int, bytes]], through_lsn: int, report: Report
) -> None:
    if not chains:
        report.problems.append("no node's file could be read")
        return
    ends = {name: max(of_node) for name, of_node in chains.items()}
    for name, end in ends.items():
        if end < through_lsn:
            report.add(name, [f"its log ends at lsn {end:,}, before {through_lsn:,}"])
    report.lsn = min(ends.values())
    # Each node trims its log by itself.
    begin, trimmed = max((min(of_node), name) for name, of_node in chains.items())
    for name, end in ends.items():
        if end < begin:
            report.add(name, [f"its log ends at lsn {end:,}, before that of {trimmed} begins"])
    first, *others = chains
    for name in others:
        parted = [
            lsn
            for lsn in range(begin, report.lsn + 1)
            if chains[first].get(lsn) != chains[name].get(lsn)
        ]
        if parted:
            report.add(name, [f"its log differs from {first}'s from lsn {parted[0]:,} on"])
    if report.lsn:
        report.chain = chains[first].get(report.lsn, b"").hex()


# --- the streams --------------------------------------------------------------------------------


def _check_stream(file: NodeFile, stream: str, report: Report) -> dict[int, int]:
    """Compare a stream with what it must hold; return offset → the id of its flight."""
    stream_id = file.object_id("Stream", stream)
    if stream_id is None:
        report.add(file.name, [f"there is no stream {stream}"])
        return {}
    expected = EXPECTED[stream]()
    ids: dict[int, int] = {}
    wrong: list[str] = []
    for record in _records(file, stream_id, stream, report):
        value = record.value
        flight_id = _flight_id(value, len(expected))
        if flight_id is not None:
            ids[record.offset] = flight_id
        problem = _check_record(record, value, flight_id, stream, expected)
        if problem:
            wrong.append(problem)
    report.add(file.name, wrong)
    _check_once(file.name, stream, ids, len(expected), report)
    return ids


def _records(file: NodeFile, stream_id: int, stream: str, report: Report) -> list[Record]:
    """All records of a stream that can be read, after checking that offsets have no gap."""
    records: list[Record] = []
    found: list[str] = []
    following = 0
    for batch in file.batches(stream_id):
        if batch.base_offset != following:
            found.append(f"stream {stream} has no offsets {following} to {batch.base_offset - 1}")
        following = batch.base_offset + batch.count
        try:
            records += decode(batch).records()
        except HadronError as error:
            found.append(f"the batch at {stream}/{batch.base_offset} is bad: {error.message}")
    bounds = next(
        file.rows(
            "SELECT next_offset FROM hadron_stream_partition WHERE stream_id = ?", (stream_id,)
        ),
        (0,),
    )
    if bounds[0] != following:
        found.append(f"stream {stream} ends at offset {following}, its table says {bounds[0]}")
    report.add(file.name, found)
    return records


def _check_record(
    record: Record, value: Any, flight_id: int | None, stream: str, expected: list[dict[str, Any]]
) -> str:
    """What is wrong with one record, or ""."""
    where = f"{stream}/{record.offset}"
    if flight_id is None:
        return f"the record at {where} names no flight: {_shorten(value)}"
    if not _is_same(value, expected[flight_id]):
        differing = _differing(value, expected[flight_id])
        return f"{_flight(flight_id)} at {where} is not as computed from the CSV: {differing}"
    if stream == "flights":
        wanted = _published()[flight_id]
        if (record.key, record.type, record.timestamp_ms, record.headers) != wanted:
            return (
                f"{_flight(flight_id)} at {where} has another key, type, time or headers than "
                "published"
            )
    elif (record.key, record.type, record.headers) != _OF_AN_OUTPUT:
        return (
            f"{_flight(flight_id)} at {where} has a key, a type or headers, which no stage gives: "
            f"{_shorten((record.key, record.type, dict(record.headers)))}"
        )
    return ""


@functools.cache
def _published() -> list[tuple[object, str, int | None, dict[str, str]]]:
    """Key, type, time and headers of each flight's record."""
    records = map(flight_record, load_flights())
    return [(record.key, record.type, record.timestamp_ms, {}) for record in records]


def _is_same(value: Any, wanted: Any) -> bool:
    """Whether both are the same JSON; to Python 2, 2.0, and 1 and True, are equal."""
    return bool(value == wanted) and _json(value) == _json(wanted)


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _check_once(node: str, stream: str, ids: Mapping[int, int], count: int, report: Report) -> None:
    times = [0] * count
    for flight_id in ids.values():
        times[flight_id] += 1
    report.add(
        node,
        [
            f"{_flight(flight_id)} is missing from stream {stream}"
            for flight_id, seen in enumerate(times)
            if not seen
        ],
    )
    report.add(
        node,
        [
            f"{_flight(flight_id)} is {seen} times in stream {stream}"
            for flight_id, seen in enumerate(times)
            if seen > 1
        ],
    )


def _flight_id(value: Any, count: int) -> int | None:
    flight_id = value.get("id") if isinstance(value, dict) else None
    return flight_id if type(flight_id) is int and 0 <= flight_id < count else None


def _flight(flight_id: int) -> str:
    flight = load_flights()[flight_id]
    return (
        f"flight {flight_id} ({flight['carrier']} {flight['flight']} from {flight['origin']}, "
        f"{flight['time_hour']})"
    )


def _differing(value: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    names = [
        name
        for name in {**expected, **value}
        if (name in value) != (name in expected)
        or not _is_same(value.get(name), expected.get(name))
    ]
    return ", ".join(
        f"{name} is {_shorten(value.get(name))}, not {_shorten(expected.get(name))}"
        for name in names
    )


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- the pipeline -------------------------------------------------------------------------------


def _check_pipeline(file: NodeFile, ids: Mapping[str, Mapping[int, int]], report: Report) -> None:
    """Every flight has one instance, every stage of it is done, and its output is that flight's."""
    pipeline_id = file.object_id("Pipeline", PIPELINE)
    if pipeline_id is None:
        report.add(file.name, [f"there is no pipeline {PIPELINE}"])
        return
    instances: dict[int, int | None] = {}
    found: list[str] = []
    triggers: set[int] = set()
    for instance, status, offset in file.rows(
        "SELECT instance_id, status, offset FROM hadron_instance WHERE pipeline_id = ?",
        (pipeline_id,),
    ):
        instances[instance] = ids["flights"].get(offset)
        if status != _DONE:
            found.append(f"instance {instance} is not done")
        if offset in triggers:
            found.append(f"the record at flights/{offset} made more than one instance")
        triggers.add(offset)
    report.add(file.name, found)
    idle = [offset for offset in ids["flights"] if offset not in triggers]
    report.add(file.name, [f"the record at flights/{offset} made no instance" for offset in idle])
    for stage, stream in STAGES.items():
        _check_outputs(file, pipeline_id, stage, instances, ids[stream], report)


def _check_outputs(
    file: NodeFile,
    pipeline_id: int,
    stage: str,
    instances: Mapping[int, int | None],
    outputs: Mapping[int, int],
    report: Report,
) -> None:
    found: list[str] = []
    left = dict.fromkeys(outputs)
    ran: set[int] = set()
    for instance, status, offset in file.rows(
        "SELECT instance_id, status, out_offset FROM hadron_stage_run WHERE pipeline_id = ?"
        " AND stage = ?",
        (pipeline_id, stage),
    ):
        ran.add(instance)
        if status != _DONE:
            found.append(f"stage {stage} of instance {instance} is not done")
        elif instance not in instances:
            found.append(f"stage {stage} ran for instance {instance}, which does not exist")
        elif outputs.get(offset) is None or outputs[offset] != instances[instance]:
            found.append(
                f"stage {stage} of instance {instance} points at {STAGES[stage]}/{offset}, "
                "which is not the output for its flight"
            )
        left.pop(offset, None)
    found += [f"stage {stage} of instance {number} never ran" for number in instances.keys() - ran]
    found += [f"no instance claims the output at {STAGES[stage]}/{offset}" for offset in left]
    report.add(file.name, found)
