"""Streams that come and go under one name are judged as what they were."""

from __future__ import annotations

from hadron.sim.evidence.history import History, Serve
from hadron.sim.evidence.labels import labelled, labelled_in, of_those_that_exist, streams_of
from hadron.sim.evidence.node_files import NodeFile

FILE = NodeFile(
    "n1",
    objects={
        1: ("Stream", "default", "events"),
        9: ("Stream", "default", "passing0"),
        12: ("Pipeline", "default", "passing0"),
    },
)


def test_files_call_streams_as_the_history_does() -> None:
    history = History(lambda: 0)
    history.publish("p", "", "events", "here", ["a"])
    assert labelled_in(history) == frozenset()
    history.publish("p", "", "passing0#4", "here", ["b"])
    names = labelled_in(history)
    assert streams_of([FILE]) == {"events", "passing0"}
    assert streams_of([labelled(FILE, names)]) == {"events", "passing0#9"}
    assert labelled(FILE, names).objects[12][2] == "passing0"


def test_what_was_done_with_a_stream_that_is_gone_is_left_out_but_for_its_groups() -> None:
    history = History(lambda: 0)
    kept = [
        history.publish("p", "", "events", "here", ["a"]),
        history.publish("p", "", "passing0#9", "here", ["b"]),
        history.apply("s", [("Stream", "passing0")]),
    ]
    gone = [
        history.publish("p", "", "passing0#4", "here", ["c"]),
        history.read("r", "passing0#4", "here", 0),
        history.deliver("m", "g", "m", "passing0#4", "here", 0, ["c"], attempt=1),
    ]
    unheard = history.settle("m", "h", "m", "passing0#4", "here", [(0, 0)])
    settled = history.settle("m", "g", "m", "passing0#4", "here", [(0, 0)])
    serve = Serve(
        at=1,
        driver=1,
        partition="here",
        group="g",
        stream="passing0#4",
        group_id=5,
        epoch=1,
        incarnation=1,
        floor=0,
    )
    history.note(serve)
    left = of_those_that_exist(history.entries, {"events", "passing0#9"})
    assert left == [*kept, settled, serve]
    assert all(entry not in left for entry in [*gone, unheard])
