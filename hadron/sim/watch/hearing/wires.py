"""Questions and answers between nodes, and to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hadron.fakes.connections import SimTransport
from hadron.model.errors import HadronError
from hadron.server.forwarding import ForwardingService
from hadron.sim.watch.known import Known, Wrappers
from hadron.sim.watch.views import NodeView, Question
from hadron.wire.calls import AnyCall, Handler
from hadron.wire.connection import Connection
from hadron.wire.forwarded_calls import ForwardedCall
from hadron.wire.framed_calls import FramedCall
from hadron.wire.messages import METHODS, Method, streams_pb2

_APPEND = "Append"
_UNDER_BALLOTS = ("Probe", "ReadLog", "Resync")
"""What else only a leader asks, with its ballot."""


class HearsWires:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._questions: dict[AnyCall, Question] = {}
        self._handlers: dict[int, tuple[Mapping[int, Handler], dict[int, Handler]]] = {}

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (Connection, {"__init__": self.connects, "call": self.calls}),
            (ForwardingService, {"serve": self.serves}),
            (ForwardedCall, {"send": self.sends, "fail": self.fails}),
            (FramedCall, {"send": self.sends, "fail": self.fails}),
        ]

    def connects(self, original: Any) -> Any:
        def connect(
            connection: Connection,
            transport: Any,
            *,
            handlers: Mapping[int, Handler] | None = None,
            **named: Any,
        ) -> None:
            if handlers and isinstance(transport, SimTransport):
                handlers = self._heard(handlers)
            original(connection, transport, handlers=handlers, **named)

        return connect

    def _heard(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Handlers that note each question; of one node all connections share them."""
        known = self._handlers.get(id(handlers))
        if known is None or known[0] is not handlers:
            heard: dict[int, Handler] = {
                number: partial(self._asked, METHODS[number], handler)
                for number, handler in handlers.items()
            }
            known = self._handlers[id(handlers)] = handlers, heard
        return known[1]

    def serves(self, original: Any) -> Any:
        def serve(service: ForwardingService, handlers: Mapping[int, Handler]) -> None:
            original(service, self._heard(handlers))

        return serve

    def _asked(
        self, method: Method, handler: Handler, call: AnyCall, message: Any, attachment: memoryview
    ) -> None:
        view = self._view_of(call.origin)
        if view is not None:
            if method.name == _APPEND:
                self._known.ballots.append_arrived(view, message)
            follower = view.follower
            question = self._questions[call] = Question(
                view,
                method.service,
                method.name,
                message,
                next(self._known.ballots.order),
                follower.stored_applied_lsn if follower is not None else 0,
                view.identity.promised,
                view.controller,
            )
            self._known.records.asked(question)
            self._known.judging(self._known.given.asked, question)
        handler(call, message, attachment)

    def _view_of(self, connection: Any) -> NodeView | None:
        """The node at this end; None for clients, and for nodes that have crashed."""
        transport = getattr(connection, "_transport", None)
        if isinstance(transport, SimTransport) and transport.host.is_alive:
            view = self._known.views.get(transport.host.name)
            return view if view is not None and view.is_alive else None
        return None

    def sends(self, original: Any) -> Any:
        def send(
            call: FramedCall | ForwardedCall,
            message: Any,
            attachments: Sequence[Any] = (),
            *,
            end: bool = False,
        ) -> None:
            question = self._questions.get(call)
            if question is not None and not _has_ended(call):
                if question.method == _APPEND:
                    self._known.ballots.append_answered(question, message)
                elif question.method in _UNDER_BALLOTS:
                    self._known.ballots.answered_under(question)
                elif question.method == "OpenSnapshot":
                    self._known.answers.copy_opened(question, message)
                    if question.view.is_alive:
                        self._known.copies.given_out(question.view)
                else:
                    if question.service == "Schema" and question.view.is_alive:
                        self._shows_schema(question, message)
                    self._known.answers.answers(question, message)
                    self._known.records.answers(question, message)
                    self._known.judging(self._known.given.answers, question, message)
                if end:
                    del self._questions[call]
            original(call, message, attachments, end=end)

        return send

    def _shows_schema(self, question: Question, message: Any) -> None:
        if question.method == "GetObjects":
            self._known.meanings.shown(question.view, message.objects, message.metadata_index)
            self._known.meanings.lists(question.view, question.message, message)
        elif question.method == "WatchSchema":
            self._known.meanings.shown(question.view, message.objects, message.to_index)

    def fails(self, original: Any) -> Any:
        def fail(call: FramedCall | ForwardedCall, error: HadronError) -> None:
            question = self._questions.pop(call, None)
            if question is not None and not _has_ended(call):
                self._known.meanings.refused(question.view, question.message, error)
                self._known.answers.refuses(question, error)
                self._known.records.refuses(question, error)
                self._known.given.refuses(question)
            original(call, error)

        return fail

    def calls(self, original: Any) -> Any:
        def call(
            connection: Connection,
            method: Method,
            message: Any,
            *others: Any,
            on_message: Callable[[Any, memoryview], None],
            **named: Any,
        ) -> FramedCall:
            view = self._view_of(connection)
            if isinstance(message, streams_pb2.FetchRequest):
                on_message = self._known.reads_on.asks(message, on_message)
            if view is not None:
                if method.name == _APPEND:
                    self._known.ballots.append_sent(view, message)
                    self._known.branches.append_sent(view, message)
                    on_message = self._answered(view, connection, message, on_message)
                else:
                    self._known.answers.asks(view, method.service, method.name)
            opened: FramedCall = original(
                connection, method, message, *others, on_message=on_message, **named
            )
            return opened

        return call

    def _answered(
        self,
        view: NodeView,
        connection: Connection,
        request: Any,
        on_message: Callable[[Any, memoryview], None],
    ) -> Callable[[Any, memoryview], None]:
        peer = connection.peer.rpartition(":")[0]
        # Whoever starts again meanwhile may have lost its memory since it answered.
        asked = self._known.views.get(peer)
        number = next(self._known.ballots.order)

        def heard(answer: Any, attachment: memoryview) -> None:
            self._known.ballots.append_heard(view, request, answer, peer, asked, number)
            on_message(answer, attachment)

        return heard


def _has_ended(call: FramedCall | ForwardedCall) -> bool:
    """Whether nothing leaves any more that is said on it."""
    carrier = call.outer if isinstance(call, ForwardedCall) else call
    assert isinstance(carrier, FramedCall)
    return carrier._ended_here
