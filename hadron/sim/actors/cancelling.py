"""Who cancels instances of a pipeline while their outputs are on their way to another set, which is
cut off from their home just then: once the cancellation was answered, nothing follows from them
(PIPELINES P9, P10)."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import apsw
import trio

from hadron.client import Client
from hadron.model.errors import HadronError, NotFoundError, RequestError
from hadron.sim.actors.clients import ClientActor
from hadron.sim.actors.pipelines import FLOW, Places
from hadron.sim.evidence.history import History
from hadron.sim.world.regions import Regions

_WORLDS: Final = 0.5
"""Of those with a pipeline over several sets."""

_LOOKS: Final = 400
_LOOK_S: Final = 0.005
"""An output is on its way for as long as a message and two commits take."""

_OUTPUTS: Final = "SELECT partition, ids FROM hadron_stage_publishing"


def has_canceller(seed: int | str) -> bool:
    return random.Random(f"cancelling/{seed}").random() < _WORLDS


class Canceller(ClientActor):
    """Looks into the home's tables for the moment, and cancels as a client."""

    def __init__(self, regions: Regions, history: History, host: str, places: Places) -> None:
        super().__init__(regions.metadata, history, host, f"{regions.seed}/{host}")
        self._regions = regions
        self._home = regions.sets[places.home]

    async def session(self, client: Client) -> None:
        for _ in range(3):
            await self.pause(2.0)
            for _ in range(_LOOKS):
                if self.stopping:
                    return
                found = self._on_its_way()
                if found:
                    await self._cancel(client, *self.random.choice(found))
                    break
                await trio.sleep(_LOOK_S)

    def _on_its_way(self) -> list[tuple[str, list[int]]]:
        """Outputs that are decided: to which set, and of which instances."""
        name = self._home.config.leader.name
        if not self._home.listens(name):
            return []
        try:
            rows: Any = self._home.node(name).member._store.writer.connection.execute(_OUTPUTS)
            return [(partition, json.loads(ids)) for partition, ids in rows]
        except apsw.SQLError:
            raise
        except apsw.Error:
            # Its disk has a fault, or is closed.
            return []

    async def _cancel(self, client: Client, partition: str, ids: list[int]) -> None:
        there = self._regions.sets[partition]
        self._regions.cut(self._home, there)
        self._regions.faults["cancelled while its output was on its way"] += 1
        try:
            noted = self.history.steer(self.name, FLOW, "cancel", "", ())
            try:
                await client.cancel_instances(FLOW, ids)
            except (NotFoundError, RequestError) as error:
                self.history.unknown(noted, error)
            except HadronError as error:
                self.history.unknown(noted, error)
                raise
            else:
                self.history.ok(noted)
            await trio.sleep(self.random.uniform(0.0, 3.0))
        finally:
            self._regions.join(self._home, there)
