"""What verifying data directories finds, and that it leaves them alone."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from hadron.model.errors import ConfigurationError
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.node.backup import backup_directory
from hadron.node.verification import verify_paths
from hadron.node.verified import Verified
from hadron.node.world import SystemDisk
from hadron.serving.tests.stack import SET, leading
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.leadership import CONFIGURATION
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.storage.database import FORMAT_VERSION, open_reader, open_writer
from hadron.storage.identity import IdentityFile
from hadron.storage.log import Log, drop_bodies, get_meta, set_meta
from hadron.storage.report import Report
from hadron.wire.system import SystemClock


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
        await stack.controller.execute(AckRecords(group.group_id, ((0, 3), (10, 12), (20, 20))))
        spec = PipelineSpec(
            replica_set="local/p0", input="events", start="latest", stages=(StageSpec(name="only"),)
        )
        pipeline = await stack.declare("Pipeline", "flow", spec)
        await stack.controller.execute(TriggerInstances(pipeline, "local/p0", 80, 80, (0, 1, 3)))
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
        "integrity",
        "meta",
        "log",
        "kept bodies",
        "batches",
        "key index",
        "streams",
        "counted bodies",
        "groups",
        "transactions",
        "replay",
    ]
    assert report.skipped == []
    assert (report.first_lsn, report.last_lsn, report.applied_lsn) == (1, 87, 87)
    assert (report.entries, report.bodies, report.batches) == (87, 80, 80)
    assert report.tables["hadron_stream_batch"] == 80
    assert report.tables["hadron_instance"] == 3
    assert report.tables["hadron_group_ack"] == 2


async def test_verifying_leaves_no_trace(directory: Path) -> None:
    def snapshot() -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()
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
        (
            "UPDATE hadron_body SET bytes = zeroblob(length(bytes)) WHERE lsn = 10",
            "hadron_body",
            "does not match",
        ),
        ("DELETE FROM hadron_body WHERE lsn = 10", "hadron_body", "lost its bytes"),
        (
            "UPDATE hadron_log SET chain = zeroblob(16) WHERE lsn = 10",
            "hadron_log",
            "entry 10 does not continue",
        ),
        (
            "UPDATE hadron_log SET now_ms = now_ms + 1 WHERE lsn = 10",
            "hadron_log",
            "entry 10 does not continue",
        ),
        (
            "UPDATE hadron_log SET command = x'00' WHERE lsn = 10",
            "hadron_log",
            "entry 10 does not continue",
        ),
        (
            "DELETE FROM hadron_log WHERE lsn IN (10, 11)",
            "hadron_log",
            "entries 10 to 11 are missing",
        ),
        ("INSERT INTO hadron_body VALUES(1000, x'00')", "hadron_body", "has no entry"),
        (
            "UPDATE hadron_stream_batch SET count = 3 WHERE lsn = 10",
            "hadron_stream_batch",
            "comes where",
        ),
        (
            "UPDATE hadron_stream_batch SET bytes = 1 WHERE lsn = 10",
            "hadron_stream_batch",
            "bytes, not 1",
        ),
        (
            "UPDATE hadron_stream_batch SET incarnation = 7 WHERE lsn = 10",
            "hadron_stream_batch",
            "does not fit",
        ),
        ("DELETE FROM hadron_stream_batch WHERE lsn = 10", "hadron_stream_batch", "comes where"),
        (
            "DELETE FROM hadron_stream_batch "
            "WHERE lsn = (SELECT max(lsn) FROM hadron_stream_batch)",
            "hadron_stream_batch",
            "batches end at",
        ),
        (
            "UPDATE hadron_stream_partition SET bytes = bytes + 1",
            "hadron_stream_batch",
            "bytes, it says",
        ),
        (
            "UPDATE hadron_stream_partition SET next_offset = 99 WHERE stream_id = 1",
            "hadron_stream_batch",
            "the next one is 99",
        ),
        (
            "DELETE FROM hadron_stream_partition WHERE stream_id = 1",
            "hadron_stream_batch",
            "no partition",
        ),
        ("UPDATE hadron_group SET floor = 10000", "hadron_group", "floor at 10000"),
        (
            "UPDATE hadron_group_ack SET first = last + 1 WHERE first = 20",
            "hadron_group_ack",
            "21 to 20",
        ),
        (
            "INSERT INTO hadron_group_ack SELECT group_id, 13, 14 FROM hadron_group",
            "hadron_group_ack",
            "13 to 14",
        ),
        ("INSERT INTO hadron_group_ack VALUES(12345, 1, 2)", "hadron_group_ack", "of no group"),
        (
            "UPDATE hadron_meta SET value = 1000 WHERE key = 'applied_lsn'",
            "hadron_meta",
            "applied_lsn is 1000",
        ),
        (
            "UPDATE hadron_instance SET status = 2 WHERE instance_id = 2",
            "hadron_instance",
            "instance at pipeline_id 3, instance_id 2: status is 2, the log makes it 1",
        ),
        (
            "DELETE FROM hadron_stage_run WHERE instance_id = 3",
            "hadron_stage_run",
            "the row is missing",
        ),
        (
            "INSERT INTO hadron_producer VALUES(1, x'aa', 0, 0, 0, 0, x'90')",
            "hadron_producer",
            "no such row",
        ),
        ("DROP TABLE hadron_producer", "hadron_producer", "is missing"),
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
    report = damage(directory, "UPDATE hadron_anchor SET chain = zeroblob(16)")
    assert [problem.text for problem in report.problems] == [
        "entry 31 does not continue the hash chain"
    ]


async def test_what_retention_dropped_is_no_damage(directory: Path) -> None:
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        first: Any = db.execute(
            "SELECT lsn, count, bytes FROM hadron_stream_batch WHERE stream_id = 1"
            " AND base_offset = 0"
        ).fetchone()
        drop_bodies(db, [first[0]])
        db.execute("DELETE FROM hadron_stream_batch WHERE lsn = ?", (first[0],))
        db.execute(
            "UPDATE hadron_stream_partition SET first_offset = ?, bytes = bytes - ?"
            " WHERE stream_id = 1",
            first[1:],
        )
    (file,) = verify_paths([directory]).files
    assert file.report.dropped_bodies == 1
    # No command did it, so only re-applying them tells.
    assert {problem.table for problem in file.report.problems} == {
        "hadron_stream_batch",
        "hadron_stream_partition",
    }


async def test_one_damaged_chain_makes_one_entry_wrong(directory: Path) -> None:
    report = damage(directory, "UPDATE hadron_log SET chain = zeroblob(16) WHERE lsn = 30")
    assert [problem.lsn for problem in report.problems] == [30]


@pytest.mark.parametrize("has_tables", [True, False])
async def test_a_file_of_another_format_is_one_problem(directory: Path, has_tables: bool) -> None:
    """Not one for each table that has another name there."""
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        db.pragma("user_version", 99)
        if not has_tables:
            db.execute("ALTER TABLE hadron_log RENAME TO log")
            db.execute("ALTER TABLE hadron_meta RENAME TO meta")
    (file,) = verify_paths([directory]).files
    assert [each.text for each in file.report.problems] == [
        f"{directory / 'hadron.db'} has format version 99, this Hadron knows {FORMAT_VERSION}: use "
        "the version of Hadron that wrote it, or a newer one"
    ]
    assert file.report.checked == []


async def test_a_file_of_ours_that_lost_its_number_is_looked_at(directory: Path) -> None:
    with closing(open_writer(directory / "hadron.db", sync="NORMAL")) as db:
        db.pragma("application_id", 0)
        db.execute("DROP TABLE hadron_meta")
    said = problems(verify_paths([directory]))
    assert len(said) > 1
    assert not any("did not make" in each for each in said)


async def test_a_file_that_is_not_a_database_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "hadron.db").write_bytes(b"not a database at all" * 1_000)
    verified = verify_paths([tmp_path])
    assert not verified.ok
    assert "file is not a database" in problems(verified)[0]


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """A node whose process was killed: its last entries stand in the write-ahead log only."""
    async with leading(tmp_path / "n1") as stack:
        stream = await stack.stream("events")
        for number in range(40):
            await stack.append(stream, b"value %d" % number)
        shutil.copytree(tmp_path / "n1", tmp_path / "killed")
    assert (tmp_path / "killed" / "hadron.db-wal").stat().st_size
    assert verify_paths([tmp_path / "killed"]).ok
    return tmp_path / "killed"


GONE = r"it may lack what it acknowledged: .*hadron\.db-wal is gone, though the node was not"


async def test_a_write_ahead_log_that_is_gone_is_told_in_one_sentence(killed: Path) -> None:
    """Nothing had been copied from it, so that nothing is left."""
    for ending in ("-wal", "-shm"):
        (killed / f"hadron.db{ending}").unlink()
    (said,) = problems(verify_paths([killed]))
    assert re.match(GONE, said)


async def test_a_file_that_has_lost_its_last_entries_is_not_right(killed: Path) -> None:
    with closing(open_writer(killed / "hadron.db", sync="NORMAL")) as db:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    for ending in ("-wal", "-shm"):
        (killed / f"hadron.db{ending}").unlink(missing_ok=True)
    (file,) = verify_paths([killed]).files
    assert file.report.last_lsn == 42
    (problem,) = file.report.problems
    assert re.match(GONE, problem.text)


async def test_what_the_only_member_has_is_committed(killed: Path, tmp_path: Path) -> None:
    """Its disk is the majority; the file says so at the beginning of a ballot only."""
    with closing(open_reader(killed / "hadron.db")) as db:
        assert get_meta(db, "committed_lsn") < 42
    (file,) = verify_paths([killed]).files
    assert (file.report.committed_lsn, file.report.applied_lsn) == (42, 42)
    manifest = backup_directory(killed, tmp_path / "backup", SystemDisk(), SystemClock())
    assert (manifest.committed_lsn, manifest.lsn) == (42, 42)
    assert verify_paths([tmp_path / "backup"]).ok


async def test_a_log_whose_only_member_has_no_record_of_it_is_not_right(directory: Path) -> None:
    """`node.db` was lost, and the node started once: it waits for an operator."""
    (directory / "node.db").unlink()
    IdentityFile(directory, "test", SET, "n1", SystemDisk()).close()
    (said,) = problems(verify_paths([directory]))
    assert said == (
        "it may lack what it acknowledged: there is a log, and node.db has no member record for it"
    )


async def test_a_damaged_write_ahead_log_is_told(killed: Path) -> None:
    path = killed / "hadron.db-wal"
    content = bytearray(path.read_bytes())
    # Of the first frame: where the log has begun anew, what is far behind is an older one's.
    content[32 + 24 + 2_000] ^= 1
    path.write_bytes(content)
    said = problems(verify_paths([killed]))
    assert any("hadron.db-wal is damaged: " in each for each in said), said


async def test_the_log_of_a_file_behind_a_link_is_read(killed: Path) -> None:
    generation = killed / "gen-1"
    generation.mkdir()
    for ending in ("", "-wal", "-shm"):
        (killed / f"hadron.db{ending}").rename(generation / f"hadron.db{ending}")
    (killed / "hadron.db").symlink_to("gen-1/hadron.db")
    verified = verify_paths([killed])
    assert verified.ok
    assert verified.files[0].report.last_lsn == 42


async def test_a_directory_without_manifest_or_node_is_not_right(
    directory: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    shutil.copy(directory / "hadron.db", backup)
    (said,) = problems(verify_paths([backup]))
    assert said.startswith("manifest.json is missing: ")
    assert "is not a complete backup" in said
    # Who names the file means the file.
    verified = verify_paths([backup / "hadron.db"])
    assert verified.ok
    assert any("no manifest.json beside it" in each for each in verified.files[0].report.skipped)


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
        db.execute("UPDATE hadron_log SET chain = zeroblob(16) WHERE lsn >= 60")

    def as_one_of_two(db: apsw.Connection) -> None:
        two = '[["n1", "leader"], ["n2", "replica"]]'
        db.execute(f"UPDATE {CONFIGURATION} SET members = ?", (two,))

    edit_log(tmp_path / "n2", fork)
    for each in (directory, tmp_path / "n2"):
        # What is only on the disk of one of several may differ.
        edit_log(each, as_one_of_two)
    (agreement,) = verify_paths([directory, tmp_path / "n2"]).agreements
    assert (agreement.lsn, agreement.problem) == (59, "")

    for each in (directory, tmp_path / "n2"):
        edit_log(each, lambda db: set_meta(db, "committed_lsn", 70))
    (agreement,) = verify_paths([directory, tmp_path / "n2"]).agreements
    assert agreement.lsn == 59
    assert "differ from entry 60 on" in agreement.problem


async def test_each_file_is_in_an_agreement_or_it_is_said_why_not(
    directory: Path, tmp_path: Path
) -> None:
    whole, behind, alone = tmp_path / "n2", tmp_path / "n3", tmp_path / "hadron.db"
    for each in (whole, behind):
        shutil.copytree(directory, each)
    shutil.copy(directory / "hadron.db", alone)

    # Stopped long ago; the others have trimmed what it would need.
    def end_early(db: apsw.Connection) -> None:
        db.execute("DELETE FROM hadron_log WHERE lsn > 30")

    edit_log(behind, end_early)
    for each in (directory, whole):
        edit_log(each, lambda db: Log(db).trim(50, max_rows=100))
    verified = verify_paths([directory, whole, behind, alone])
    (agreement,) = verified.agreements
    assert (agreement.names, agreement.lsn, agreement.problem) == (
        [f"n1 ({directory})", f"n1 ({whole})"],
        87,
        "",
    )
    assert [(each.names, each.why) for each in verified.apart] == [
        ([str(alone)], "nothing beside it tells whose it is"),
        (
            [f"n1 ({behind})"],
            f"its log ends at entry 30, and n1 ({directory}) and n1 ({whole}) "
            "have trimmed what comes before 51",
        ),
    ]
    # Trimmed whole, a log still says what it ended with.
    edit_log(whole, lambda db: Log(db).trim(87, max_rows=100))
    (agreement,) = verify_paths([directory, whole]).agreements
    assert (agreement.lsn, agreement.problem) == (87, "")
