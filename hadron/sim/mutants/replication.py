"""Bugs in ballots, majorities and watermarks."""

from __future__ import annotations

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

plant(
    "majority minus one",
    "one node less than a majority is enough",
    Edit(
        "replication.quorum:Quorum.__init__",
        "len(self._persisted) // 2 + 1",
        "len(self._persisted) // 2",
    ),
    scenarios=("read-of-an-uncommitted-record",),
)

plant(
    "watermark before the leader's disk",
    "the leader counts itself when it sends, not when its disk has the entry",
    Edit(
        "replication.feeding:Feeding.offer",
        "self.head = entries[-1].position",
        "self.head = entries[-1].position\n        self.quorum.record(self.node, self.head.lsn)",
    ),
    scenarios=("leader-dies-before-its-own-sync",),
)

plant(
    "replica acknowledges before its disk",
    "a replica answers when it has prepared the write, not when it has committed it",
    Edit(
        "replication.service:ReplicationService._append",
        "            writer.commit(joined.prepare, partial(self._appended, joined))\n",
        "            def prepare(connection):\n"
        "                prepared = joined.prepare(connection)\n"
        "                for call, own in joined.outcomes(prepared.result):\n"
        "                    self._answer_append(call, own)\n"
        "                return prepared\n"
        "            writer.commit(prepare, partial(self._appended, joined))\n",
    ),
    Edit(
        "replication.service:ReplicationService._appended", "self._answer_append(call, own)", "pass"
    ),
    scenarios=("replica-dies-before-its-own-sync",),
)

plant(
    "most advanced by length alone",
    "of two logs the longer one is chosen, whatever its last ballot",
    Edit(
        "replication.ballot:Candidate._reconcile",
        "(last.ballot, last.lsn) > (best.ballot, best.lsn)",
        "last.lsn > best.lsn",
    ),
    scenarios=("long-tail-of-an-old-ballot",),
)

plant(
    "own end acknowledged",
    "a replica acknowledges its own last entry, not what it has verified to be equal",
    Edit(
        "replication.appends:JoinedAppends.outcomes",
        "AppendOutcome(each.end.lsn,",
        "AppendOutcome(self._follower.head.lsn,",
    ),
    scenarios=("divergent-tail-counts-for-nothing",),
)

plant(
    "amnesiac counted in a majority",
    "a node whose disk is new counts like one that remembers",
    Edit(
        "replication.standing:stand",
        "memories = 0 if begins else membership.amnesia_quorum",
        "memories = 0",
    ),
    Edit(
        "replication.configurations:what_is_missing",
        "len(names.intersection(remembering)) < configuration.amnesia_quorum",
        "False",
    ),
    scenarios=("wiped-leader-meets-the-one-that-lags",),
)

plant(
    "replica applies before commit",
    "a replica applies entries when it receives them; there is no undo",
    Edit(
        "replication.follower:FollowerLog._begin_write",
        "connection, until, at_least",
        "connection, self._log.head.lsn, at_least",
    ),
    scenarios=("replica-with-a-lost-claim",),
)

plant(
    "truncation takes one entry too many",
    "where logs part, the last entry that they share is dropped too: below the watermark",
    Edit("storage.log:Log.drop_after", "lsn > ?", "lsn >= ?", times=2),
    scenarios=("divergent-tail-counts-for-nothing",),
)

plant(
    "stale leader still commits",
    "a replica takes entries of a ballot below the one that it has promised",
    Edit("replication.follower:FollowerLog.prepare_append", "if ballot != promised:", "if False:"),
    scenarios=("stale-leader-after-a-promotion",),
)

plant(
    "ack from a fenced incarnation counted",
    "a leader takes a refusal, because of a higher ballot, for an acknowledgement",
    Edit(
        "replication.feed:Feed._on_answer",
        "answer.outcome == _PERSISTED",
        "answer.outcome in (_PERSISTED, _FENCED)",
    ),
    Edit(
        "replication.feed:Feed._on_answer",
        "answer.match_lsn,",
        "answer.match_lsn or self._previous.lsn,",
    ),
    scenarios=("stale-leader-after-a-promotion",),
)

plant(
    "majority of the new members alone",
    "a new epoch's leader asks nobody of the configuration before",
    Edit(
        "replication.configurations:still_needed",
        "return ordered[committed[-1] :] if committed else ordered",
        "return []",
    ),
    scenarios=("members-leave-while-others-lag",),
)

plant(
    "old ballots committed by counting",
    "entries of an older ballot count as committed before this ballot's first one (Figure 8)",
    Edit("replication.quorum:Quorum._advance", " or candidate < self._started_lsn", ""),
    scenarios=("figure-8",),
)

plant(
    "old copy of a disk counts",
    "nobody looks which start of which disk a node is on",
    Edit(
        "replication.starts:is_old_copy",
        "return (seen != known[index] and seen.boot <= known[index].boot) or not is_latest_disk",
        "return False",
    ),
    scenarios=("old-copy-of-the-leaders-disk",),
)

plant(
    "old copy keeps its name",
    "what was taught is an old copy once more to each peer that had met its later starts",
    Edit("node.member:Member._forget", 'forget_membership("", disk=disk)', 'forget_membership("")'),
    scenarios=("old-copy-that-is-taught-while-one-is-away",),
)

plant(
    "old copy leads by the ballot in which it is told",
    "a candidate joins by the promises that it has, whatever it has heard of its disk since",
    Edit(
        "replication.ballot:Candidate._apply_and_join",
        "was_member and not self._store.identity.current.is_member",
        "False",
    ),
    scenarios=("old-copy-that-is-told-in-its-ballot",),
)

plant(
    "tail that the leader lost is not fetched",
    "a leader begins with what its own disk holds, and gives lost entries' offsets away again",
    Edit("replication.ballot:Candidate._reconcile", "if best is None or best == own:", "if True:"),
    scenarios=("wiped-leader-under-load",),
)

plant(
    "incarnation used again",
    "a leader that starts again takes the highest incarnation that was promised, not the next",
    Edit(
        "replication.ballot:Candidate._try",
        "1 + max([floor, identity.promised.incarnation, *reported])",
        "max([1, floor, identity.promised.incarnation, *reported])",
    ),
    scenarios=("leader-dies-before-its-own-sync",),
)

plant(
    "learner counts at once",
    "a leader counts what a node without memory has on disk, as if it had never lost any",
    Edit(
        "replication.learners:Learners.teach",
        "self._quorum.demote(feed.name)",
        "self._quorum.admit(feed.name)",
    ),
    scenarios=("learner-who-had-promised-another",),
)

plant(
    "who counts again is not heard",
    "what a member has on disk when it counts again moves the watermark, and nobody is told",
    Edit("replication.feeding:Feeding.admit", "        self.on_moved()\n", ""),
    scenarios=("wiped-replica-meets-the-one-that-lags",),
)

plant(
    "learner counts once its feed has ended",
    "who has no memory is taken for one that remembers when its feed begins anew on the same "
    "connection, whatever it says with its promise",
    Edit(
        "replication.reaching:Reaching._feed",
        "link.answer.is_member = feeding.quorum.is_voter(link.name)",
        "link.answer.is_member = True",
    ),
    Edit(
        "replication.reaching:Reaching._feed",
        "            link.answer.is_member = promised.is_member\n",
        "            pass\n",
    ),
    scenarios=("learner-without-room-for-a-moment",),
)

plant(
    "learner counts before others were heard",
    "a node without memory counts again when it holds the log, whatever it may have promised",
    Edit(
        "replication.learners:Learners._grant_if_caught_up",
        "            and self._has_heard_enough(learner)\n",
        "",
    ),
    scenarios=("learner-who-had-promised-another",),
)

plant(
    "learner counts before it has caught up",
    "a node without memory counts again while it is still being sent the log",
    Edit(
        "replication.learners:Learners._grant_if_caught_up",
        "            and max(self._quorum.committed, self._started_lsn) <= match_lsn\n",
        "",
    ),
    scenarios=("learner-that-everybody-has-heard-of",),
)

plant(
    "learner confirms leadership",
    "who has no memory, and may have promised another ballot, counts when a leader asks a majority "
    "whether it still leads",
    Edit(
        "replication.majority:MajorityRounds._note",
        "if not self._quorum.is_voter(name) or number",
        "if number",
    ),
    scenarios=("learner-who-had-promised-another",),
)

plant(
    "any clock leads",
    "a node leads, and stamps records, whatever its peers' clocks say",
    Edit("replication.skew:check", "if abs(off_ms) > MAX_SKEW_MS:", "if False:"),
    scenarios=("clock-far-off",),
)

plant(
    "any clock is trusted that nobody contradicts",
    "a leader goes by a clock that has jumped while its peers stood still",
    Edit(
        "replication.skew:StampClock.compare",
        "if len(found) < (len(links.links) + 1) // 2:",
        "if False:",
    ),
    scenarios=("clock-jumps-while-peers-stand-still",),
)

plant(
    "stamps follow every jump",
    "between two looks at its peers' clocks a leader stamps with whatever its own clock shows",
    Edit(
        "replication.skew:StampClock.now_ms",
        "return min(max(self._clock.now_ms(), due_ms - MAX_SKEW_MS), due_ms + MAX_SKEW_MS)",
        "return self._clock.now_ms()",
    ),
    scenarios=("clock-that-jumps-while-peers-answer",),
)

plant(
    "replica truncates to its own watermark",
    "who promises a ballot drops what it does not know to be committed: others may know it",
    Edit(
        "replication.follower:FollowerLog.promise",
        "        return self._log.head\n",
        "        self._log.drop_after(max(self.committed_lsn, self.applied_lsn))\n"
        "        return self._log.head\n",
    ),
    scenarios=("wiped-leader-under-load",),
)

plant(
    "first entry of an epoch on the new members alone",
    "a new epoch begins when a majority of its own members has its first entry",
    Edit(
        "replication.quorum:Quorum._advance",
        "for configuration in self._older:",
        "for configuration in ():",
    ),
    scenarios=("epoch-that-others-have-not-begun",),
)

plant(
    "lower ballot promised",
    "a node promises any ballot that it is asked for, also one below what it has promised",
    Edit("storage.identity:IdentityFile.promise", "if ballot < now.promised:", "if False:"),
    scenarios=("stale-leader-alone-with-its-clients",),
)

plant(
    "restored member counts",
    "a member that is restored over its old directory goes on counting in majorities",
    Edit("node.restore:restore_node", "is_member=False", "is_member=own.is_member"),
    scenarios=("restored-member-meets-the-one-that-lags",),
)

plant(
    "taught member forgotten by its link",
    "a feed that ends leaves the link as it was before the peer was taught on that connection, and "
    "what the peer says with its promise is not heard",
    Edit(
        "replication.reaching:Reaching._feed",
        "link.answer.is_member = feeding.quorum.is_voter(link.name)",
        "pass",
    ),
    Edit(
        "replication.reaching:Reaching._feed",
        "            link.answer.is_member = promised.is_member\n",
        "            pass\n",
    ),
    scenarios=("learner-that-counts-is-fed-anew",),
)

plant(
    "disk that is put back is never the latest",
    "a disk that was seen before another one of its node stays behind that when it is back",
    Edit(
        "storage.identity:IdentityFile.remember_start",
        "boot = excluded.boot, start = excluded.start, seen = excluded.seen",
        "boot = excluded.boot, start = excluded.start",
    ),
    scenarios=("disk-that-is-put-back",),
)
