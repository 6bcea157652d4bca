"""Stages that a blocking program runs itself, through a real node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import hadron
from hadron.client.blocking.tests.support import ctrl_c_behind_the_call
from hadron.node.supervision.cluster import LocalCluster


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("node"), nodes=1) as running:
        yield running.url


@contextmanager
def connected(url: str, pipeline: str, stage: str = "") -> Iterator[hadron.SyncClient]:
    """With a pipeline of one stage, "one", whose streams begin with its name."""
    with hadron.connect_sync(url) as client:
        client.create_stream(f"{pipeline}-in")
        client.create_stream(f"{pipeline}-out")
        client.apply(
            f"kind: Pipeline\nname: {pipeline}\nreplica_set: local/p0\ninput: {pipeline}-in\n"
            f"start: earliest\nstages: [{{name: one, engine: handler, {stage}"
            f"output: {{stream: {pipeline}-out}}}}]\n"
        )
        yield client


def test_a_stage_is_run_by_a_loop_and_by_threads(url: str) -> None:
    with connected(url, "p") as client:
        for number in range(3):
            client.send("p-in", {"n": number})
        for invocation in client.stage("p", "one"):
            first = invocation.root.value["n"]
            break
        # Left without an end it is somebody else's.
        with client.stage("p", "one") as stage:
            with ctrl_c_behind_the_call(stage._lazy.get()._portal):
                next(iter(stage))
            invocation = next(iter(stage))
            assert (invocation.root.value["n"], invocation.attempt) == (first, 1)
            receipt = invocation.complete({"n": first}, key="k")
            assert receipt is not None
            assert receipt.stream == "p-out"
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
            for _, record in zip(range(3), client.read("p-out", follow=True), strict=False)
        ]
        stage.close()
        thread.join(10)
        assert (sorted(values), seen) == ([0, 1, 2], [2])


def test_an_output_of_a_stage_without_any_ends_its_run_and_fails_nothing(url: str) -> None:
    with connected(url, "none") as client:
        client.apply(
            "kind: Pipeline\nname: quiet\nreplica_set: local/p0\ninput: none-in\n"
            "start: earliest\nstages: [{name: one, engine: handler}]\n"
        )
        client.send("none-in", "a")
        # Of its threads all but one wait for another invocation.
        with pytest.raises(
            hadron.RequestError, match="'one' declares no output, and for instance 1"
        ):
            client.stage("quiet", "one").run(lambda _: {"n": 1})
        invocation = next(iter(client.stage("quiet", "one")))
        with pytest.raises(hadron.RequestError, match="declares no output"), invocation:
            invocation.complete("x")
        with client.stage("quiet", "one") as stage, next(iter(stage)) as invocation:
            assert invocation.attempt == 1


def test_calls_that_hang_keep_no_thread_from_others(url: str) -> None:
    """Neither by their first attempts nor by the next ones."""
    retries = "timeout: 500ms, retry: {backoff: 10ms, max_attempts: 2}, "
    with connected(url, "stuck", retries) as client:
        for value in ("hang", "hang", "a", "b"):
            client.send("stuck-in", value)
        stage, end = client.stage("stuck", "one"), threading.Event()

        def handle(invocation: hadron.SyncStageInvocation) -> str:
            if invocation.root.value == "hang":
                end.wait(60)
            return str(invocation.root.value)

        thread = threading.Thread(target=stage.run, args=(handle,), kwargs={"threads": 2})
        thread.start()
        done = zip(range(2), client.read("stuck-out", follow=True), strict=False)
        assert sorted(record.value for _, record in done) == ["a", "b"]
        while client.pipeline_progress("stuck")[0].failed < 2:
            time.sleep(0.05)
        stage.close()
        thread.join(20)
        assert not thread.is_alive()
        end.set()


def test_what_a_handler_raises_that_is_no_error_ends_its_run(url: str) -> None:
    """Whichever of the threads it was in; no attempt is used up."""
    with connected(url, "exits") as client:
        for value in ("a", "b", "exit"):
            client.send("exits-in", value)
        others, is_out = threading.Barrier(3), threading.Event()

        def handle(invocation: hadron.SyncStageInvocation) -> str:
            if threading.current_thread().name == "hadron-stage" and not is_out.is_set():
                others.wait(20)
            if invocation.root.value == "exit":
                is_out.set()
                raise SystemExit(3)
            return "ok"

        with pytest.raises(SystemExit) as raised:
            client.stage("exits", "one").run(handle, threads=3)
        assert raised.value.code == 3
        with client.stage("exits", "one") as stage:
            invocation = next(iter(stage))
            assert (invocation.root.value, invocation.attempt) == ("exit", 1)


def test_a_client_that_is_closed_waits_for_no_handler(url: str) -> None:
    end = threading.Event()
    with connected(url, "closed") as client:
        client.send("closed-in", "a")
        begun = threading.Event()

        def handle(_: hadron.SyncStageInvocation) -> str:
            begun.set()
            end.wait(60)
            return "late"

        stage = client.stage("closed", "one")
        thread = threading.Thread(target=stage.run, args=(handle,), kwargs={"threads": 1})
        thread.start()
        assert begun.wait(20)
        client.close()
        thread.join(20)
        assert not thread.is_alive()
    end.set()


@pytest.mark.long
def test_what_hangs_in_a_thread_fails_its_attempt(url: str) -> None:
    with connected(url, "hangs", "timeout: 2s, retry: {backoff: 10ms}, ") as client:
        client.send("hangs-in", "a")
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
            each for _, each in zip(range(1), client.read("hangs-out", follow=True), strict=False)
        )
        is_over.set()
        stage.close()
        thread.join(10)
        assert (record.value, late) == ("in time", [True])
        assert [each.value for each in client.read("hangs-out")] == ["in time"]
