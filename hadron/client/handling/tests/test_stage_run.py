"""The call that hands out invocations, without a leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hadron.client.pipelines.stage_run import ReadyStages
from hadron.wire.messages import check_count, pipelines_pb2


def test_what_has_begun_is_said_in_several_messages() -> None:
    """A leader ends the call for more than it takes in one, and what had come on it is others'."""
    sent: list[pipelines_pb2.RunStagesRequest] = []
    session, call = SimpleNamespace(), SimpleNamespace(send=sent.append)
    given: Any = session, "local/p0", pipelines_pb2.RunStagesRequest()
    stages = ReadyStages(*given, takes_ahead=True)
    opened: Any = call
    stages.opened(opened)
    stages.begin_all(range(1, 2_502), "v3")
    assert [number for each in sent for number in each.begun] == list(range(1, 2_502))
    for each in sent:
        check_count("micro-batches", len(each.begun))
