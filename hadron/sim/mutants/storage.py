"""Bugs in what is on disk."""

from __future__ import annotations

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Constant, Edit

plant(
    "ack before fsync",
    "what is acknowledged was written and not synced",
    Constant("storage.store:_SYNC", {"fsync": "NORMAL", "os": "NORMAL"}),
    scenarios=("coordinated-power-failure",),
)

plant(
    "offsets reused after a lost commit",
    "a failed COMMIT does not end the process: it goes on as if the entries were on disk, and uses "
    "their lsns again",
    Edit(
        "storage.writer:Writer._execute_commit",
        '        self.connection.execute("COMMIT")\n',
        "        try:\n"
        '            self.connection.execute("COMMIT")\n'
        "        except apsw.Error:\n"
        "            return\n",
    ),
    scenarios=("failed-sync-of-the-leader",),
)

plant(
    "promise not written down",
    "a promised ballot is forgotten with the process",
    Edit(
        "storage.identity:IdentityFile.promise",
        "        self.current = self._load()\n",
        "        self.current = self._load()\n"
        "        with transaction(self._db):\n"
        "            self._db.execute(\n"
        '                "UPDATE identity SET epoch = ?, incarnation = ?, config_digest = ?",\n'
        "                (*now.promised, now.config_digest),\n"
        "            )\n",
    ),
    scenarios=("long-tail-and-a-restart-of-all",),
)

plant(
    "snapshot without chain check",
    "a copy is installed as it came, whatever its hash and its chain are",
    Edit("replication.fetching:_finish", "verify(path, manifest, disk)", "pass"),
    scenarios=("copy-damaged-half-way",),
)

plant(
    "damaged WAL taken for a torn one",
    "what follows a damaged frame is left out, as if it had never been synced",
    Edit("storage.aftermath:examine", "scan.verdict is not Verdict.DAMAGED", "True"),
    scenarios=("damaged-wal-meets-the-one-that-lags",),
)

plant(
    "trim not flushed",
    "what a trim writes may reach the disk after the beginning of the next commit",
    Edit(
        "replication.trimming:LogTrimmer._trim",
        "            with transaction(connection):\n",
        '            connection.execute("PRAGMA synchronous = NORMAL")\n'
        "            with transaction(connection):\n",
    ),
    Edit(
        "replication.trimming:LogTrimmer._trim",
        "            raise\n",
        "            raise\n"
        "        finally:\n"
        '            connection.execute(f"PRAGMA synchronous = {self._store.sync}")\n',
    ),
    scenarios=("power-loss-of-all-while-they-trim",),
)

plant(
    "pages not verified",
    "pages are read without a look at their checksums",
    Edit(
        "storage.checksums:with_checksums",
        "    with _lock:\n",
        "    if base:\n        return base\n    with _lock:\n",
    ),
    Edit("storage.checksums:require_checksums", "if not has_checksums(connection):", "if False:"),
    scenarios=("one-bit-in-a-table",),
)

plant(
    "bodies not verified on their way to replicas",
    "a record is taken from the leader's disk without a look at its hash, and sent",
    Edit(
        "storage.log:_sound_body",
        "if type(data) is not bytes or hash_body(data) != body_hash:",
        "if False:",
    ),
    scenarios=("body-changed-by-somebody",),
)

plant(
    "batches not verified on their way to readers",
    "a batch is taken from the disk without a look at its checksum, and served",
    Edit("state.streams.partitions:read_batches", "check_batch(data)", "pass"),
    scenarios=("body-changed-by-somebody",),
)

plant(
    "parts of a body taken from its beginning",
    "of a body with several batches every reader is given the first bytes, as many as it wants",
    Edit("state.streams.partitions:_Bodies.part", "_body[start : start + size]", "_body[:size]"),
    scenarios=("batches-of-one-entry",),
)

plant(
    "head not taken from the tables again",
    "after a tail was dropped the log goes on from where it ended before",
    Edit("storage.log:Log.drop_after", "self.reload()", "pass"),
    scenarios=("replica-with-a-lost-claim",),
)

plant(
    "copy without the tail",
    "a copy takes the file's place, and what the log held beyond the copy's end is gone",
    Edit("storage.snapshot:copy_tail", "return _append_rows(old, new, at)", "return 0"),
    scenarios=("copy-without-the-latest-entry",),
)

plant(
    "recovery without what was set aside",
    "a start moves a damaged log out of the way, and whoever recovers then finds none",
    Edit("node.recovery:_Remains.find", "if kept.uuid == uuid and (", "if False and ("),
    scenarios=("damaged-wals-that-are-set-aside-and-recovered",),
)

plant(
    "copy without a log of its own",
    "a copy takes the place of a file that somebody reads, and counts as damaged at the next start",
    Edit("storage.generations:switch_to", "    _begin_log(generation / DATABASE, disk)\n", ""),
    scenarios=("file-that-is-read-while-a-copy-is-installed",),
)

plant(
    "copy with bodies of the tail",
    "a copy ends where its tables stand, but for the bodies of the entries that it cuts off",
    Edit(
        "storage.snapshot:_cut_off_tail",
        '        copy.execute(f"DELETE FROM {BODY} WHERE lsn > ?", (lsn,))\n',
        "",
    ),
    scenarios=("backup-of-a-node-with-a-tail",),
)

plant(
    "copy of a replaced entry",
    "a copy whose last entry another leader's has replaced is given out as committed",
    Edit(
        "replication.snapshots:SnapshotService._wait_committed",
        "if now != position:",
        "if now is None:",
    ),
    scenarios=("backup-of-a-leader-that-is-deposed-meanwhile",),
)

plant(
    "stopped node's tail called committed",
    "a backup of a stopped node's files says that all is committed that its tables hold",
    Edit(
        "storage.snapshot:_cut_off_tail",
        'lsn if is_committed else min(lsn, get_meta(copy, "committed_lsn"))',
        "lsn",
    ),
    scenarios=("backup-of-a-leader-that-was-killed",),
)

plant(
    "mark of the log's end",
    "a node notes for ever that it has its last entry, which a leader may have it drop",
    Edit(
        "storage.store:Store._note_mark",
        "await self.readers.run_once(partial(_committed, known=self.known_committed()))",
        "self.log.head",
    ),
    scenarios=("tail-that-goes-with-its-leader",),
)

plant(
    "repaired in the cache",
    "an entry is called repaired by what SQLite has in its caches, and nothing is written",
    Edit(
        "replication.repair:Repairer._give_back",
        "        copies = {entry.lsn: entry for _, entry in entries}\n",
        "        copies = {entry.lsn: entry for _, entry in entries}\n        return\n",
    ),
    scenarios=("same-record-on-one-running-disk-after-the-other",),
)

plant(
    "repaired by another ballot's copy",
    "where a row is left, any copy that is sound by itself is written in its place",
    Edit(
        "storage.repair:_fits", "if own is not None and own[6] == end.chain:", "if own is not None:"
    ),
    scenarios=("damaged-tail-beside-another-leaders-log",),
)

plant(
    "files not looked after",
    "a node goes on with files that were deleted beneath it",
    Edit("storage.presence:Presence.look", "if now != known:", "if False:"),
    scenarios=("directory-deleted-beneath-a-node",),
)

plant(
    "older database counts",
    "a database without what its own node.db knows of is taken for the latest",
    Edit(
        "storage.store:Store._compare_with_mark",
        "if not (self.identity.current.is_member and",
        "if True or not (",
    ),
    scenarios=("older-database-beside-its-identity",),
)

plant(
    "orderly stop remembered",
    "a node that does not flush and was stopped in order once takes the next stop for such a one",
    Edit("storage.identity:IdentityFile.begin_run", "clean = 0, kernel", "clean = clean, kernel"),
    scenarios=("majority-loses-power-without-fsync",),
)

plant(
    "backup that is an older copy",
    "a backup of a running node may be the copy that somebody else has asked for before",
    Edit("node.backup:backup_live", "min_lsn=0", "min_lsn=1"),
    scenarios=("backup-soon-after-another",),
)

plant(
    "backup of a deposed leader",
    "who asks a leader for a backup gets one though others may have gone on without it",
    Edit("replication.snapshots:SnapshotService._confirm_leads", "await self._confirm()", "pass"),
    scenarios=("backup-of-a-leader-that-does-not-know",),
)

plant(
    "copy without the latest of the tail",
    "what was stored between the copying of the log's end and the closing of the old file is gone",
    Edit(
        "replication.resync:Installation.finish",
        "kept = copy_tail(old, self.generation / DATABASE, self.position, disk)",
        "pass",
    ),
    scenarios=("records-stored-while-a-copy-is-installed",),
)

plant(
    "log kept for copies that are gone",
    "the log stays pinned at the place of every copy that was ever given out",
    Edit(
        "replication.snapshots:SnapshotService._drop_current", "            current.unpin()\n", ""
    ),
    scenarios=("log-goes-on-after-a-backup",),
)

plant(
    "deleted while others are dropped",
    "what is deleted while an earlier deletion is being dropped is not dropped",
    Edit(
        "serving.dropping:DropDriver._rounds",
        "            self._changed = trio.Event()\n            is_left",
        "            is_left",
    ),
    Edit(
        "serving.dropping:DropDriver._rounds",
        "            with trio.move_on_after(",
        "            self._changed = trio.Event()\n            with trio.move_on_after(",
    ),
    scenarios=("streams-deleted-while-others-are-dropped",),
)

plant(
    "held back counts as dropped",
    "a deleted stream of which nothing may go yet counts as dropped, and its records stay",
    Edit(
        "state.machine:StateMachine.drop_some",
        "if not dropped.is_done:",
        "if dropped.rows and not dropped.is_done:",
    ),
    scenarios=("streams-deleted-while-others-are-dropped",),
)

plant(
    "retention's clock not started",
    "the first batch of an empty stream with an age limit does not start retention's clock",
    Edit("serving.retention:RetentionDriver._trim", "if found.oldest_ms is None:", "if False:"),
    scenarios=("burst-after-silence",),
)

plant(
    "schema change noted before it is stored",
    "a replica that looks while a schema change is being stored notes it as seen, and has not",
    Edit(
        "serving.schema_copy:SchemaCopy.run",
        "min(follower.schema_lsn, follower.stored_applied_lsn)",
        "follower.schema_lsn",
    ),
    scenarios=("objects-declared-one-after-the-other",),
)

plant(
    "entries for who stores nothing",
    "a replica whose disk is exhausted is sent what it lacks, refuses it, and is sent it again",
    Edit(
        "replication.feed:Feed._on_answer",
        "self._peer_has_room = not answer.stores_nothing",
        "self._peer_has_room = True",
    ),
    scenarios=("replicas-that-store-nothing",),
)

plant(
    "room forgotten with the feed",
    "what a replica has said of its full disk is forgotten when its feed ends; it has refused it",
    Edit(
        "replication.feed:Feed._on_end",
        "            self._host.peer_space(self.name, is_low=True)\n",
        "            self._host.peer_space(self.name, is_low=False)\n",
    ),
    Edit(
        "replication.feed:Feed._on_answer",
        "is_low=answer.low_on_space",
        "is_low=answer.low_on_space and not answer.stores_nothing",
    ),
    scenarios=("replicas-that-store-nothing",),
)

plant(
    "checkpoint not flushed",
    "rounds in the background write pages into the file and do not flush it; then the log begins "
    "anew, and nobody has what a power loss takes",
    Edit(
        "storage.checkpoint:Checkpointer._open", '"synchronous", "normal"', '"synchronous", "off"'
    ),
    scenarios=("constant-writing-while-somebody-reads",),
)

plant(
    "body of another entry taken",
    "the copy of a body whose log row is trimmed may be of an entry that was never committed, if "
    "that is as large",
    Edit("replication.repair:_check_body", "if not is_same or len(", "if len("),
    scenarios=("damaged-body-beside-another-leaders-entry",),
)

plant(
    "tail from before beside a copy",
    "what a node has put behind a copy stays there when another leader's entries have taken its "
    "place in the log",
    Edit(
        "storage.snapshot:copy_tail",
        "if position_at(old, at.lsn) != at:\n            # A tail",
        "if False:\n            # A tail",
    ),
    scenarios=("tail-replaced-beside-a-copy",),
)

plant(
    "kernel forgotten with a mark",
    "a node that notes where its log is forgets that its commits are not flushed, and under which "
    "kernel they were made",
    Edit("storage.identity:IdentityFile.note_mark", "coalesce(kernel, ?)", "?"),
    scenarios=("majority-loses-power-without-fsync",),
)
