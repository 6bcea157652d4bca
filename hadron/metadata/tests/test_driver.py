"""A change of the schema is judged against the schema that it is logged on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hadron.metadata.driver import SchemaDriver
from hadron.model.errors import SchemaError
from hadron.model.schema import Retention, SchemaObject, Spec, StreamSpec
from hadron.model.services import ExchangeSpec
from hadron.serving import catalog
from hadron.serving.tests.stack import SET, Stack, leading
from hadron.state.schema import DeleteObjects
from hadron.state.streams.retention import Kept

DAY_MS = 86_400_000
NOTHING = Kept(0, 0, 0)


class Driver:
    """A driver, and who answers what it asks of others."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.count: Callable[[str, int, int], Awaitable[Kept]] = self._count
        self.known = {SET}
        self.sought: list[set[str]] = []
        self.seek: Callable[[Collection[str]], Awaitable[None]] = self._seek
        self.confirmed = 0
        self.driver = SchemaDriver(
            stack.controller,
            stack.catalog,
            lambda: self.known,
            lambda names: self.seek(names),
            lambda *asked: self.count(*asked),
        )

    async def _count(self, *_: Any) -> Kept:
        return NOTHING

    async def _seek(self, names: Collection[str]) -> None:
        self.sought.append(set(names))

    async def apply(self, *objects: SchemaObject, **options: Any) -> dict[str, str]:
        """What happened to each, by its name."""
        given = {"dry_run": False, "allow_destructive": False, **options}
        changes, index = await self.driver.apply(objects, **given)
        assert given["dry_run"] or index == self.stack.catalog.metadata_index
        return {change.after.name: change.action for change in changes}

    async def delete(self, name: str) -> None:
        await self.driver.delete(
            [(("Stream", "default", name), 0)], dry_run=False, allow_destructive=True
        )

    def id_of(self, name: str) -> int:
        return self.stack.catalog.stream("default", name)[0].id

    def deletion(self, name: str) -> DeleteObjects:
        """Of somebody who has hung up: who waits for it holds no lock."""
        return DeleteObjects(self.stack.catalog.metadata_index, (self.id_of(name),))

    def delete_meanwhile(self, name: str) -> None:
        """It becomes visible while `other` is asked of in its turn, since somebody changes that
        while it is asked of before."""

        async def count(*_: Any) -> Kept:
            self.count = again
            await self.stack.declare("Stream", "other", stream("other", 8).spec)
            return NOTHING

        async def again(*_: Any) -> Kept:
            self.count = self._count
            await self.stack.controller.execute(self.deletion(name))
            return NOTHING

        self.count = count


def declared(name: str, spec: Spec) -> SchemaObject:
    return SchemaObject(kind=type(spec).__name__.removesuffix("Spec"), name=name, spec=spec)


def stream(name: str, days: int, *partitions: str) -> SchemaObject:
    limits = Retention(max_age_ms=days * DAY_MS)
    return declared(name, StreamSpec(partitions=partitions or (SET,), retention=limits))


@pytest.fixture
async def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Driver]:
    async with _driving(tmp_path, monkeypatch) as made:
        yield made


@asynccontextmanager
async def _driving(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Driver]:
    async with leading(directory) as stack:
        made = Driver(stack)
        confirm = stack.controller.confirm_leadership

        async def counted() -> None:
            made.confirmed += 1
            await confirm()

        monkeypatch.setattr(stack.controller, "confirm_leadership", counted)
        await made.apply(stream("doomed", 7), stream("other", 7))
        yield made


async def test_nothing_is_declared_on_what_was_deleted_while_it_was_judged(driver: Driver) -> None:
    bridge = ExchangeSpec(replica_set=SET, from_stream="doomed")
    driver.delete_meanwhile("doomed")
    with pytest.raises(SchemaError, match="there is no stream 'doomed'"):
        await driver.apply(stream("other", 1), declared("e", bridge))
    assert [item.name for item in driver.stack.catalog.all()] == ["default", "other"]


async def test_what_was_deleted_while_it_was_judged_is_not_made_anew(driver: Driver) -> None:
    since = driver.stack.catalog.metadata_index
    driver.delete_meanwhile("doomed")
    with pytest.raises(SchemaError, match="it was deleted at index 4, after this was asked for"):
        await driver.apply(stream("other", 1), stream("doomed", 9), since=since)
    driver.delete_meanwhile("other")
    # Who does not say where the schema stood wants it whatever there was.
    assert await driver.apply(stream("other", 1)) == {"other": "created"}


async def test_what_was_deleted_too_long_ago_to_be_remembered_is_not_made_anew(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, somebody else has deleted it, and as much else as is remembered."""
    monkeypatch.setattr(catalog, "MAX_TOMBSTONES", 2)
    since = driver.stack.catalog.metadata_index
    for name in ("x", "a", "b"):
        await driver.apply(stream(name, 7))
        await driver.delete(name)
    with pytest.raises(SchemaError, match=f"deleted since this was asked for at index {since}"):
        await driver.apply(stream("x", 7), since=since)
    # Of what is there it is known when it was changed.
    assert await driver.apply(stream("other", 9), since=since) == {"other": "changed"}
    now = driver.stack.catalog.metadata_index
    assert await driver.apply(stream("x", 7), since=now) == {"x": "created"}


async def test_a_refusal_is_of_the_schema_as_it_is(driver: Driver) -> None:
    async def count(*asked: Any) -> Kept:
        driver.delete_meanwhile("other")
        await driver.count(*asked)
        again = driver.count

        async def lost(*asked: Any) -> Kept:
            await again(*asked)
            return Kept(10, 10, 1)

        driver.count = lost
        return NOTHING

    driver.count = count
    assert await driver.apply(stream("other", 1)) == {"other": "created"}


async def test_who_is_overtaken_is_judged_anew(driver: Driver) -> None:
    """The command before is in the log already, and not visible yet."""
    for name in ("a", "b"):
        await driver.apply(stream(name, 7))
    changes: list[Callable[[], Awaitable[Any]]] = [
        lambda: driver.apply(stream("other", 9)),
        lambda: driver.delete("other"),
    ]
    for name, change in zip(("a", "b"), changes, strict=True):
        heard: list[Any] = []
        driver.stack.controller.submit(
            driver.deletion(name), done=lambda *told, heard=heard: heard.append(told)
        )
        await change()
        ((_, error),) = heard
        assert error is None
    assert [item.name for item in driver.stack.catalog.all()] == ["default", "doomed"]


async def test_what_another_one_has_logged_confirms_nothing(driver: Driver) -> None:
    async def count(*_: Any) -> Kept:
        driver.count = driver._count
        await driver.stack.controller.execute(driver.deletion("doomed"))
        return NOTHING

    driver.count = count
    before = driver.confirmed
    assert await driver.apply(stream("other", 1), dry_run=True) == {"other": "changed"}
    assert driver.confirmed == before + 1
    assert await driver.apply(stream("other", 1)) == {"other": "changed"}
    assert driver.confirmed == before + 1, "what is logged says as much"
    assert await driver.apply(stream("other", 1)) == {"other": "unchanged"}
    assert driver.confirmed == before + 2


async def test_no_change_waits_for_who_names_an_unknown_set(driver: Driver) -> None:
    begun, found = trio.Event(), trio.Event()
    told: list[Any] = []

    async def seek(names: Collection[str]) -> None:
        await driver._seek(names)
        begun.set()
        await found.wait()

    async def declare(name: str, *, dry_run: bool) -> None:
        try:
            told.append(await driver.apply(stream(name, 7, SET, "eu/p0"), dry_run=dry_run))
        except SchemaError as error:
            told.append(error)

    driver.seek = seek
    for dry_run in (True, False):
        begun, found = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(declare, "far", dry_run=dry_run))
            await begun.wait()
            with trio.fail_after(10):
                await driver.apply(stream(f"near-{dry_run}", 7))
            found.set()
        assert "there is no replica set 'eu/p0'" in str(told.pop())
    driver.known.add("eu/p0")
    await declare("far", dry_run=False)
    assert told == [{"far": "created"}]
    assert driver.sought == [{"eu/p0"}] * 2, "what is known is not sought"


async def test_a_set_that_is_found_is_known(driver: Driver) -> None:
    async def seek(names: Collection[str]) -> None:
        await driver._seek(names)
        driver.known.update(names)

    driver.seek = seek
    home = ExchangeSpec(replica_set="us/p0")
    objects = (stream("far", 7, SET, "eu/p0"), declared("e", home))
    assert await driver.apply(*objects) == {"far": "created", "e": "created"}
    assert driver.sought == [{"eu/p0", "us/p0"}]
    # What is in use was known once: its set may just be away.
    driver.known = {SET}
    assert await driver.apply(*objects) == {"far": "unchanged", "e": "unchanged"}
    assert len(driver.sought) == 1


async def test_who_names_unknown_sets_has_few_asked_at_the_same_time(driver: Driver) -> None:
    go_on, seeking, most = trio.Event(), 0, 0

    async def seek(names: Collection[str]) -> None:
        nonlocal seeking, most
        await driver._seek(names)
        seeking += 1
        most = max(most, seeking)
        await go_on.wait()
        seeking -= 1

    async def declare(number: int) -> None:
        with pytest.raises(SchemaError):
            await driver.apply(stream("far", 7, SET, f"us/p{number}"), dry_run=True)

    driver.seek = seek
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(declare, number)
        await wait_all_tasks_blocked()
        go_on.set()
    assert most == 4
    assert len(driver.sought) == 20


async def test_no_change_waits_for_who_has_many_records_counted(driver: Driver) -> None:
    begun, counted = trio.Event(), trio.Event()
    asked: list[int] = []

    async def count(_partition: str, stream_id: int, _before_ms: int) -> Kept:
        asked.append(stream_id)
        begun.set()
        await counted.wait()
        return NOTHING

    driver.count = count
    streams = [driver.id_of(name) for name in ("doomed", "other")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.apply, stream("doomed", 1), stream("other", 1))
        await begun.wait()
        with trio.fail_after(10):
            await driver.apply(stream("near", 7))
            await driver.apply(stream("other", 9))
        counted.set()
    assert sorted(asked) == [*streams, driver.id_of("other")], "only what has changed, once more"


async def test_others_run_while_many_objects_are_judged(driver: Driver) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    many = [stream(f"s{number}", 7) for number in range(100)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await driver.apply(*many, dry_run=True)
        nursery.cancel_scope.cancel()
    assert turns > len(many) / 2
