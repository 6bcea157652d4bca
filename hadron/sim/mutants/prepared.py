"""Bugs in what a transaction was promised when it was prepared."""

from __future__ import annotations

from typing import Final

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Constant, Edit
from hadron.state.transactions.key_locks import KEY_LOCK

_HELD: Final = "keys-that-transactions-hold"

plant(
    "a plain record lets go of a key",
    "a record without a condition takes its key from one of the same transaction that has one",
    Constant(
        "state.transactions.key_locks:_TAKE",
        f"INSERT INTO {KEY_LOCK} VALUES(?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " is_alone = excluded.is_alone",
    ),
    scenarios=(_HELD,),
)

plant(
    "a condition overlooks who shares its key",
    "a key is taken alone while another transaction has a plain record of it prepared",
    Edit("state.transactions.key_locks:take", "_AT if alone else _ALONE_AT", "_ALONE_AT"),
    scenarios=(_HELD,),
)

plant(
    "what is prepared does not keep others off a key",
    "a record that is sent alone is logged though a transaction relies on its key",
    Edit(
        "state.transactions.key_locks:check_free",
        "    if packed and _is_any_alone(context, stream_id):\n",
        "    if not context:\n",
    ),
    scenarios=(_HELD,),
)

plant(
    "records of a deleted stream are given to the next",
    "of an intent's body the part of a deleted stream is not passed over",
    Edit(
        "state.streams.statements:_append_all",
        "        start += each.size\n",
        "        start += each.size if is_open[stream_id] else 0\n",
    ),
    scenarios=("streams-deleted-while-intents-wait",),
)
