"""A broker with callers and servers that write down what they are told."""

from __future__ import annotations

from typing import Any

from hadron.endpoints.calls import Server
from hadron.endpoints.machine import Broker, Key
from hadron.endpoints.port import Headers, Opening, Terms, Value
from hadron.model.errors import HadronError
from hadron.model.services import EndpointSpec
from hadron.testing.nodes import SeededRandom

KEY: Key = ("default", "e")


class Caller:
    """`port.CallerSink`."""

    def __init__(self, broker: Broker) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.room = 1 << 30
        self._broker = broker
        self.it = broker.attach_caller(self)

    def has_room(self, size: int) -> bool:
        return size <= self.room

    def value(self, number: int, value: Value, headers: Headers) -> None:
        self.told.append((number, bytes(value.data), value.is_last, dict(headers)))

    def end(self, number: int, headers: Headers) -> None:
        self.told.append((number, "end", dict(headers)))

    def error(self, number: int, error: HadronError, headers: Headers) -> None:
        self.told.append((number, error, dict(headers)))

    def credit(self, number: int, size: int) -> None:
        self.told.append((number, "credit", size))

    def call(
        self,
        number: int,
        data: bytes | None = b"v",
        *,
        now_s: float = 1.0,
        timeout_s: float = 10.0,
        is_last: bool = True,
        region: str = "",
        key: Key = KEY,
        is_single: bool = False,
    ) -> None:
        value = None if data is None else Value(0, data, is_last)
        opening = Opening(timeout_s, region, {"h": "x"}, "somebody", is_single)
        self._broker.open(self.it, number, key, opening, value, now_s)

    def error_of(self, number: int) -> HadronError:
        (found,) = [told[1] for told in self.told if told[0] == number]
        assert isinstance(found, HadronError)
        return found


class Serving:
    """`port.ServerSink`."""

    it: Server
    told: list[Any]

    def __init__(self) -> None:
        self.told = []
        self.writable = True
        self.deaf_s = 0.0

    def open(
        self, number: int, opening: Opening, attempt: int, left_s: float, value: Value | None
    ) -> None:
        assert opening.headers == {"h": "x"}
        data = None if value is None else bytes(value.data)
        self.told.append((number, "open", data, attempt, round(left_s, 3)))

    def value(self, number: int, value: Value) -> None:
        self.told.append((number, bytes(value.data), value.is_last))

    def end(self, number: int) -> None:
        self.told.append((number, "end"))

    def cancel(self, number: int) -> None:
        self.told.append((number, "cancel"))

    def credit(self, number: int, size: int) -> None:
        self.told.append((number, "credit", size))

    def fail(self, error: HadronError) -> None:
        self.told.append((0, error))


class Room:
    """A broker with one endpoint, that has led for long."""

    def __init__(self, *, is_settled: bool = True, **spec: Any) -> None:
        self.broker = Broker(SeededRandom(1), 0.0)
        self.spec = EndpointSpec(replica_set="r", **spec)
        self.broker.declare({KEY: self.spec})
        if is_settled:
            self.broker.tick(1.0)
        self.caller = Caller(self.broker)

    @property
    def endpoint(self) -> Any:
        return self.broker.endpoints[KEY]

    def serve(
        self,
        max_in_flight: int = 1,
        *,
        region: str = "",
        name: str = "s",
        silence_s: float = 0.0,
        shape: tuple[str, str] = ("", ""),
        now_s: float = 1.0,
    ) -> Serving:
        serving = Serving()
        terms = Terms(max_in_flight, region, name, f"{name} at 1.2.3.4", silence_s, shape)
        serving.it = self.broker.attach_server(KEY, serving, terms, now_s)
        return serving

    def answer(
        self,
        serving: Serving,
        number: int,
        data: bytes = b"a",
        *,
        is_last: bool = True,
        now_s: float = 2.0,
    ) -> None:
        self.broker.server_value(serving.it, number, Value(0, data, is_last), {}, now_s)
