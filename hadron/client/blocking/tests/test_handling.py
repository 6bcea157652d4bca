"""Stages that a blocking program runs itself, through a real node."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import hadron
from hadron.node.supervision.cluster import LocalCluster


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("node"), nodes=1) as running:
        yield running.url


def test_a_stage_is_run_by_a_loop_and_by_threads(url: str) -> None:
    with hadron.connect_sync(url) as client:
        client.create_stream("in")
        client.create_stream("out")
        client.apply(
            "kind: Pipeline\nname: p\nreplica_set: local/p0\ninput: in\nstart: earliest\n"
            "stages: [{name: one, engine: handler, output: {stream: out}}]\n"
        )
        for number in range(3):
            client.send("in", {"n": number})
        for invocation in client.stage("p", "one"):
            first = invocation.root.value["n"]
            break
        # Left without an end it is somebody else's.
        with client.stage("p", "one") as stage:
            invocation = next(iter(stage))
            assert (invocation.root.value["n"], invocation.attempt) == (first, 1)
            receipt = invocation.complete({"n": first}, key="k")
            assert receipt is not None
            assert receipt.stream == "out"
            invocation = next(iter(stage))
            with client.transaction() as tx:
                tx.complete(invocation, invocation.root.value)
            with next(iter(stage)) as invocation:
                raise ValueError("no")
        seen: list[int] = []
        stage = client.stage("p", "one")

        def handle(invocation: hadron.SyncStageInvocation) -> dict[str, int]:
            seen.append(invocation.attempt)
            value: dict[str, int] = invocation.root.value
            return value

        thread = threading.Thread(target=stage.run, args=(handle,))
        thread.start()
        values = [
            record.value["n"]
            for _, record in zip(range(3), client.read("out", follow=True), strict=False)
        ]
        stage.close()
        thread.join(10)
        assert (sorted(values), seen) == ([0, 1, 2], [2])
