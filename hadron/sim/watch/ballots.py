"""PROTOCOL A1, A3, A7, B1 to B5: who promised what, what an acknowledgement stands for, how far the
watermark may move for it, and what a power loss leaves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from hadron.model.ids import Ballot
from hadron.partition.controller import Controller
from hadron.partition.group_commit import GroupCommit
from hadron.sim.watch.marks import Key, Mark, is_majority
from hadron.sim.watch.views import Complaints, NodeView, Question
from hadron.storage import wal_scan
from hadron.storage.database import PAGE_BYTES
from hadron.storage.identity import NODE_DATABASE
from hadron.storage.wal_scan import Verdict
from hadron.wire.messages import ballot_from, replication_pb2

_PERSISTED = replication_pb2.AppendResponse.Outcome.PERSISTED


class Ballots:
    """Every leadership of a run, and every promise.

    Attributes:
        forgetful: nodes whose disks lied, or were damaged: what they had may be gone.
        unflushed: nodes that ran without flushing what they acknowledged when their power went:
            what they had may be gone, and they must know it.
        flipped: nodes beneath which bits flipped: their disks have all but those.
        restored: nodes that were restored since they were opened, with the ballot that the disk
            of each had promised: what they had acknowledged may be gone.
        recovered: replica sets of which somebody took a disk as it was: what a majority had may be
            gone.
    """

    def __init__(self, complaints: Complaints, views: dict[str, NodeView]) -> None:
        self.marks: dict[Key, Mark] = {}
        self.forgetful: set[str] = set()
        self.unflushed: set[str] = set()
        self.flipped: set[str] = set()
        self.restored: dict[str, Ballot] = {}
        self.recovered: set[str] = set()
        self.order = count(1)
        self._of: dict[Controller, Mark] = {}
        self._complaints = complaints
        self._views = views
        self._promises: dict[Key, dict[str, bool]] = {}
        """Who has promised a ballot, and whether it remembered the log then, or has said since that
        it was granted its membership under that ballot."""
        self._promised: dict[tuple[str, bytes], Ballot] = {}
        self._boots: dict[tuple[str, bytes], int] = {}
        self._opened: dict[str, NodeView] = {}
        self._disks: dict[str, list[bytes]] = {}
        """Of each node, the latest one last."""
        self._begun: dict[str, tuple[int, frozenset[str]]] = {}
        self._entries: dict[tuple[str, Ballot, int], bytes] = {}
        self._last_sent: Any = None
        self._past: set[Key] = set()
        """Leaderships whose history was given up."""

    def mark_of(self, controller: Controller) -> Mark | None:
        return self._of.get(controller)

    def reached(self, replica_set: str) -> int:
        """How far any leader of a replica set has brought its log to a majority."""
        return max(
            (mark.true_lsn for key, mark in self.marks.items() if key[0] == replica_set), default=0
        )

    # --- promises -------------------------------------------------------------------------------

    def opened(self, view: NodeView) -> None:
        """B1: a promise survives the node's restart. B3: a memory survives no power loss without
        its disk."""
        identity = view.identity
        is_kept = not self._is_forgetful(view)
        if view.name in self.unflushed and identity.is_member and is_kept:
            self._complaints.add(
                "B3 a power loss is noticed",
                f"{view.name} acknowledged what it had not flushed, has lost its power, and counts "
                "itself among those who remember",
            )
        self.unflushed.discard(view.name)
        disk = view.name, identity.disk
        is_old_copy = identity.boot <= self._boots.get(disk, 0)
        if is_old_copy:
            # It was put in the disk's place: it has no memory, as B3 has it.
            self._promised.pop(disk, None)
        if not self._is_put_back(view) and not is_old_copy:
            self._check_memory(view)
        if view.name in self.restored:
            self._check_restored(view, self.restored.pop(view.name))
        self._boots[disk] = identity.boot
        before = self._promised.get(disk)
        if before is not None and identity.promised < before and not self._is_forgetful(view):
            self._complaints.add(
                "B1 a promise survives",
                f"{view.name} has promised {before} on this disk, and starts with "
                f"{identity.promised}",
            )

    def _is_put_back(self, view: NodeView) -> bool:
        """Whether the node has been on another disk since it was on this one: its peers say so to
        it, and until then it counts with nobody."""
        disks, before = self._disks.setdefault(view.name, []), self._opened.get(view.name)
        if before is not None:
            # A new disk had no name when it was opened.
            name = before.identity.disk
            if name in disks:
                disks.remove(name)
            disks.append(name)
        self._opened[view.name] = view
        return view.identity.disk in disks[:-1]

    def _check_memory(self, view: NodeView) -> None:
        """B3: who counts has all that it has acknowledged, as far as that was committed; what was
        not, another leader may have had it drop."""
        name, identity = view.name, view.identity
        if not identity.is_member or self._is_forgetful(view):
            return
        acknowledged = max(
            (
                min(mark.acked.get(name, 0), mark.true_lsn)
                for key, mark in self.marks.items()
                if key[0] == identity.replica_set and key not in self._past
            ),
            default=0,
        )
        if view.store.log.head.lsn < acknowledged:
            self._complaints.add(
                "B3 who counts has what it acknowledged",
                f"{name} has acknowledged entry {acknowledged}, which is committed; it counts, and "
                f"its log ends at {view.store.log.head.lsn}",
            )

    def forget(self, replica_set: str) -> None:
        """Somebody begins its history anew, from a disk or a backup as it is."""
        self._past.update(key for key in self.marks if key[0] == replica_set)

    def _check_restored(self, view: NodeView, promised: Ballot) -> None:
        """B3: who was restored counts once it was taught. B6: no copy takes a promise back."""
        identity = view.identity
        if identity.is_member:
            self._complaints.add(
                "B3 who was restored has no memory",
                f"{view.name} was restored from a backup, and goes on as if it had all that it "
                "ever acknowledged",
            )
        if identity.promised < promised:
            self._complaints.add(
                "B1 a promise survives",
                f"{view.name} has promised {promised}, was restored, and starts with "
                f"{identity.promised}",
            )

    def lost_power(self, name: str, view: NodeView | None) -> None:
        """B3: it is a member that may have forgotten, unless it flushes everything, or did so when
        it was stopped and has not gone on since."""
        if view is None or not view.is_alive or view.is_fsynced or view.has_ended:
            return
        if view.identity.is_member:
            self.unflushed.add(name)

    def left_log(self, view: NodeView, wal: Path) -> None:
        """B4: what a power loss leaves of a log that is flushed, on a disk that has lost nothing
        else, is torn at most: taken for damaged, it would be set aside, and its node counts no
        more. `wal` is as the next start finds it."""
        is_hurt = self._is_forgetful(view) or view.name in self.flipped
        if not view.is_fsynced or is_hurt or not wal.exists():
            return
        scan = wal_scan.scan_wal(wal.read_bytes(), PAGE_BYTES)
        # A header is torn where the log was being begun anew: the file has all then.
        if scan.verdict is Verdict.DAMAGED and not scan.header_is_bad:
            self._complaints.add(
                "B4 a power loss is not taken for damage",
                f"{view.name} has flushed all that it acknowledged, has lost its power, and its "
                f"log looks damaged: {scan.reason}",
            )

    def promised(self, view: NodeView, ballot: Ballot) -> None:
        """B1: a promise is never lowered, and is on the disk before anybody hears of it."""
        disk = view.name, view.identity.disk
        before = self._promised.get(disk)
        if before is not None and ballot < before and not self._is_forgetful(view):
            self._complaints.add(
                "B1 lower ballots are refused",
                f"{view.name} has promised {before}, and promises {ballot} now",
            )
        files = view.unsynced(NODE_DATABASE, f"{NODE_DATABASE}-wal")
        if files and not self._is_forgetful(view):
            self._complaints.add(
                "B1 a promise is on the disk",
                f"{view.name} promises {ballot}, and {', '.join(files)} is not synced",
            )
        self._promised[disk] = max(ballot, before or ballot)
        promises = self._promises.setdefault((view.replica_set, ballot), {})
        promises[view.name] = view.identity.is_member

    def _is_forgetful(self, view: NodeView) -> bool:
        return view.name in self.forgetful

    # --- leading --------------------------------------------------------------------------------

    def leads(self, view: NodeView, controller: Controller) -> None:
        """B1: a ballot is led by one node, once; a majority has promised it."""
        view.is_ahead = True
        key = view.replica_set, controller.ballot
        if key in self.marks:
            self._complaints.add(
                "B1 a ballot is used once",
                f"{view.name} leads under {controller.ballot}, as {self.marks[key].view.name} did",
            )
        members, started_lsn = controller.quorum.members, controller.feeding.started_lsn
        begun = self._begun.get(view.replica_set)
        older = frozenset[str]()
        if begun is not None and begun[0] < controller.ballot.epoch:
            older = begun[1] if view.replica_set not in self.recovered else older
        mark = Mark(
            key,
            view,
            controller,
            members,
            started_lsn,
            written_lsn=controller.head.lsn,
            older=older,
        )
        self.marks[key] = self._of[controller] = mark
        promised = self._promises.get(key, {})
        for names, what in ((members, "its members"), (older, "those of the last epoch")):
            if names and not is_majority(promised, names):
                self._complaints.add(
                    "B1 a majority has promised",
                    f"{view.name} leads under {controller.ballot}, which {', '.join(promised)} "
                    f"have promised; {what} are {', '.join(sorted(names))}",
                )

        remembering = sorted(name for name, is_member in promised.items() if is_member)
        needed = len(members) - len(members) // 2
        is_known = started_lsn > 1 and not older and view.replica_set not in self.recovered
        if is_known and len(remembering) < needed:
            self._complaints.add(
                "B3 enough remember",
                f"{view.name} leads under {controller.ballot}, and of those who have promised it "
                f"{', '.join(remembering) or 'nobody'} had a memory; {needed} are needed",
            )

    def admits(self, controller: Controller, name: str) -> None:
        """B3: whose disk is counted remembered when it promised this ballot, to the feed that is
        here, or was granted its membership since. It may have lost it again while its answer was
        on its way: what it acknowledges is on a disk that is lost then, as any may be."""
        mark = self._of.get(controller)
        if mark is None or not mark.view.is_alive:
            return
        if not self._promises.get(mark.key, {}).get(name, False):
            self._complaints.add(
                "B3 who counts remembers",
                f"{mark.view.name} counts the disk of {name} under {mark.key[1]}, which had no "
                "memory when it promised that, and was not granted any",
            )

    def wrote(self, controller: Controller, group: GroupCommit | None) -> None:
        """A3: what a leader counts of its own is on its disk."""
        mark = self._of.get(controller)
        if mark is None or group is None or not group.entries or not mark.view.is_alive:
            return
        view = mark.view
        if self._lies_in_cache(view):
            self._complaints.add(
                "A3 counted once it is on the disk",
                f"{view.name} counts entry {group.entries[-1].lsn}, its log is not synced",
            )
        mark.written_lsn = max(mark.written_lsn, group.entries[-1].lsn)

    def _lies_in_cache(self, view: NodeView) -> bool:
        return not self._is_forgetful(view) and view.lacks_commit()

    def releases(self, controller: Controller) -> None:
        """A3, B2: the watermark covers what a majority of distinct members has, and nothing before
        this ballot's first entry."""
        mark = self._of.get(controller)
        if mark is None or not mark.view.is_alive:
            return
        committed = controller.quorum.committed
        if committed <= mark.checked_lsn:
            return
        mark.checked_lsn = committed
        self._check_watermark(mark, committed)
        key = mark.key
        if mark.true_lsn >= mark.started_lsn:
            epoch = controller.ballot.epoch
            if key[0] not in self._begun or self._begun[key[0]][0] <= epoch:
                self._begun[key[0]] = epoch, frozenset(mark.members)

    def _check_watermark(self, mark: Mark, lsn: int) -> None:
        true_lsn = mark.reach(self._views)
        if lsn > true_lsn:
            older = f", and {sorted(mark.older)} before" if mark.older else ""
            self._complaints.add(
                "A3 committed is on a majority",
                f"{mark.view.name} calls {lsn} committed under {mark.key[1]}, which began at "
                f"{mark.started_lsn}; a majority has {true_lsn}: its own disk {mark.written_lsn}, "
                f"others {mark.acked}, of {', '.join(mark.members)}{older}",
            )

    # --- appends --------------------------------------------------------------------------------

    def append_sent(self, view: NodeView, request: Any) -> None:
        """What a leader tells its members; heard where it leaves."""
        mark = self.marks.get((view.replica_set, ballot_from(request.ballot)))
        if mark is None:
            return
        mark.sent += 1
        if request.committed_lsn > mark.checked_lsn:
            mark.checked_lsn = request.committed_lsn
            self._check_watermark(mark, request.committed_lsn)
        if request.trim_lsn and request.trim_lsn not in mark.trims:
            mark.trims.add(request.trim_lsn)
            self._check_trim(mark, request.trim_lsn)
        if request is not self._last_sent:
            self._last_sent = request
            self._note_entries(view, request.entries)

    def _note_entries(self, view: NodeView, entries: Sequence[Any]) -> None:
        """A3: an lsn is never used again with other bytes in the same ballot."""
        for entry in entries:
            ballot = Ballot(entry.ballot.epoch, entry.ballot.incarnation)
            key = view.replica_set, ballot, entry.lsn
            if self._entries.setdefault(key, entry.chain) != entry.chain:
                self._complaints.add(
                    "A3 an lsn is used once in a ballot",
                    f"{view.name} sends another entry {entry.lsn} of ballot {ballot} than before",
                )

    def _check_trim(self, mark: Mark, lsn: int) -> None:
        """A7: the log goes up to what is committed, and up to what every member has, unless more
        than the lag limit is kept for those that lack it."""
        if lsn > mark.reach(self._views):
            self._complaints.add(
                "A7 only what is committed is trimmed",
                f"{mark.view.name} lets the log go up to {lsn}, a majority has {mark.true_lsn}",
            )
        held = mark.on_all()
        if lsn <= held:
            return
        row = mark.view.select(
            "SELECT sum(length(l.command) + coalesce(length(b.bytes), 0) + 200),"
            " sum(l.body_hash != zeroblob(16) AND b.bytes = x'') FROM hadron_log l"
            " LEFT JOIN hadron_body b USING (lsn) WHERE l.lsn > ?",
            lsn,
        )
        limit = mark.controller.feeding.tuning.log_max_lag_bytes
        # How large those were that retention has dropped, nobody can tell any more.
        if row is not None and not row[1] and (row[0] or 0) < limit:
            self._complaints.add(
                "A7 what a member lacks is kept",
                f"{mark.view.name} lets the log go up to {lsn}, all members have {held}, and "
                f"{row[0] or 0} bytes follow, the limit is {limit}",
            )

    def append_arrived(self, view: NodeView, request: Any) -> None:
        view.told_lsn = max(view.told_lsn, request.committed_lsn)

    def answered_under(self, question: Question) -> None:
        """B1: whoever asks with a ballot below what was promised is refused."""
        ballot = ballot_from(question.message.ballot)
        if ballot < question.promised:
            self._complaints.add(
                "B1 lower ballots are refused",
                f"{question.view.name} had promised {question.promised}, and answers "
                f"{question.method} under {ballot}",
            )

    def append_answered(self, question: Question, answer: Any) -> None:
        """What a member says that it has; heard where it leaves."""
        view, request = question.view, question.message
        if not view.is_alive:
            return
        ballot = ballot_from(request.ballot)
        if answer.outcome != _PERSISTED:
            return
        identity = view.identity
        before = self._promised.get((view.name, identity.disk))
        if before is not None and ballot < before and not self._is_forgetful(view):
            self._complaints.add(
                "B1 lower ballots are refused",
                f"{view.name} has promised {before}, and takes entries under {ballot}",
            )
        self._check_verified(view, request, answer)
        if not view.is_ahead and answer.applied_lsn > max(view.told_lsn, view.start_applied):
            self._complaints.add(
                "A1 replicas apply what is committed",
                f"{view.name} has applied {answer.applied_lsn}, and was told of "
                f"{view.told_lsn}; it began with {view.start_applied}",
            )
        mark = self.marks.get((view.replica_set, ballot))
        if mark is None:
            return
        if request.grant_membership and identity.is_member:
            self._promises.setdefault(mark.key, {})[view.name] = True
        if identity.is_member:
            mark.acked[view.name] = max(mark.acked.get(view.name, 0), answer.match_lsn)
        else:
            disk, taught = mark.taught.get(view.name, (b"", 0))
            # It may be asked once more for what it has said to have.
            known = taught if disk == identity.disk else 0
            mark.taught[view.name] = identity.disk, max(known, answer.match_lsn)
        mark.reach(self._views)

    def _check_verified(self, view: NodeView, request: Any, answer: Any) -> None:
        """B2: an acknowledgement names what was compared, and is on the disk."""
        last = request.entries[-1] if request.entries else request.previous
        if answer.match_lsn > last.lsn:
            self._complaints.add(
                "B2 an acknowledgement names what was verified",
                f"{view.name} acknowledges {answer.match_lsn}, and was shown {last.lsn}",
            )
        if view.wrote and self._lies_in_cache(view):
            self._complaints.add(
                "A3 acknowledged once it is on the disk",
                f"{view.name} acknowledges {answer.match_lsn}, its log is not synced",
            )
        self._check_holes(view, answer.match_lsn)
        row = view.select("SELECT chain FROM hadron_log WHERE lsn = ?", last.lsn)
        if row is not None and row[0] != last.chain and answer.match_lsn >= last.lsn:
            self._complaints.add(
                "B2 an acknowledgement names what was verified",
                f"{view.name} acknowledges entry {last.lsn}, of which it has another one",
            )

    def _check_holes(self, view: NodeView, lsn: int) -> None:
        """A3: who acknowledges an entry has all before it as well; what was trimmed, it had."""
        if view.follower is None:
            return
        since = min(max(view.whole_lsn, view.follower.anchor.lsn), lsn)
        row = view.select("SELECT count(*) FROM hadron_log WHERE lsn > ? AND lsn <= ?", since, lsn)
        if row is None or self._is_forgetful(view):
            return
        view.whole_lsn = lsn
        if row[0] != lsn - since:
            self._complaints.add(
                "A3 what is acknowledged has no holes",
                f"{view.name} acknowledges all up to {lsn}, and of those above {since} has "
                f"{row[0]}",
            )

    def append_heard(
        self,
        view: NodeView,
        request: Any,
        answer: Any,
        peer: str,
        asked: NodeView | None,
        sent: int,
    ) -> None:
        """A member's answer has come to its leader. B3: who has no memory may have promised
        another ballot, and its answer stands for nothing."""
        mark = self.marks.get((view.replica_set, ballot_from(request.ballot)))
        if asked is not None and not asked.identity.is_member:
            return
        if mark is not None and answer.outcome == _PERSISTED:
            mark.rounds[peer] = max(mark.rounds.get(peer, 0), sent)

    def has_followers(self, controller: Controller, since: int) -> bool:
        """Whether a majority that remembers has answered what was sent after `since`."""
        mark = self._of.get(controller)
        if mark is None:
            return True
        heard = {name for name, sent in mark.rounds.items() if sent > since}
        return is_majority(heard | {mark.view.name}, mark.members)

    # --- the log --------------------------------------------------------------------------------

    def trimmed(self, view: NodeView, lsn: int, applied_lsn: int) -> None:
        """A7: a node drops no row that it has not applied, or does not know to be committed."""
        if not view.is_alive or view.follower is None:
            return
        known = view.committed_lsn
        if view.follower.diverged:
            # Whatever these tables have applied, it is worth nothing.
            applied_lsn = 0
        if lsn > min(applied_lsn, known):
            self._complaints.add(
                "A7 only what is applied is trimmed",
                f"{view.name} has dropped its log up to {lsn}, has applied {applied_lsn} and knows "
                f"{known} to be committed",
            )
