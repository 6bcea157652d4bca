"""Histories: rising times, outcomes, and JSON lines that give the same history back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from hadron.model.errors import OutcomeUnknownError
from hadron.sim.evidence.history import Deliver, History, Operation, Publish, Read, Settle


def full_history() -> History:
    history = History(lambda: 7)
    history.event("start", "n1")
    sent = history.publish("c1", "c1/p1", "events", "local/p0", ["a", "b", "c"], acks="all")
    sent.runs = [(4, 2), (9, 1)]
    history.ok(sent)
    lost = history.publish("c1", "c1/p1", "events", "local/p0", ["d"])
    history.unknown(lost, OutcomeUnknownError("it may be", "look"))
    read = history.read("c2", "events", "local/p0", 4)
    read.values, read.end = ["a", "ä€\n"], 10
    history.ok(read)
    history.deliver("c2", "g", "c2/m1", "events", "local/p0", 4, ["a"], attempt=2)
    history.ok(history.settle("c2", "g", "c2/m1", "events", "local/p0", [(4, 4)]))
    history.settle("c2", "g", "c2/m1", "events", "local/p0", [(9, 9)], how="nack")
    history.refused(history.apply("c1", [("Stream", "events")]), "no such thing")
    return history


def test_times_rise_even_when_the_clock_stands_still() -> None:
    history = full_history()
    times = [
        time
        for entry in history.entries
        for time in ([entry.began, entry.ended] if isinstance(entry, Operation) else [entry.at])
        if time
    ]
    assert len(set(times)) == len(times) - 1  # a delivery is complete when it is noted
    assert all(a.began < b.began for a, b in pairwise(history.of(Publish)))


def test_offsets_of_a_publish_in_several_runs() -> None:
    first = full_history().of(Publish)[0]
    assert list(first.offsets()) == [(4, "a"), (5, "b"), (9, "c")]


def test_runs_that_do_not_cover_the_values_are_a_mistake() -> None:
    sent = History(lambda: 0).publish("c1", "", "events", "local/p0", ["a", "b"])
    sent.runs = [(0, 1)]
    with pytest.raises(ValueError, match="longer"):
        list(sent.offsets())


def test_what_is_not_completed_is_unknown() -> None:
    history = full_history()
    assert [entry.outcome for entry in history.of(Publish)] == ["ok", "unknown"]
    assert history.of(Publish)[1].error == "OutcomeUnknownError: it may be (look)"
    assert [(entry.how, entry.outcome) for entry in history.of(Settle)] == [
        ("ack", "ok"),
        ("nack", "unknown"),
    ]


def test_json_lines_give_the_same_history_back(tmp_path: Path) -> None:
    history = full_history()
    path = tmp_path / "history.jsonl"
    history.save(path)
    assert len(path.read_bytes().splitlines()) == len(history.entries)
    loaded = History.load(path)
    assert loaded.entries == history.entries
    assert loaded.tick() > history.of(Deliver)[0].ended


def test_histories_of_several_processes_are_merged_by_time(tmp_path: Path) -> None:
    paths = []
    for offset, name in enumerate(("one", "two")):
        now = iter(range(10 + offset, 1_000, 10))
        history = History(lambda now=now: next(now))  # type: ignore[misc]
        for number in range(3):
            history.ok(history.read(f"{name}{number}", "events", "local/p0", 0))
        paths.append(tmp_path / name)
        history.save(paths[-1])
    merged = History.load(*paths)
    assert [entry.client for entry in merged.of(Read)] == [
        "one0",
        "two0",
        "one1",
        "two1",
        "one2",
        "two2",
    ]


def test_events_are_of_known_kinds() -> None:
    history = full_history()
    assert [event.subject for event in history.events("start", "wipe")] == ["n1"]
    with pytest.raises(ValueError, match="'explode' is no kind of event"):
        history.event("explode", "n1")
