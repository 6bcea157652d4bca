"""What verifying data directories finds, and that it leaves them alone."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from hadron.model.errors import ConfigurationError
from hadron.model.schema import PipelineSpec, StageSpec
from hadron.node.verification import Verified, verify_paths
from hadron.partition.tests.stack import leading
from hadron.state.groups import AckRecords, CreateGroup
from hadron.state.pipelines import TriggerInstances
from hadron.storage.database import open_writer
from hadron.storage.log import Log, drop_bodies, set_meta
from hadron.storage.verify import Report


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """A closed node: two streams, a group with gaps, a pipeline with instances."""
    directory = tmp_path / "n1"
    async with leading(directory) as stack:
        stream, other = await stack.stream("events"), await stack.stream("other")
        for number in range(40):
            await stack.append(stream, b"value %d" % number * 400, b"second")
            await stack.append(other, b"x")
        group = await stack.controller.execute(CreateGroup(stream, "readers", 0))
        await stack.controller.execute(
            AckRecords(group.group_id, ((0, 3), (10, 12), (20, 20)))
        )
        spec = PipelineSpec(
            replica_set="local/p0", input="events", start="latest",
            stages=(StageSpec(name="only"),),
        )
        pipeline = await stack.declare("Pipeline", "flow", spec)
        await stack.controller.execute(
            TriggerInstances(pipeline, "local/p0", 80, 80, (0, 1, 3))
        )
    return directory


def problems(verified: Verified) -> list[str]:
    return [problem.text for file in verified.files for problem in file.report.problems]


def damage(directory: Path, *statements: str) -> Report:
    """The report on a directory whose tables somebody has changed."""
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        for statement in statements:
            db.execute(statement)
    (file,) = verify_paths([directory]).files
    assert not file.report.ok
    return file.report


async def test_a_good_file_is_good(directory: Path) -> None:
    (file,) = verify_paths([directory]).files
    report = file.report
    assert report.problems == []
    assert not file.live
    assert file.owner is not None
    assert (file.owner.node, file.owner.replica_set) == ("n1", "local/p0")
    assert report.checked == [
        "integrity", "meta", "log", "kept bodies", "streams", "groups", "replay",
    ]
    assert report.skipped == []
    assert (report.first_lsn, report.last_lsn, report.applied_lsn) == (1, 87, 87)
    assert (report.entries, report.bodies, report.batches) == (87, 80, 80)
    assert report.tables["stream_batch"] == 80
    assert report.tables["instance"] == 3
    assert report.tables["grp_ack"] == 2


async def test_verifying_leaves_no_trace(directory: Path) -> None:
    def snapshot() -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in directory.iterdir()
        }

    before = snapshot()
    assert verify_paths([directory]).ok
    assert snapshot() == before


async def test_a_running_node_is_verified_too(tmp_path: Path) -> None:
    async with leading(tmp_path / "n1") as stack:
        stream = await stack.stream("events")
        for number in range(20):
            await stack.append(stream, b"%d" % number)
        (file,) = verify_paths([tmp_path / "n1"]).files
        assert file.live
        assert file.report.problems == []
        assert "replay" in file.report.checked
        await stack.append(stream, b"goes on")


@pytest.mark.parametrize(
    ("statement", "table", "said"),
    [
        ("UPDATE body SET bytes = zeroblob(length(bytes)) WHERE lsn = 10", "body",
         "does not match"),
        ("DELETE FROM body WHERE lsn = 10", "body", "lost its bytes"),
        ("UPDATE log SET chain = zeroblob(16) WHERE lsn = 10", "log", "entry 10 does not continue"),
        ("UPDATE log SET now_ms = now_ms + 1 WHERE lsn = 10", "log", "entry 10 does not continue"),
        ("UPDATE log SET command = x'00' WHERE lsn = 10", "log", "entry 10 does not continue"),
        ("DELETE FROM log WHERE lsn IN (10, 11)", "log", "entries 10 to 11 are missing"),
        ("INSERT INTO body VALUES(1000, x'00')", "body", "has no entry"),
        ("UPDATE stream_batch SET count = 3 WHERE lsn = 10", "stream_batch", "comes where"),
        ("UPDATE stream_batch SET bytes = 1 WHERE lsn = 10", "stream_batch", "bytes, not 1"),
        ("UPDATE stream_batch SET incarnation = 7 WHERE lsn = 10", "stream_batch", "does not fit"),
        ("DELETE FROM stream_batch WHERE lsn = 10", "stream_batch", "comes where"),
        ("DELETE FROM stream_batch WHERE lsn = (SELECT max(lsn) FROM stream_batch)",
         "stream_batch", "batches end at"),
        ("UPDATE stream_partition SET bytes = bytes + 1", "stream_batch", "bytes, it says"),
        ("UPDATE stream_partition SET next_offset = 99 WHERE stream_id = 1", "stream_batch",
         "the next one is 99"),
        ("DELETE FROM stream_partition WHERE stream_id = 1", "stream_batch", "no partition"),
        ("UPDATE grp SET floor = 10000", "grp", "floor at 10000"),
        ("UPDATE grp_ack SET first = last + 1 WHERE first = 20", "grp_ack", "21 to 20"),
        ("INSERT INTO grp_ack SELECT group_id, 13, 14 FROM grp", "grp_ack", "13 to 14"),
        ("INSERT INTO grp_ack VALUES(12345, 1, 2)", "grp_ack", "of no group"),
        ("UPDATE meta SET value = 1000 WHERE key = 'applied_lsn'", "meta", "applied_lsn is 1000"),
        ("UPDATE instance SET status = 2 WHERE instance_id = 2", "instance",
         "instance at pipeline_id 3, instance_id 2: status is 2, the log makes it 1"),
        ("DELETE FROM stage_run WHERE instance_id = 3", "stage_run", "the row is missing"),
        ("INSERT INTO producer VALUES(1, x'aa', 0, 0, 0, x'90')", "producer", "no such row"),
        ("DROP TABLE producer", "producer", "is missing"),
    ],
)
async def test_what_was_changed_is_found(
    directory: Path, statement: str, table: str, said: str
) -> None:
    report = damage(directory, statement)
    found = [problem for problem in report.problems if said in problem.text]
    assert found, report.problems
    assert table in {problem.table for problem in found}


async def test_a_trimmed_log_is_verified_from_its_anchor(directory: Path) -> None:
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        log = Log(db)
        log.trim(30, max_rows=100)
    (file,) = verify_paths([directory]).files
    assert file.report.problems == []
    assert (file.report.first_lsn, file.report.entries) == (31, 57)
    assert file.report.skipped == ["re-applying the log, which begins at entry 31"]
    report = damage(directory, "UPDATE anchor SET chain = zeroblob(16)")
    assert [problem.text for problem in report.problems] == [
        "entry 31 does not continue the hash chain"
    ]


async def test_what_retention_dropped_is_no_damage(directory: Path) -> None:
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        first: Any = db.execute(
            "SELECT lsn, count, bytes FROM stream_batch WHERE stream_id = 1 AND base_offset = 0"
        ).fetchone()
        drop_bodies(db, [first[0]])
        db.execute("DELETE FROM stream_batch WHERE lsn = ?", (first[0],))
        db.execute(
            "UPDATE stream_partition SET first_offset = ?, bytes = bytes - ? WHERE stream_id = 1",
            first[1:],
        )
    (file,) = verify_paths([directory]).files
    assert file.report.dropped_bodies == 1
    # No command did it, so only re-applying them tells.
    assert {problem.table for problem in file.report.problems} == {
        "stream_batch", "stream_partition"
    }


async def test_one_damaged_chain_makes_one_entry_wrong(directory: Path) -> None:
    report = damage(directory, "UPDATE log SET chain = zeroblob(16) WHERE lsn = 30")
    assert [problem.lsn for problem in report.problems] == [30]


async def test_a_file_that_is_not_a_database_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "hadron.db").write_bytes(b"not a database at all" * 1_000)
    verified = verify_paths([tmp_path])
    assert not verified.ok
    assert "file is not a database" in problems(verified)[0]


async def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no"):
        verify_paths([tmp_path])
    with pytest.raises(ConfigurationError, match="does not exist"):
        verify_paths([tmp_path / "nothing"])


def edit_log(directory: Path, change: Callable[[apsw.Connection], None]) -> None:
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        change(db)


async def test_logs_of_one_replica_set_are_compared(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "n2")
    verified = verify_paths([directory, tmp_path / "n2"])
    (agreement,) = verified.agreements
    assert verified.ok
    assert agreement.lsn == 87
    assert agreement.chain == verified.files[0].report.chain

    def fork(db: apsw.Connection) -> None:
        db.execute("UPDATE log SET chain = zeroblob(16) WHERE lsn >= 60")

    edit_log(tmp_path / "n2", fork)
    (agreement,) = verify_paths([directory, tmp_path / "n2"]).agreements
    assert (agreement.lsn, agreement.problem) == (59, "")

    for each in (directory, tmp_path / "n2"):
        edit_log(each, lambda db: set_meta(db, "committed_lsn", 70))
    (agreement,) = verify_paths([directory, tmp_path / "n2"]).agreements
    assert agreement.lsn == 59
    assert "differ from entry 60 on" in agreement.problem
