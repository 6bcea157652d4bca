"""What a client has of transactions: a call to each driver, and what it asks of them.

Safety rule: an outcome is asked of the replica set that the transaction's id names. Another one
knows nothing of it, which looks like an abort (PROTOCOL E1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Literal
from weakref import WeakSet

import anyio

from hadron.client.connecting.leaders import LOOK_HINT, ask_each, check_complete
from hadron.client.connecting.session import Session
from hadron.client.pipelines.homes import Homes
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import text_of
from hadron.client.terms.opening import Opening
from hadron.client.terms.results import BatchReceipt, OpenTransaction, TransactionOutcome
from hadron.client.transactions.contents import Claim, Claimable
from hadron.client.transactions.driver_call import DriverCall
from hadron.client.transactions.placing import Places
from hadron.client.transactions.settings import TransactionSettings
from hadron.client.transactions.transaction import Transaction
from hadron.client.transactions.work import State, Work
from hadron.model.backoff import Backoff
from hadron.model.errors import DeadlineExceededError, NotFoundError, RequestError
from hadron.model.transactions import TransactionId, parse_transaction_id
from hadron.model.words import with_article
from hadron.wire.messages import method, transaction_from, transaction_to, transactions_pb2

_OUTCOME: Final = method("Outcome")
_LIST: Final = method("ListTransactions")
_RESOLVE: Final = method("ResolveTransaction")

_Response = transactions_pb2.OutcomeResponse

_REMEMBERED: Final = 1_000
"""Transactions without a known outcome whose statements are kept: so it comes with receipts."""

_LATE_S: Final = 1.0
"""So long an outcome is asked for again because participants of a committed one have not finished:
those that are up do so at once."""

Act = Literal["roll_back", "give_up", "force_commit", "force_abort"]

_ACTS: Final = {
    "roll_back": transactions_pb2.ResolveTransactionRequest.ROLL_BACK,
    "give_up": transactions_pb2.ResolveTransactionRequest.GIVE_UP,
    "force_commit": transactions_pb2.ResolveTransactionRequest.FORCE_COMMIT,
    "force_abort": transactions_pb2.ResolveTransactionRequest.FORCE_ABORT,
}

_STATES: Final[dict[int, Literal["committed", "aborted", "open", "forgotten"]]] = {
    _Response.OPEN: "open",
    _Response.COMMITTED: "committed",
    _Response.ABORTED: "aborted",
    _Response.FORGOTTEN: "forgotten",
}


class TransactionCalls:
    """Of one client."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self.now_ms: Callable[[], int] = session.ports.clock.now_ms
        self.session = session
        self.catalog = catalog
        self._drivers: dict[str, DriverCall] = {}
        self._places: dict[str, Places] = {}
        self.homes = Homes(catalog)
        self._unknown: OrderedDict[TransactionId, Work] = OrderedDict()
        self._held: WeakSet[Work] = WeakSet()
        """Of transactions that the program has still: they know the names of their streams."""

    def open(self, settings: TransactionSettings) -> Opening[Transaction]:
        async def make() -> Transaction:
            work = self.begin(settings)
            self._held.add(work)
            return Transaction(work)

        about = "of one driver" if settings.driver is None else f"of {settings.driver!r}"
        return Opening(make, "transaction", "transaction", about, "tx")

    def begin(self, settings: TransactionSettings) -> Work:
        """Raises `NotFoundError` for a driver that does not exist."""
        self.session.check_open()
        if settings.driver is not None:
            self._check_known(settings.driver)
        return Work(self, settings)

    def _check_known(self, replica_set: str) -> None:
        known = self.session.topology.names()
        if replica_set not in known:
            raise NotFoundError(
                f"no replica set is called {replica_set!r}",
                f"this cluster has {', '.join(known) or 'none'}",
            )

    # --- what transactions need (`work`) ------------------------------------------------------

    def driver(self, home: str) -> DriverCall:
        """The standing call; opened now, and kept, if there is none."""
        self.session.check_open()
        found = self._drivers.get(home)
        if found is None:
            found = self._drivers[home] = DriverCall(self.session, home)
        return found

    def is_away(self, replica_set: str) -> bool:
        """Whether its leader is known to be out of reach."""
        found = self._drivers.get(replica_set)
        return found is not None and found.trouble is not None

    async def places(self, stream: str) -> Places:
        """Raises `NotFoundError` for an unknown stream."""
        item = await self.catalog.stream(stream)
        found = self._places.get(stream)
        if found is None or found.item is not item:
            first = int(self.session.ports.random.uniform(0, 1 << 16))
            found = self._places[stream] = Places(item, first)
        return found

    def claim(self, what: Claimable) -> Claim:
        """Raises `RequestError` for what is nothing that this client may acknowledge."""
        if not hasattr(what, "_claim"):
            raise RequestError(
                f"{with_article(type(what).__name__)} cannot be acknowledged",
                "give a delivery, or a batch",
            )
        claim = what._claim()
        if claim.session is not self.session:
            what._unclaim()
            raise RequestError(
                f"{what!r} was delivered to a member of another client",
                "acknowledge it in a transaction of the client whose subscription it came from",
            )
        return claim

    # --- outcomes -------------------------------------------------------------------------------

    def remember(self, work: Work) -> None:
        """Its outcome may be asked for later."""
        assert work.id is not None
        self._unknown[work.id] = work
        if len(self._unknown) > _REMEMBERED:
            self._unknown.popitem(last=False)

    async def find_out(self, transaction: TransactionId) -> transactions_pb2.OutcomeResponse:
        """What became of it for good: what is not being decided is rolled back. Raises `PeerError`
        when nobody says so within the client's `request_timeout_s`."""
        backoff = Backoff(self.session.ports.random)
        began_s = anyio.current_time()
        until_s = began_s + self.session.request_timeout_s
        while True:
            answer = await self._ask(transaction, final=True, until_s=until_s)
            delay_s = backoff.next_s()
            now_s = anyio.current_time()
            is_late = now_s - began_s >= _LATE_S or now_s + delay_s >= until_s
            if answer.state != _Response.OPEN and not (answer.unfinished and not is_late):
                return answer
            if now_s + delay_s >= until_s:
                raise DeadlineExceededError(
                    f"{transaction.replica_set} is still deciding transaction {transaction}",
                    "ask again",
                )
            await anyio.sleep(delay_s)

    async def _ask(
        self, transaction: TransactionId, *, final: bool, until_s: float
    ) -> transactions_pb2.OutcomeResponse:
        request = transactions_pb2.OutcomeRequest(
            transaction=transaction_to(transaction), final=final
        )
        answer, _ = await self.session.request(
            transaction.replica_set,
            _OUTCOME,
            request,
            timeout_s=max(0.001, until_s - anyio.current_time()),
        )
        assert isinstance(answer, transactions_pb2.OutcomeResponse)
        return answer

    async def outcome(self, transaction: str | TransactionId) -> TransactionOutcome:
        """See `Client.outcome`."""
        wanted = _id_of(transaction)
        work = self._unknown.get(wanted)
        until_s = anyio.current_time() + self.session.request_timeout_s
        # Of what was begun here nothing more can come; of another client's only it knows.
        answer = await self._ask(wanted, final=work is not None, until_s=until_s)
        state = _STATES[answer.state]
        if work is not None:
            if state != "open":
                work.learn(answer)
            if state in ("aborted", "forgotten") or (
                state == "committed" and not answer.unfinished
            ):
                self._unknown.pop(wanted, None)
            receipts = work.contents.runs()
        else:
            receipts = self._receipts(wanted, answer)
        return TransactionOutcome(str(wanted), state, receipts, list(answer.unfinished))

    def _receipts(
        self, transaction: TransactionId, answer: transactions_pb2.OutcomeResponse
    ) -> list[BatchReceipt]:
        """With the names of streams where it is one that this client has committed, and holds."""
        for work in self._held:
            if work.id == transaction and work.state is State.COMMITTED:
                work.contents.committed(answer.results)
                return work.contents.runs()
        return _runs(answer.results)

    # --- people ---------------------------------------------------------------------------------

    async def listing(
        self, replica_set: str | None, within_s: float | None
    ) -> list[OpenTransaction]:
        """See `Client.transactions`."""
        names = self.session.topology.names()
        if replica_set is not None:
            self._check_known(text_of("replica_set", replica_set))
            names = [replica_set]

        async def ask(name: str) -> list[OpenTransaction]:
            found: list[OpenTransaction] = []
            request = transactions_pb2.ListTransactionsRequest()
            while True:
                answer, _ = await self.session.request(name, _LIST, request, timeout_s=within_s)
                found += [_shown(name, each) for each in answer.transactions]
                if not answer.next:
                    return found
                request.after = answer.next

        answers, failed = await ask_each(self.session, names, ask)
        listed = [each for name in names for each in answers.get(name, ())]
        check_complete(listed, failed, len(names), "could not be asked", LOOK_HINT)
        return listed

    async def resolve(
        self, transaction: str | TransactionId, act: Act, participant: str | None
    ) -> None:
        """See `Client.resolve_transaction`."""
        wanted = _id_of(transaction)
        if act not in _ACTS:
            raise RequestError(f"act {act!r} is unknown", f"use one of {', '.join(_ACTS)}")
        if (participant is None) != (act == "roll_back"):
            raise RequestError(
                f"{act!r} {'needs a' if participant is None else 'has no'} participant",
                "name the replica set that is lost to give up, or where to force it; to roll back "
                "is up to the driver",
            )
        where = wanted.replica_set
        if participant is not None:
            self._check_known(text_of("participant", participant))
            if act != "give_up":
                where = participant
        request = transactions_pb2.ResolveTransactionRequest(
            transaction=transaction_to(wanted), act=_ACTS[act], participant=participant or ""
        )
        await self.session.request(where, _RESOLVE, request)


def _id_of(transaction: str | TransactionId) -> TransactionId:
    if isinstance(transaction, TransactionId):
        return transaction
    return parse_transaction_id(text_of("transaction", transaction))


def _runs(results: Sequence[transactions_pb2.ReplicaSetResults]) -> list[BatchReceipt]:
    return [
        BatchReceipt(
            "", each.replica_set, result.base_offset, result.count, result.append_ms, False
        )
        for each in results
        for result in each.results
        if result.HasField("base_offset")
    ]


def _shown(
    replica_set: str, message: transactions_pb2.ListTransactionsResponse.Transaction
) -> OpenTransaction:
    return OpenTransaction(
        str(transaction_from(message.transaction)),
        replica_set,
        message.is_driver,
        message.phase,
        message.age_ms / 1_000,
        message.statements,
        message.bytes,
        {each.replica_set: each.reason for each in message.waits_for},
    )
