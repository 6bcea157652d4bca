"""Bugs in stages that wait: what is lost, what comes twice or too late, and what was not meant."""

from __future__ import annotations

from typing import Final

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

_SIGNALLED: Final = "waits-that-outlive-their-leader"
_PAID: Final = "awaited-records-whose-leader-fails"
_AWAITED: Final = "awaited-while-the-input-is-not-read-yet"

plant(
    "wait forgotten by the next leader",
    "how long a stage may wait is looked at by the leader that it was armed under, and by no other",
    Edit(
        "pipelines.expiring:Expiring.run",
        "while True:",
        "while not self._controller.ballot.incarnation > 1 or await trio.sleep_forever():",
    ),
    scenarios=(_SIGNALLED,),
)

plant(
    "wait that ends before its time",
    "who looks at how long stages may wait takes each of them for over",
    Edit(
        "pipelines.expiring:Expiring.run",
        "if due_ms is not None and due_ms <= now_ms:",
        "now_ms += 3_600_000\n            if due_ms is not None:",
    ),
    scenarios=(_SIGNALLED,),
)

plant(
    "awaited record not behind its trigger",
    "who waits for the input to be looked at forgets partitions that are not connected yet",
    Edit(
        "pipelines.consumer:Consumer.catch_up",
        "sorted(self._partitions())",
        "sorted(n for n, f in self.followers.items() if f.source)",
    ),
    scenarios=(_AWAITED,),
)

plant(
    "awaited record not behind the input",
    "records that stages wait for are looked at whatever is left of the input",
    Edit("pipelines.awaiting:AwaitedPartition.take", "        await self.catch_up()\n", ""),
    scenarios=(_AWAITED,),
)

plant(
    "awaited record passed over by the next leader",
    "who leads next takes the first records behind its cursor for told",
    Edit(
        "pipelines.following:Follower._take_all",
        "        while True:\n"
        "            self._look(offset)\n"
        "            found = await source.read(offset, ballot)\n",
        "        begun, is_awaited = offset, hasattr(self._reading, 'catch_up')\n"
        "        while True:\n"
        "            self._look(offset)\n"
        "            found = await source.read(offset, ballot)\n"
        "            is_first = is_awaited and offset == begun and not isinstance(found, Gap)\n"
        "            if is_first and self._reading.controller.ballot.incarnation > 1:\n"
        "                found = Gap(found[-1].next_offset, ballot, False)\n",
    ),
    scenarios=(_PAID,),
)

plant(
    "time and record both go on",
    "what has waited for too long goes on when its record comes, beside the other way",
    Edit(
        "state.pipelines.waits:_end",
        "{STAGE_WAIT} SET status = {WaitStatus.OVER}, due_ms = NULL",
        "{STAGE_WAIT} SET due_ms = NULL",
    ),
    Edit(
        "state.pipelines.waits:_whose_turn", "r.status = {StageStatus.READY}", "r.status IN (1, 6)"
    ),
    scenarios=(_PAID,),
)

plant(
    "latest record counts",
    "of the records with its key that were read together the last one ends a wait",
    Edit("pipelines.awaiting:_first", "for at in offsets", "for at in reversed(offsets)"),
    scenarios=(_PAID,),
)

plant(
    "any record counts",
    "whatever has the key ends a wait, of whichever type it is",
    Edit("pipelines.awaiting:_first", " and at in fitting", ""),
    scenarios=(_PAID,),
)

plant(
    "signal told that is not taken",
    "who signals a stage that waits no more is told that it was done",
    Edit(
        "state.pipelines.waits:apply_signal_instance",
        "    if status == OVER:\n",
        "    if status == OVER:\n"
        "        raise NoChange(Signalled(None, again=True))\n"
        "    if False:\n",
    ),
    scenarios=(_SIGNALLED,),
)
