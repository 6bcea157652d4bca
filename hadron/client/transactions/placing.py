"""Which partition a transaction's record goes to. Pure.

A record with a key goes where a producer would send it (`producing.partitioner`). One without goes
to a partition at a replica set that the transaction is at already, the driver's first: a
transaction of one set is one entry of its log. Where there is none, the partitions take turns, a
transaction at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hadron.client.producing.partitioner import partitions_in
from hadron.client.producing.settings import stray_keys
from hadron.client.transactions.contents import Place, StreamName
from hadron.model.batch import key_hash
from hadron.model.errors import NotFoundError
from hadron.model.schema import SchemaObject, StreamSpec


class Places:
    """A stream's partitions, as one client's transactions use them.

    Attributes:
        item: the stream as it was declared then.
    """

    def __init__(self, item: SchemaObject, first: int) -> None:
        assert isinstance(item.spec, StreamSpec)
        self.item = item
        name = StreamName(item.name, item.id, item.metadata_index)
        self.is_indexed = item.spec.has_key_index
        self._all = [
            Place(partition, name, is_indexed=self.is_indexed) for partition in item.spec.partitions
        ]
        self._by_name = {place.replica_set: place for place in self._all}
        self._in_regions: dict[str, list[Place]] = {}
        self._turn = first

    def named(self, partition: str) -> Place:
        """Raises `NotFoundError`."""
        found = self._by_name.get(partition)
        if found is None:
            raise NotFoundError(
                f"stream {self.item.name!r} has no partition {partition!r}",
                f"it has {', '.join(self._by_name)}",
            )
        return found

    def in_region(self, region: str | None) -> Sequence[Place]:
        """In declared order. Raises `NotFoundError` when there is none."""
        if region is None:
            return self._all
        found = self._in_regions.get(region)
        if found is None:
            names = partitions_in(self._by_name, region, lambda: f"stream {self.item.name!r}")
            found = self._in_regions[region] = [self._by_name[name] for name in names]
        return found

    def of_key(self, key: bytes | str, region: str | None) -> Place:
        places = self.in_region(region)
        data = key.encode() if isinstance(key, str) else key
        return places[key_hash(data) % len(places)]

    def check_keys(self, partitioner: str, region: str | None) -> None:
        """Raises `RequestError` where records of one key would lie in several partitions, and the
        index of the stream's keys could not say which is the latest."""
        if not self.is_indexed or len(self._all) == 1:
            return
        if partitioner != "key":
            raise stray_keys(self.item.name, f"partitioner={partitioner!r}")
        if len(self.in_region(region)) < len(self._all):
            raise stray_keys(self.item.name, f"region={region!r}")

    def of_none(
        self,
        region: str | None,
        home: str,
        is_there: Callable[[str], bool],
        is_away: Callable[[str], bool],
    ) -> Place:
        """For a record without a key, or whose key does not matter.

        Args:
            home: the driver's replica set; "" where it is not chosen yet.
            is_there: whether the transaction does something at a replica set already.
        """
        places = self.in_region(region)
        if len(places) == 1:
            return places[0]
        found = self._by_name.get(home)
        if found is not None and found in places:
            return found
        for place in places:
            if is_there(place.replica_set):
                return place
        for _ in places:
            self._turn = (self._turn + 1) % len(places)
            if not is_away(places[self._turn].replica_set):
                break
        return places[self._turn]
