"""Which server a call is given to: of two at random the one that has less to do. Pure.

The best of all would be found by everybody at the same moment; of two random ones the better one
is nearly as good (Mitzenmacher, "The power of two choices").
"""

from __future__ import annotations

from typing import Final

from hadron.endpoints.calls import Server
from hadron.model.ports import Random
from hadron.model.replica_sets import in_region

_MAX_REGIONS: Final = 100
"""Of which it is remembered who is free in them; callers may ask for any."""


class _Free:
    """Servers, out of which one is taken at random, or by itself, at once."""

    __slots__ = ("_places", "servers")

    def __init__(self) -> None:
        self.servers: list[Server] = []
        self._places: dict[Server, int] = {}

    def put(self, server: Server) -> None:
        if server not in self._places:
            self._places[server] = len(self.servers)
            self.servers.append(server)

    def drop(self, server: Server) -> None:
        place = self._places.pop(server, None)
        if place is None:
            return
        last = self.servers.pop()
        if last is not server:
            self.servers[place] = last
            self._places[last] = place


class Choice:
    """The servers of an endpoint that may be given calls."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._all = _Free()
        self._regions: dict[str, _Free] = {}

    @property
    def is_empty(self) -> bool:
        return not self._all.servers

    def update(self, server: Server) -> None:
        """It may have become free, or busy, or have gone."""
        is_free = server.is_free
        for region, free in [("", self._all), *self._regions.items()]:
            if is_free and (not region or in_region(server.terms.region, region)):
                free.put(server)
            else:
                free.drop(server)

    def choose(self, region: str, but: Server | None = None) -> Server | None:
        """A free server: in `region` if there is one, and never `but`; None when there is none."""
        if region:
            found = self._pick(self._within(region), but)
            if found is not None:
                return found
        return self._pick(self._all, but)

    def _within(self, region: str) -> _Free:
        free = self._regions.get(region)
        if free is None:
            if len(self._regions) >= _MAX_REGIONS:
                self._regions.clear()
            free = self._regions[region] = _Free()
            for server in self._all.servers:
                if in_region(server.terms.region, region):
                    free.put(server)
        return free

    def _pick(self, free: _Free, but: Server | None) -> Server | None:
        servers = free.servers
        while servers:
            count = len(servers)
            first = servers[0] if count == 1 else self._random_of(servers)
            second = first if count == 1 else self._random_of(servers)
            chosen = first if len(first.held) <= len(second.held) else second
            if chosen is but:
                return self._other(servers, chosen)
            if chosen.is_free:
                return chosen
            # Its way there has filled up meanwhile; it says when there is room again.
            self.update(chosen)
        return None

    def _random_of(self, servers: list[Server]) -> Server:
        count = len(servers)
        return servers[min(int(self._random.uniform(0, count)), count - 1)]

    @staticmethod
    def _other(servers: list[Server], but: Server) -> Server | None:
        free = (each for each in servers if each is not but and each.is_free)
        return min(free, key=lambda each: len(each.held), default=None)
