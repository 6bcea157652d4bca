"""The logs' room: it finds what breaks the rules of A and B in a replica set's log."""

from __future__ import annotations

from typing import Final

import pytest

from hadron.sim.mutants import patched
from hadron.sim.mutants.seams import Edit, Patch
from hadron.sim.rooms import logs

_SEEDS: Final = 40

_FIRST: Final = {
    "what all members have is heard with the next entry only": 31200,
    "who promises another ballot goes on leading": 81,
    "what an older log has counts from the end of the new one": 31204,
}
"""Seeds that meet a bug which the first ones do not, tried before them."""

_HORIZON: Final = "replication.trimming:LogHorizon."
_FOLLOWER: Final = "replication.follower:FollowerLog."

BUGS: Final[dict[str, Patch]] = {
    "who promises another ballot goes on leading": Edit(
        "replication.service:ReplicationService._promise",
        "self._on_promise(ballot, name, call.origin)",
        "pass",
    ),
    "what was beyond the lag limit still is, once the oldest of it has gone": Edit(
        _HORIZON + "move", "self._lagging = max(0, self._lagging - 1)", "pass"
    ),
    "what an older log has counts from the end of the new one": Edit(
        _HORIZON + "prepend", "bucket.end -= older._end", "pass"
    ),
    "bodies of a dropped tail stay": Edit(
        "storage.log:Log.drop_after",
        'self._db.execute(f"DELETE FROM {BODY} WHERE lsn > ?", (lsn,))',
        "pass",
    ),
    "a copied entry's stamp is not the latest": Edit(
        "storage.log:Log._insert", "        self.last_ms = now_ms\n", "        pass\n"
    ),
    "what is committed at the leader is so at the end of any log": Edit(
        _FOLLOWER + "prepare_append",
        "min(committed_lsn, match_lsn)",
        "min(committed_lsn, max(match_lsn, self._log.head.lsn))",
    ),
    "tables that have diverged are applied to": Edit(
        _FOLLOWER + "_apply_some", "<= self.applied_lsn or self.diverged:", "<= self.applied_lsn:"
    ),
    "who has not applied all is not told again": Edit(
        "replication.feed:Feed.notice_due", "self._is_behind or ", ""
    ),
    "a leader's tables are never stored": Edit(
        _FOLLOWER + "note_applied",
        "self.applied_lsn = self.stored_applied_lsn = lsn",
        "self.applied_lsn = lsn",
    ),
    "what all members have is heard with the next entry only": Edit(
        "replication.feeding:Feeding.peer_persisted", " or self.quorum.on_all != before:", ":"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_it_finds(bug: str) -> None:
    with patched(BUGS[bug]) as reached:
        for seed in (_FIRST.get(bug, 0), *range(_SEEDS)):
            if logs.play(seed).complaints:
                break
        else:
            pytest.fail(f"nothing is wrong in {_SEEDS} worlds; {len(reached)} edits were reached")
