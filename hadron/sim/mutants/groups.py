"""Bugs in consumer groups: what counts as acknowledged, whose acknowledgement it is, and what their
members make of it."""

from __future__ import annotations

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

plant(
    "group floor past an unacknowledged offset",
    "an acknowledgement next to the floor takes the offset between along",
    Edit("state.groups.progress:acknowledge", "if first <= floor:", "if first <= floor + 1:"),
    scenarios=("records-acknowledged-out-of-turn",),
)

plant(
    "floor absorbs a range that it has not reached",
    "the floor goes over what is acknowledged above it, and takes the offset between along",
    Edit(
        "state.groups.progress:_absorb",
        "_ACK_BELOW, (group_id, floor)",
        "_ACK_BELOW, (group_id, floor + 1)",
    ),
    scenarios=("gaps-in-a-groups-progress-after-a-failover",),
)

plant(
    "group goes on past unacknowledged offsets after a failover",
    "a new leader begins behind what was acknowledged above the floor, whatever lies between",
    Edit(
        "delivery.frontier:Frontier.resume",
        "        for first, last in acknowledged:\n            self.ahead.add(first, last)\n",
        "        for first, last in acknowledged:\n            self.ahead.add(first, last)\n"
        "            self.cursor = max(self.cursor, last + 1)\n",
    ),
    scenarios=("gaps-in-a-groups-progress-after-a-failover",),
)

plant(
    "acknowledgement from before a reset counted",
    "nobody looks whether a delivery is from before the group was reset, the client neither",
    Edit("delivery.driver:GroupDriver._count", "if token <= self.progress.fence:", "if False:"),
    Edit("client.consuming.acks:LateAcks.fenced", "if fence <= self._fence:", "if True:"),
    scenarios=("acknowledgement-from-before-a-reset",),
)

plant(
    "client acknowledges again what a reset gave back",
    "a member that was away during a reset acknowledges at once what it had dealt with before, and "
    "hands it out to nobody",
    Edit("client.consuming.acks:LateAcks.fenced", "if fence <= self._fence:", "if True:"),
    scenarios=("acknowledgement-from-before-a-failover-and-a-reset",),
)

plant(
    "refused acknowledgements not told",
    "a member that asks later whether its acknowledgements counted hears of the last message only",
    Edit("delivery.sessions:MemberSession.note_refused", "self.refused += ", "_ = "),
    scenarios=("acknowledgement-held-back-by-the-network",),
)

plant(
    "acknowledgement from before a deletion counted",
    "a group knows nothing of who had its name before, and takes acknowledgements of that one's",
    Edit(
        "state.groups.progress:apply_create_group",
        "(*context.ballot, command.last_delivery)",
        "(0, 0, 0)",
    ),
    scenarios=("acknowledgement-from-before-a-deletion",),
)

plant(
    "refusal told to one of those who wait",
    "of two tasks that wait for acknowledgements only the first hears that some were refused",
    Edit(
        "client.consuming.membership:Membership.tell",
        "lost = self._late.told = self._late.lost",
        "known, lost = self._late.told, self._late.lost\n        self._late.told = lost",
    ),
    scenarios=("refusal-that-two-wait-for",),
)

plant(
    "suspended member goes on",
    "a member whose machine was suspended for longer than it had promised says that it is there, "
    "and hands out what it held",
    Edit(
        "client.consuming.membership:Membership.look_at_clock",
        "channel.held_until) <= 0:",
        "channel.held_until) < 1e9:",
    ),
    scenarios=("member-whose-machine-was-suspended",),
)

plant(
    "record without a dead letter forgotten",
    "a record whose dead letter could not be written is not delivered again",
    Edit(
        "delivery.machine:Group.put_back",
        "        self._put_again(",
        "        0 and self._put_again(",
    ),
    scenarios=("dead-letter-without-a-stream",),
)

plant(
    "other record acknowledged at an offset",
    "a member acknowledges what has taken the place of a record that it has dealt with, and hands "
    "it out to nobody",
    Edit(
        "client.consuming.acks:LateAcks.claim",
        "if before == written and (attempt > 1 or token[0] != ballot)",
        "if attempt > 1 or token[0] != ballot",
    ),
    scenarios=("other-records-at-offsets-that-were-dealt-with",),
)

plant(
    "written dead letters delivered again",
    "when dead letters cannot be written, those that were written before them are delivered again "
    "as well",
    Edit(
        "delivery.letters:DeadLetters._write",
        "self._put_back(replace(dead, first=offset))",
        "self._put_back(dead)",
    ),
    # The group's own assertion would stop it before anybody gets them.
    Edit("delivery.machine:Group._hold", "assert first >= self.floor,", "assert True,"),
    scenarios=("dead-letters-that-are-written-in-part",),
)

plant(
    "key busy for a record that is gone",
    "a record that waited for its redelivery when retention dropped it keeps the others of its key "
    "from their turn",
    Edit(
        "delivery.machine:Group.skip_below",
        "            self._free_keys(dropped, now, effects)\n",
        "            pass\n",
    ),
    scenarios=("key-of-a-record-that-retention-drops",),
)

plant(
    "key busy for a part that is gone",
    "of records that cannot be dead letters, and are partly dropped meanwhile, those that are gone "
    "keep the others of their keys from their turn",
    Edit("delivery.machine:Group._put_again", "if first < kept and", "if last < kept and"),
    scenarios=("key-of-a-dead-letter-that-retention-drops",),
)

plant(
    "acknowledgements of a lost call forgotten",
    "what was acknowledged on a call that is lost, and was not to be confirmed yet, is told to "
    "nobody, and whoever waits for it takes it for committed",
    Edit("client.consuming.channel:Channel.end", "        in_doubt += self._unasked\n", ""),
    scenarios=("acknowledgements-that-a-lost-call-took-along",),
)

plant(
    "retention by limits from before",
    "what is due is dropped by the limits that there were when somebody began to look at it",
    Edit(
        "serving.retention:RetentionDriver._trim", "if self._limits(stream_id) != limits:", "if 0:"
    ),
    scenarios=("limits-raised-while-the-oldest-are-looked-at",),
)

plant(
    "late acknowledgement of what came since",
    "an acknowledgement from an earlier ballot counts for all that was there before this one, also "
    "for what others have put there since",
    Edit(
        "delivery.driver:GroupDriver._may_have_been",
        "ended_at(self._stream_id, Ballot(*token[:2]))",
        "ended_at(self._stream_id, ballot)",
    ),
    scenarios=("late-acknowledgements-of-records-that-were-lost",),
)

plant(
    "key's turn given up with a late acknowledgement",
    "a record in line that was acknowledged late is passed over when its turn comes, whether that "
    "is committed or not",
    Edit(
        "delivery.keys:KeyLines._next",
        "if offset >= above:",
        "if offset >= above and attempt != _ACKNOWLEDGED:",
    ),
    scenarios=("late-acknowledgement-in-line-behind-its-key",),
)

plant(
    "step behind one that failed",
    "whether the step before was committed is looked at before that is known",
    Edit(
        "client.consuming.steps:Steps._next",
        "are_settled = await self._settle()",
        "are_settled = self._failed is None\n        await self._settle()",
    ),
    scenarios=("steps-behind-one-that-fails",),
)

plant(
    "rest of an iteration lost to batches",
    "a program that has taken one record of several, and asks for batches then, is never handed "
    "the others, and nobody else is given them",
    Edit(
        "client.consuming.consumer:Consumer.next_batch",
        "        self.take_rest_back()\n",
        "        self._deliveries = iter(())\n",
    ),
    scenarios=("member-that-asks-in-every-way",),
)

plant(
    "rest of an iteration lost to steps",
    "the same of one that goes on in steps",
    Edit(
        "client.consuming.consumer:Consumer.take_rest_back",
        "            self.take_back(self._parcel, left)\n",
        "            pass\n",
    ),
    scenarios=("member-that-asks-in-every-way",),
)

plant(
    "records given back in time and handed out all the same",
    "a busy program is handed what its member has given back meanwhile, and so are others",
    Edit(
        "client.consuming.channel:Channel.give_back",
        "        parcel.skip(parcel.first, parcel.last)\n",
        "",
    ),
    scenarios=("busy-member-that-gives-back-in-time",),
)

plant(
    "member leaves with parts of a batch",
    "what is to be handed out as another part of a batch is not given back when its member leaves: "
    "that was an attempt, which nobody made",
    Edit(
        "client.consuming.channel:Channel.give_unread_back",
        "            self.give_back(parcel)\n",
        "            pass\n",
    ),
    scenarios=("member-that-leaves-with-records-in-parts",),
)
