"""Worlds of one room each: what a node is made of, played alone and by chance, thousands of steps a
second, against a reference that is written by hand.

    tables        the state machine and its model
    groups        members and a group's leader, over a log that commits late or loses its end
    transactions  drivers and participants over tables, made up logs and wires
    producer      the client's producing side, over made up logs and wires
    endpoints     the broker of remote calls, with callers and servers
    exchanges     publish/subscribe, with a bridged stream and clients that do not read
    logs          members of a replica set: ballots, feeds, the watermark, trimming

Every seed of the simulator plays them after its own world. `ROOMS` has them by name.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from hadron.sim.rooms import endpoints, exchanges, groups, logs, producer, tables, transactions
from hadron.sim.rooms.played import Played
from hadron.sim.runs.run import Outcome
from hadron.sim.watch.tallies import tallying

ROOMS: Final[dict[str, Callable[[int], Played]]] = {
    "tables": tables.play,
    "groups": groups.play,
    "transactions": transactions.play,
    "producer": producer.play,
    "endpoints": endpoints.play,
    "exchanges": exchanges.play,
    "logs": logs.play,
}

_SHOWN: Final = 3
"""Of counts that have drifted: one mistake shows again and again."""


def play_rooms(seed: int, outcome: Outcome) -> None:
    """Play them all, and add what they came to."""
    digests = [outcome.trace_hash]
    for name, play in ROOMS.items():
        played = counted(play, seed)
        digests.append(played.digest)
        outcome.rooms[name] = played.steps
        outcome.violations += [f"room {name}: {each}" for each in played.complaints]
    outcome.trace_hash = hashlib.blake2b(" ".join(digests).encode(), digest_size=16).hexdigest()


def counted(play: Callable[[int], Played], seed: int) -> Played:
    """Played while all that is counted is counted anew."""
    drifted: list[str] = []
    with tallying(lambda rule, text: drifted.append(f"{rule}: {text}")):
        played = play(seed)
    played.complaints += drifted[:_SHOWN]
    return played


__all__ = [
    "ROOMS",
    "Played",
    "counted",
    "endpoints",
    "exchanges",
    "groups",
    "logs",
    "play_rooms",
    "producer",
    "tables",
    "transactions",
]
