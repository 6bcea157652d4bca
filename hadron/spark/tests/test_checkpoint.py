"""Whether a checkpoint is what its sink knows: without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hadron.model.errors import ConfigurationError, RequestError
from hadron.model.sinks import UNKNOWN, SinkProgress
from hadron.spark.checkpoint import KNOWN_MS, Checkpoint, default_directory
from hadron.spark.source.cursors import Cursor
from hadron.state.sinks.progress import SINK_IDLE_MS

NOW_MS = 1_700_000_000_000


class Made(Checkpoint):
    """One as Spark would leave it."""

    def has(self, query: str, offsets: int = -1, commits: int = -1) -> None:
        self.location.mkdir(parents=True, exist_ok=True)
        (self.location / "metadata").write_text(json.dumps({"id": query}))
        for log, latest in (("offsets", offsets), ("commits", commits)):
            (self.location / log).mkdir(exist_ok=True)
            for batch in range(latest + 1):
                cursor = {"local/p0": {"offset": 10 * batch, "stream_id": 3}}
                text = f"v1\n{json.dumps({'batchTimestampMs': NOW_MS})}\n{json.dumps(cursor)}"
                (self.location / log / str(batch)).write_text(text)
                (self.location / log / f".{batch}.crc").write_text("")


def sink(query: str, batch: int = 7) -> SinkProgress:
    return SinkProgress("pipeline.5.p", query, batch, 1_700_000_000_000)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Made:
    return Made("p", Made.of(tmp_path, "p", 5, b"\x01\xab" * 8).directory)


def test_it_is_named_by_pipeline_id_and_cluster(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "a" / ".."):
        found = Checkpoint.of(root, "p", 5, b"\x01\xab" * 8).directory
        assert found == tmp_path / "p-5-01ab01ab"


def test_all_are_kept_with_what_programs_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_directory() == Path("/state/hadron/checkpoints")


def test_a_query_goes_on_with_its_own_sink(checkpoint: Made) -> None:
    assert checkpoint.follows(None, "latest") == ""
    checkpoint.has("q1", 7, 6)
    assert checkpoint.follows(sink("q1"), "latest") == ""
    checkpoint.check(sink("q1"))
    checkpoint.check(None)


@pytest.mark.parametrize("has", ["", "q2"])
def test_a_sink_of_another_query_is_refused(checkpoint: Made, has: str) -> None:
    if has:
        checkpoint.has(has, 0, 0)
    with pytest.raises(RequestError, match=r"published up to batch 7 \(2023") as caught:
        checkpoint.follows(sink("q1"), "earliest")
    assert "`hadron pipeline run p --reset` begins anew at `start: earliest`" in str(caught.value)


def test_who_was_taken_over_is_told(checkpoint: Made) -> None:
    checkpoint.has("q1", 7, 6)
    with pytest.raises(RequestError, match="at batch 7 of query q2, and this was query q1"):
        checkpoint.check(sink("q2"))


def test_what_begins_anew_takes_over_from_the_one_before_until_it_has(checkpoint: Made) -> None:
    checkpoint.has("q1", 7, 7)
    checkpoint.begin_anew(sink("q1"))
    assert checkpoint.query == ""
    assert checkpoint.follows(sink("q1"), "latest") == "q1"
    # Killed before it has published anything, it goes on, and takes over still.
    checkpoint.has("q2", 0)
    assert checkpoint.follows(sink("q1"), "latest") == "q1"
    assert checkpoint.follows(sink("q2", 0), "latest") == "q1"
    with pytest.raises(RequestError, match="was it deleted"):
        checkpoint.follows(sink("q3"), "latest")


def test_what_was_begun_before_a_reset_was_done_is_the_old_one_or_none(checkpoint: Made) -> None:
    checkpoint.has("q1", 7, 7)
    (checkpoint.directory / "follows").write_text("q1")
    assert checkpoint.follows(sink("q1"), "latest") == "q1"
    (checkpoint.directory / "checkpoint.old").mkdir()
    checkpoint.begin_anew(sink("q1"))
    assert [each.name for each in checkpoint.directory.iterdir()] == ["follows"]


def test_a_sink_that_was_forgotten_is_begun_where_nothing_is_under_way(checkpoint: Made) -> None:
    checkpoint.has("q1", 7, 7)
    assert checkpoint.follows(None, "latest") == UNKNOWN
    checkpoint.has("q1", 8, 7)
    with pytest.raises(RequestError, match="batch 8 of pipeline 'p' was under way"):
        checkpoint.follows(None, "latest")


def test_a_first_batch_may_be_under_way(checkpoint: Made) -> None:
    """As long as its sink would be known if it were published."""
    assert KNOWN_MS <= SINK_IDLE_MS
    checkpoint.has("q1", 0)
    assert checkpoint.follows(None, "latest", NOW_MS + KNOWN_MS - 1) == ""
    with pytest.raises(RequestError, match="batch 0 of pipeline 'p' was under way"):
        checkpoint.follows(None, "latest", NOW_MS + KNOWN_MS)
    (checkpoint.location / "offsets" / "0").write_text("v1\n")
    with pytest.raises(RequestError, match="batch 0 of pipeline 'p' was under way"):
        checkpoint.follows(None, "latest", NOW_MS)


def test_where_it_is_is_known_from_what_is_published(checkpoint: Made) -> None:
    assert checkpoint.cursors(3) is None
    checkpoint.has("q1", 8, 7)
    assert checkpoint.cursors(3) == {"local/p0": Cursor(70, None, 3)}
    assert checkpoint.cursors(4) is None, "that is another stream"
    assert checkpoint.cursors(3, 8) == {"local/p0": Cursor(80, None, 3)}, "Spark notes it late"
    assert checkpoint.cursors(3, 6) == {"local/p0": Cursor(70, None, 3)}, "a later one has none"


def test_one_runner_holds_it(checkpoint: Made) -> None:
    refused = pytest.raises(RequestError, match=r"run already, by process \d+ on ")
    with checkpoint.held(), refused, checkpoint.held():
        pass
    with checkpoint.held():
        pass


def test_a_place_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigurationError, match="cannot be used"),
        Checkpoint("p", tmp_path / "file" / "p").held(),
    ):
        pass
