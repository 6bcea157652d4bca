"""The state machine alone: commands by chance, each held against the model (`sim.model`), and a
replica's tables, made from the log, against the leader's.

What a whole cluster comes to once in thousands of seeds, because it takes a late command, a lock
and a deletion at the same moment, stands here a few commands apart.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from typing import Any, Final

from hadron.fakes.tables import SET, Replicated, dump
from hadron.model.errors import HadronError
from hadron.sim.model import asked
from hadron.sim.model.histories import Histories
from hadron.sim.notes.wrapping import wrapped
from hadron.sim.rooms.played import Played
from hadron.sim.rooms.random_commands import Commands
from hadron.state.machine import Command, Context, StateMachine

COMMANDS: Final = 400
"""Of one run."""

_RUNS: Final = 3
"""Of a seed, each with the schema its own and with another set's."""

_LOOK_EVERY: Final = 20
"""Commands between two looks at all tables."""

_ASK_EVERY: Final = 80
"""Commands between two times at which it is asked what leaders of pipelines ask."""


class Run:
    """Commands by chance, and what the model says to what they have done.

    Attributes:
        complaints: (rule, what is wrong).
        done, refused: how often, by kind of command.
    """

    def __init__(self) -> None:
        self.complaints: list[tuple[str, str]] = []
        self.done: Counter[type[Command]] = Counter()
        self.refused: Counter[type[Command]] = Counter()
        self.histories = Histories(lambda rule, text: self.complaints.append((rule, text)))

    def play(self, seed: int, *, adopts: bool, look_every: int = 1) -> Replicated:
        """`adopts`: the schema is another set's."""
        tables = Replicated()
        commands = Commands(seed, tables, adopts=adopts)
        self.histories.opened(f"n{seed}", SET, tables.db)
        with wrapped(StateMachine, apply=partial(heard, self.histories)):
            for number in range(COMMANDS):
                command = commands.following()
                try:
                    tables.submit(command)
                except HadronError:
                    self.refused[type(command)] += 1
                else:
                    (self.refused if tables.again else self.done)[type(command)] += 1
                if number % look_every == 0:
                    self.histories.look(tables.db)
                if number % _ASK_EVERY == 0:
                    self.histories.answers(tables.db, asked.ask_of_pipelines(tables.db))
            self.histories.answers(tables.db, asked.ask(tables.db))
        return tables


def heard(histories: Histories, original: Any) -> Any:
    """For `StateMachine.apply`: tell the histories of it."""

    def apply(machine: StateMachine, context: Context, command: Command) -> Any:
        return histories.applied(partial(original, machine), context, command, lambda _db: True)

    return apply


def play(seed: int) -> Played:
    """Some runs of that seed."""
    found = Played()
    log = hashlib.blake2b(digest_size=8)
    for number in range(seed * _RUNS, (seed + 1) * _RUNS):
        for adopts in (False, True):
            run = Run()
            name = f"commands {number}, {'adopted' if adopts else 'own'} schema"
            try:
                tables = run.play(number, adopts=adopts, look_every=_LOOK_EVERY)
                run.histories.judge()
                _compare(tables, run)
            except Exception as error:  # a bug may break tables so that nothing can read them
                run.complaints.append(("raised", f"{type(error).__name__}: {error}"))
            else:
                log.update(b"".join(data for *_, data in tables.log))
            found.complaints += [f"{rule}: {name}: {text}" for rule, text in run.complaints]
            found.steps += run.done.total() + run.refused.total()
    found.digest = log.hexdigest()
    return found


def _compare(tables: Replicated, run: Run) -> None:
    leader, replica = dump(tables.db), dump(tables.replica())
    for table, rows in leader.items():
        if rows != replica[table]:
            odd = [row for row in rows if row not in replica[table]] or replica[table]
            run.complaints.append(("a replica has what its leader has", f"{table}: {odd[:1]}"))
