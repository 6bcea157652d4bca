"""The groups' room: it finds what breaks the rules of D2, and those of consumer groups."""

from __future__ import annotations

from typing import Final

import pytest

from hadron.sim.mutants import patched
from hadron.sim.mutants.seams import Edit
from hadron.sim.rooms import groups

_SEEDS: Final = 30

_FIRST: Final = {
    "a record that a transaction has is given to somebody": 2,
    "a record whose dead letter was refused is settling for ever": 1,
    "in strict order others go on behind a record that a transaction has": 1,
    "the next in order comes before the one before it is committed": 1,
    "the next of a key comes once the one before is acknowledged, committed or not": 1,
    "what a transaction has acknowledged above the cursor is delivered": 1,
    "who is to be empty gets nothing more for ever, though nothing waits for that any more": 44,
    "who is to be empty gets nothing more while it works on one record all day": 304,
}
"""Seeds that meet a bug which the first one does not, tried before it."""

BUGS: Final[dict[str, Edit]] = {
    "what follows a record that is due goes out with it, also while it is to wait": Edit(
        "delivery.waiting:Waiting.pop", " and item.not_before <= now", ""
    ),
    "a delivery that ended in vain is not counted here, only in the log": Edit(
        "delivery.machine:Group._end", "Again(first, last, then,", "Again(first, last, tries,"
    ),
    "a late acknowledgement counts for what another member holds": Edit(
        "delivery.machine:Group.acknowledge",
        "counted += self.waiting.take(first, last)",
        "counted += self.waiting.take(first, last) or [(first, last)]",
    ),
    "one from an earlier ballot counts for what another member holds": Edit(
        "delivery.machine:Group.acknowledge_late",
        "counted += self.waiting.take(a, b)",
        "counted += self.waiting.take(a, b) or [(a, b)]",
    ),
    "a record whose dead letter was refused is settling for ever": Edit(
        "delivery.machine:Group.put_back",
        "        self._note_settled([(dead.first, dead.last)])\n",
        "",
    ),
    "a record is settled by a letter in a partition that its stream has no more": Edit(
        "delivery.letters:DeadLetters._write_some",
        "        ground.catalog.partition(self._origin.out_stream_id, self._origin.partition)\n",
        "",
    ),
    "the next of a key comes once the one before is acknowledged, committed or not": Edit(
        "delivery.machine:Group.acknowledge",
        "        self._note_settling(counted)\n",
        "        self._note_settling(counted)\n"
        "        if self.keys is not None:\n"
        "            self._free_keys(counted, now, Effects())\n",
    ),
    "the next in order comes before the one before it is committed": Edit(
        "delivery.machine:Group._next_in_order",
        "if self.in_flight or self._settling:",
        "if self.in_flight:",
    ),
    "in strict order others go on behind a record that a transaction has": Edit(
        "delivery.machine:Group._next_in_order",
        "if barrier is not None and barrier <= wanted:",
        "if False:",
    ),
    "what a transaction has acknowledged above the cursor is delivered": Edit(
        "delivery.machine:Group.finish",
        "            self.frontier.acknowledge(first, last)\n",
        "            pass\n",
    ),
    "who dies takes all along that it held": Edit(
        "delivery.tries:Tries.after", "if is_shared and most > 1:", "if False:"
    ),
    "nothing dies of its member's end": Edit(
        "delivery.machine:Group.leave", "member.outstanding == 1", "False"
    ),
    "who has one, and others in a transaction, dies of the one": Edit(
        "delivery.machine:Group.leave",
        "member.outstanding == 1",
        "sum(len(each.held) for each in member.deliveries.values()) == 1",
    ),
    "what was lost with others is lost": Edit(
        "delivery.tries:Tries.after", "spared=self.spared + is_shared", "spared=self.spared"
    ),
    "what was lost with others comes back for ever": Edit(
        "delivery.tries:Tries.after", "spared=self.spared - 1", "spared=self.spared"
    ),
    "one that ends its member has back what it lost with others": Edit(
        "delivery.tries:Tries.after", "cause is Cause.FAILED and self.spared", "self.spared"
    ),
    "what is to be alone is given to who has others": Edit(
        "delivery.members:Takers.pick", "if not member.outstanding:", "if True:"
    ),
    "others are given to who has one that is to be alone": Edit(
        "delivery.members:Member.is_alone", "self.has_apart or self.drains", "self.drains"
    ),
    "who is to be empty gets nothing more for ever, though nothing waits for that any more": Edit(
        "delivery.machine:Group.choose", "if self.takers.draining is not None:", "if False:"
    ),
    "who is to be empty gets nothing more while it works on one record all day": Edit(
        "delivery.members:Takers.look_at_drain",
        "(is_needed and now < self._drains_until(member))",
        "is_needed",
    ),
    "who gives everything back is not tried while it works on one record all day": Edit(
        "delivery.members:Member.wants",
        "return self.tried not in self.deliveries",
        "return not self.deliveries",
    ),
    "who has rested is given nothing more": Edit(
        "delivery.members:Takers.wake", "                self.offer(member)\n", ""
    ),
    "a record that a transaction has is given to somebody": Edit(
        "delivery.taking:Taking.keep", "if not self._taken:", "if True:"
    ),
    "what comes back from a transaction, and whose member has gone, was never delivered": Edit(
        "delivery.machine:Group.untake",
        "self._end(place, span, now, cause, effects, _MEMBER_GONE)",
        "self._put_again(Again(first, last, place.tries, now, 0), effects)",
    ),
    "what comes back from a transaction goes to its member, which has gone": Edit(
        "delivery.machine:Group.untake",
        "self._end(place, span, now, cause, effects, _MEMBER_GONE)",
        "pass",
    ),
    "what is to wait is given out at once when the last member has left meanwhile": Edit(
        "delivery.groups:Groups._forget_if_idle", "and not driver.knows_more", ""
    ),
    "what a member gives back that a transaction has stays with it after the rollback": Edit(
        "delivery.machine:Group.refuse",
        "self.taken.hear(member, number, first, last, refusal)",
        "False",
    ),
    "what a member acknowledges that a transaction has stays with it after the rollback": Edit(
        "delivery.machine:Group.acknowledge",
        "self.taken.hear(member, number, first, last, DEALT_WITH)",
        "pass",
    ),
    "whoever serves a group anew gives out what transactions have of it": Edit(
        "delivery.groups:Groups._new_driver",
        "driver.take(holder.transaction, [(first, last)])",
        "pass",
    ),
    "a member that names another window is given as much, whatever it holds": Edit(
        "delivery.machine:Group.resize",
        "member.credit += max_in_flight - member.max_in_flight",
        "member.credit = max_in_flight",
    ),
    "a member gets more in a batch than it has asked for": Edit(
        "delivery.members:Member.most",
        "min(self.credit, self.batch_size - self.filled) if self.batch_size else self.credit",
        "self.credit",
    ),
    "the last attempt is counted in memory only": Edit(
        "delivery.machine:Group._end",
        "if then is None or then.attempt > tries.attempt:",
        "if then is not None and then.attempt > tries.attempt:",
    ),
    "attempts that end with their deadline are counted in memory only": Edit(
        "delivery.machine:Group.expire",
        "            effects.expired.append(",
        "            effects.ended.clear()\n            effects.expired.append(",
    ),
    "what is acknowledged is forgotten when the log refuses it": Edit(
        "delivery.ledger:LoggedLedger._logged",
        "            self._on_failure(error)\n            return\n",
        "            self.flush()\n            return\n",
    ),
    "who names the ballot acknowledges nothing that it holds": Edit(
        "delivery.driver:GroupDriver._count",
        "if late_ballot in (None, ballot):",
        "if late_ballot is None:",
    ),
    "a transaction acknowledges by a number of another leader's": Edit(
        "delivery.driver:GroupDriver.check_held", "is_current and self", "self"
    ),
    "a dead letter has lost its record's id": Edit(
        "delivery.letters:_letter", "id=records.id(index)", 'id=""'
    ),
    "a delivery over a record with attempts counts as its first": Edit(
        "delivery.frontier:Frontier.run", "(min(end, known), 1)", "(end, 1)"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_it_finds(bug: str) -> None:
    with patched(BUGS[bug]) as reached:
        for seed in (_FIRST.get(bug, 0), *range(_SEEDS)):
            if groups.play(seed).complaints:
                break
        else:
            pytest.fail(f"nothing is wrong in {_SEEDS} worlds; {len(reached)} edits were reached")
