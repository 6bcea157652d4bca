"""Types in words, and what a handler says of a value that is not of its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, TypedDict

import msgspec
import pytest

from hadron.client.endpoints.calls import converted
from hadron.client.endpoints.handlers import Handler
from hadron.client.endpoints.shapes import described
from hadron.model.errors import CallFailedError, RequestError
from hadron.model.record import JSON
from hadron.model.services import EndpointSpec


@dataclass
class Order:
    amount: int
    item: str = "tea"
    tags: list[str] | None = None


class Point(msgspec.Struct, rename="upper"):
    x: float
    y: float


class Both(TypedDict):
    a: int


class Pair(NamedTuple):
    first: Order
    second: Optional[int] = None  # noqa: UP045 - as programs have it


class _PydanticField:
    def __init__(self, annotation: Any, alias: str | None, *, required: bool) -> None:
        self.annotation = annotation
        self.alias = alias
        self._required = required

    def is_required(self) -> bool:
        return self._required


class Model:
    """As pydantic's are seen from here."""

    model_fields = {  # noqa: RUF012
        "amount": _PydanticField(int, None, required=True),
        "item": _PydanticField(str, "Item", required=False),
    }


ORDER = "Order: amount (int); optional: item (str), tags (list[str] | None)"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Order, ORDER),
        (list[Order], f"list[Order]: {ORDER.partition(': ')[2]}"),
        (Order | None, f"Order | None: {ORDER.partition(': ')[2]}"),
        (Point, "Point: X (float), Y (float)"),
        (Both, "Both: a (int)"),
        (Pair, "Pair: first (Order); optional: second (int | None)"),
        (Model, "Model: amount (int); optional: Item (str)"),
        (int, "int"),
        (dict[str, int], "dict[str, int]"),
        (int | None, "int | None"),
    ],
)
def test_types_are_told_with_their_fields(kind: Any, told: str) -> None:
    assert described(kind) == told


def test_many_fields_are_not_all_named() -> None:
    kind = msgspec.defstruct("Wide", [(f"f{number}", int) for number in range(100)])
    assert described(kind).endswith("f19 (int) and 80 more")


def test_a_handler_says_what_it_takes() -> None:
    def quote(order: Order) -> int:
        return order.amount

    handler = Handler(quote, EndpointSpec(replica_set="r"))
    with pytest.raises(CallFailedError) as raised:
        handler.decode((JSON, b'{"amount": "two"}'))
    assert "$.amount" in raised.value.message
    assert raised.value.hint.endswith(f"quote takes {ORDER}")
    assert raised.value.type == "ValidationError"


def test_so_does_who_wants_an_answer_of_a_type() -> None:
    with pytest.raises(RequestError, match=r"a value is no list\[Order\]: ") as raised:
        converted(JSON, b"[{}]", list[Order])
    assert "amount (int)" in raised.value.hint
