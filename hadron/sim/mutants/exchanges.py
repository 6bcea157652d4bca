"""Bugs in exchanges: who gets a message, and who hears that it did not."""

from __future__ import annotations

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

plant(
    "group's message to two members",
    "the next member of a group gets the same messages as well",
    Edit(
        "exchanges.machine:Exchange._share",
        "            first = stop + 1\n",
        "            other = able[turn % len(able)]\n"
        "            if other is not member:\n"
        "                packing.give(other, first, stop)\n"
        "            first = stop + 1\n",
    ),
    scenarios=("subscribers-that-are-too-slow",),
)

plant(
    "drop at the leader that is not told",
    "what has no room at the leader is dropped without a word",
    Edit(
        "exchanges.machine:Exchange._drop",
        "session.missed[id] = session.missed.get(id, 0) + count",
        "pass",
    ),
    scenarios=("a-client-that-does-not-read",),
)

plant(
    "drop in the client that is not told",
    "what a program does not take is dropped, and the next message says nothing of it",
    Edit("client.exchanges.inbox:Inbox.lack", "        self._gap += count\n", ""),
    scenarios=("subscribers-that-are-too-slow",),
)

plant(
    "drop counted as delivered",
    "of what a program does not take only the first message of each run is counted",
    Edit("client.exchanges.inbox:Inbox._drop", "self.lack(count)", "self.lack(1)"),
    scenarios=("subscribers-that-are-too-slow",),
)

plant(
    "gap told after what follows it",
    "what came after a gap waits before the word of it",
    Edit(
        "exchanges.machine:Exchange._keep",
        "        if session.missed:\n            session.waiting.append(gaps)\n"
        "            session.missed.clear()\n",
        "        if gaps.messages:\n            session.waiting.appendleft(gaps)\n"
        "            session.missed.clear()\n",
    ),
    Edit("exchanges.machine:Exchange._gaps", "return Gaps(missed)", "return Gaps({})"),
    scenarios=("a-client-that-does-not-read",),
)

plant(
    "message after unsubscribe",
    "what waits for a subscription is sent to it, although it has ended",
    Edit("exchanges.machine:Exchange.unsubscribe", "if session.waiting:", "if False:"),
    scenarios=("a-client-that-does-not-read",),
)

plant(
    "everything waits for who does not read",
    "what waits for a client has no bound",
    Edit(
        "exchanges.machine:Exchange._keep",
        "session.waiting_bytes + size > min(SESSION_BYTES, self._room.free_bytes)",
        "False",
    ),
    scenarios=("a-client-that-does-not-read",),
)

plant(
    "interruption that is not told",
    "after a leader's return messages come as if nothing had been in between",
    Edit(
        "client.exchanges.inbox:Inbox.interrupt", "            self._was_interrupted = True\n", ""
    ),
    scenarios=("subscribers-and-a-leader-that-comes-and-goes",),
)

plant(
    "published again without an answer",
    "a publisher that has lost its connection publishes once more, whatever had arrived",
    Edit(
        "client.exchanges.calls:ExchangeCalls._publish_once",
        "raise OutcomeUnknownError(",
        "raise PeerError(",
    ),
    scenarios=("subscribers-and-a-leader-that-comes-and-goes",),
)

plant(
    "bridge from the beginning of its stream",
    "a new leader publishes what its stream has once more",
    Edit(
        "exchanges.bridge:Bridge.begin",
        "self._visible.bounds(self.stream.id).next_offset",
        "self._visible.bounds(self.stream.id).first_offset",
    ),
    scenarios=("messages-of-a-bridged-stream",),
)
