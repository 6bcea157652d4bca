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


def test_what_hangs_in_a_thread_fails_its_attempt(url: str) -> None:
    with hadron.connect_sync(url) as client:
        client.create_stream("hang-in")
        client.create_stream("hang-out")
        client.apply(
            "kind: Pipeline\nname: hangs\nreplica_set: local/p0\ninput: hang-in\nstart: earliest\n"
            "stages: [{name: one, engine: handler, timeout: 2s, retry: {backoff: 10ms},"
            " output: {stream: hang-out}}]\n"
        )
        client.send("hang-in", "a")
        stage, is_over = client.stage("hangs", "one"), threading.Event()
        late: list[bool] = []

        def handle(invocation: hadron.SyncStageInvocation) -> str:
            if invocation.attempt > 1:
                return "in time"
            is_over.wait(60)
            late.append(invocation.is_late)
            return "late"

        thread = threading.Thread(target=stage.run, args=(handle,))
        thread.start()
        (record,) = (
            each for _, each in zip(range(1), client.read("hang-out", follow=True), strict=False)
        )
        is_over.set()
        stage.close()
        thread.join(10)
        assert (record.value, late) == ("in time", [True])
        assert [each.value for each in client.read("hang-out")] == ["in time"]
