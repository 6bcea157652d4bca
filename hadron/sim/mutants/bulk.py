"""Bugs in what bulk writers stage and publish, and in how far their sinks are."""

from __future__ import annotations

from typing import Final

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

_FAILING: Final = "bulk-write-whose-leaders-fail-at-each-step"
_AWAY: Final = "publication-whose-driver-is-away-for-long"
_REPEATED: Final = "drivers-that-do-what-they-have-done"

plant(
    "what is being published expires",
    "the lock of a write is looked for by another name, and never found",
    Edit(
        "state.sinks.staging:apply_drop_staged",
        "_EXPIRED,",
        '_EXPIRED.replace("lower(", "upper("),',
    ),
    scenarios=(_AWAY,),
)

plant(
    "what is being published is given up",
    "an abort takes away what a prepared transaction will publish",
    Edit(
        "state.sinks.staging:apply_give_up_staged",
        "    locks.check_free(context, _lock(command.write_id))\n",
        "",
    ),
    scenarios=(_AWAY,),
)

plant(
    "what is staged never expires",
    "its clock sleeps when the first attempt is not due yet",
    Edit(
        "serving.staged:StagedDriver._round",
        "min(_LONGEST_SLEEP_S, (next_ms - now_ms) / 1_000 + _PAUSE_S)",
        'float("inf")',
    ),
    scenarios=(_FAILING, _AWAY),
)

plant(
    "staged batches that are sent again are there twice",
    "nobody looks whether batches under a number are here",
    Edit(
        "state.sinks.staging:_check_follows",
        "        raise NoChange(",
        "        return (lambda _: None)(",
    ),
    scenarios=(_FAILING,),
)

plant(
    "attempts that lost are published",
    "a publication appends all that was staged of its write",
    Edit(
        "state.sinks.staging:_publish",
        "for attempt, _ in command.attempts]",
        "for (attempt,) in db.execute(\n"
        '                f"SELECT attempt FROM {STAGED} WHERE write_id = ? AND expires_ms >= 0",\n'
        "                (command.write_id,),\n"
        "            )\n"
        "        ]",
    ),
    scenarios=(_FAILING,),
)

plant(
    "a known sink is taken over as a forgotten one",
    "a query that says that its sink was forgotten takes it from the one that has it",
    Edit(
        "model.sinks:check_advance",
        "if not known.query or follows != known.query:",
        "if not known.query or follows not in (known.query, UNKNOWN):",
    ),
    scenarios=(_REPEATED,),
)

plant(
    "a driver publishes what it has published",
    "neither the driver nor the sink sees that a batch is not the next one",
    Edit("model.sinks:is_published", "batch <= known.batch", "batch > 99"),
    Edit("model.sinks:check_advance", "elif batch <= known.batch:", "elif batch < 0:"),
    scenarios=(_REPEATED,),
)
