"""Dead letters of instances, on their leader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hadron.model.batch import judge_batch, read_head
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.pipelines.letters import Letters
from hadron.serving.tests.stack import SET, leading
from hadron.state.pipelines.letters import Due, SendLetters
from hadron.wire.system import SystemClock

ENRICH = StageSpec(name="enrich", engine="handler")


async def test_letters_that_waited_are_cut_into_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasons are bounded by characters, batches by bytes; so many waited for the disk."""
    async with leading(tmp_path) as stack:
        await stack.declare("Stream", "letters", StreamSpec(partitions=(SET,)))
        spec = PipelineSpec(replica_set=SET, input="in", dead_letters="letters", stages=(ENRICH,))
        item = SchemaObject(kind="Pipeline", name="q", spec=spec, id=9)
        letters = Letters(item, lambda: spec, stack.controller, stack.catalog, SystemClock())
        reason = "\x01" * 2_000
        waiting = [Due(n, "enrich", reason, 5, 1, 1, SET, n) for n in range(1, 501)]
        sent: list[int] = []

        async def execute(command: SendLetters, data: bytes) -> None:
            judge_batch(data)
            assert len(command.instance_ids) == read_head(data).n
            sent.extend(command.instance_ids)

        async def query(_: Any) -> list[Due]:
            return [each for each in waiting if each.instance_id not in sent]

        monkeypatch.setattr(stack.controller, "execute", execute)
        monkeypatch.setattr(stack.controller, "query", query)
        while await letters._send_some():
            pass
        assert sent == list(range(1, 501))
