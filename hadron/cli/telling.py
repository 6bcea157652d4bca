"""What features say of schema objects that are declared, shown or deleted: the one list.

A feature's module is imported when something is to be said, as a command's is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hadron.client import SyncClient
    from hadron.model.schema import SchemaObject

_FEATURES: Final = (
    "hadron.cli.commands.group",
    "hadron.cli.commands.exchange",
    "hadron.cli.endpoints.shown",
    "hadron.cli.pipelines.shown",
)
"""Modules with a `TELLS`."""

Key = tuple[str, str, str]
"""Kind, namespace, name."""


def _nothing(_client: SyncClient, _given: Sequence[Any]) -> list[str]:
    return []


def _unchecked(_given: Sequence[SchemaObject]) -> list[str]:
    return []


def _no_status(_client: SyncClient, _found: SchemaObject) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tells:
    """
    Attributes:
        notes: what people should know of these, though they are as they should be.
        checks: what can be seen of them here only, before they are applied: what could not be
            looked at. Raises `SchemaError`.
        status: how an object is doing, by keys of its own.
        losses: what others lose with these objects. Asked before they are deleted, and told after.
    """

    notes: Callable[[SyncClient, Sequence[SchemaObject]], list[str]] = _nothing
    checks: Callable[[Sequence[SchemaObject]], list[str]] = _unchecked
    status: Callable[[SyncClient, SchemaObject], dict[str, Any]] = _no_status
    losses: Callable[[SyncClient, Sequence[Key]], list[str]] = _nothing


def features() -> Iterator[Tells]:
    for name in _FEATURES:
        yield importlib.import_module(name).TELLS
