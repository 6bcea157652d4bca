"""Bounds on everything that a peer, a user or a disk could make large.

Each number says where it comes from. Sizes are bytes, times are milliseconds.
"""

from __future__ import annotations

from typing import Final

MAX_RECORD_BYTES: Final = 1 << 20
"""One record's value + key + headers. Kafka's and NATS's default is 1 MB as well."""

RECORD_OVERHEAD_BYTES: Final = 16
"""What a record counts beside them: its time, and where its value ends."""

MAX_VALUE_BYTES: Final = MAX_RECORD_BYTES - RECORD_OVERHEAD_BYTES
"""The value of a record that has neither key nor headers."""

MAX_BATCH_BYTES: Final = 2 << 20
"""One encoded batch: a largest record with headroom; well below the frame limit."""

MAX_BATCH_RECORDS: Final = 65_536
"""Keeps the index section of a batch small enough to be read by the leader in one go."""

MAX_RAW_BODY_BYTES: Final = 16 << 20
"""A batch body after decompression: refuses decompression bombs."""

MAX_TYPES_PER_BATCH: Final = 4_096
"""Distinct event types in one batch's dictionary."""

MAX_MESSAGE_BYTES: Final = 4 << 20
"""The protobuf part of a frame (a page of a listing is the largest)."""

MAX_ATTACHMENT_BYTES: Final = 16 << 20
"""The record bytes of a frame: several batches of one append or fetch."""

MAX_ITEMS: Final = 1_000
"""What one message asks for: subscriptions, transactions, statements, staged batches. Each takes a
leader some ten to a hundred µs of its loop, and two bytes of a message; nobody else has a turn
meanwhile (BOUNDS W1)."""

MAX_RANGES: Final = 10_000
"""Of deliveries, in one message: some µs each."""

GROUP_COMMIT_BYTES: Final = 2 << 20
"""How much the writer takes into one SQLite transaction. Measured: larger transactions gain no
throughput (one fsync per 2 MiB is already < 5 % of the time) and cost latency."""

GROUP_COMMIT_COMMANDS: Final = 2_048

MAX_PENDING_BYTES: Final = 32 << 20
"""Commands accepted but not yet in the writer; beyond it connections are not read any more."""

MAX_UNSENT_BYTES: Final = 256 << 20
"""Answers and deliveries that wait for their clients to read, of all connections of a node."""

MAX_PEER_UNSENT_BYTES: Final = 64 << 20
"""The same for the other members: clients that read nothing must not hold replication up."""

MAX_INCOMPLETE_BYTES: Final = 256 << 20
"""Frames that are still coming in, of all connections of a node."""

MAX_OPEN_CALLS: Final = 32_768
"""Calls that clients have open at a node; one connection alone has half of them. A waiting fetch
takes about 8 kB."""

MAX_OFFSET: Final = (1 << 63) - 1
"""What an integer of SQLite's holds; so do times."""

MAX_NAME_LENGTH: Final = 100
MAX_DESCRIPTION_LENGTH: Final = 5_000

PRODUCER_WINDOW: Final = 5
"""Batches of one producer that dedupe remembers, so the most it may have in flight per partition.
Kafka's idempotent producer has the same bound."""

PRODUCER_IDLE_MS: Final = 24 * 3600 * 1000
"""Producer state may be evicted when idle for longer (PROTOCOL D1)."""

PRODUCER_IDLE_STEP_MS: Final = 3600 * 1000
"""How exactly it is kept since when a producer is idle, and so what it is kept for longer: only the
first batch of an hour moves it in the index of ages (PROTOCOL D1)."""

PRODUCER_NAME_IDLE_MS: Final = 30 * 24 * 3600 * 1000
"""A producer's name, with the last number of its program, may be evicted when idle for longer
(PROTOCOL D6). Kafka forgets a transactional id after 7 days, RabbitMQ's streams never do: an
importer that runs once a month should find where it was."""

MAX_ONCE_KEYS: Final = 1_000_000
"""Keys that a partition remembers for a day, of records that are sent once: 11 a second, and some
120 MB of its file. Who gives more is told to wait (PROTOCOL D7)."""

MAX_PRODUCER_NAMES: Final = 1_000
"""Names that a partition keeps: who names producers by what is made anew for each run, such as a
process's number, hears of it. A stream of RabbitMQ keeps 255."""

MAX_IN_FLIGHT: Final = 100_000
"""Records that one member of a group holds. Kafka hands 500 to a poll, RabbitMQ any number."""

MAX_MICRO_BATCH: Final = 20_000
"""Invocations that a leader hands to a stage runner at once, whatever it asks for."""

DEFAULT_MICRO_BATCH: Final = 5_000
"""What a stage runner asks for unless it is told: Spark's 0.1 to 0.4 s per job are then below
0.1 ms an invocation."""

MAX_BATCH_WAIT_MS: Final = 60_000
MAX_ACK_DEADLINE_MS: Final = 24 * 3_600_000
MAX_DELIVERY_ATTEMPTS: Final = 1_000
MAX_HEARTBEAT_MS: Final = 3_600_000
MAX_HEARTBEAT_MISSES: Final = 100
"""What members may ask for, and groups have."""

SUBSCRIPTION_BATCH_MEMORY: Final = 8
"""Batches attached on one Subscribe call that both sides remember, oldest dropped first: a batch
delivered in slices is sent once. 8 batches of the largest size are 16 MiB per member and call."""

MAX_MEMBERS: Final = 15
"""Of a replica set. Every entry goes to each of them and a majority must store it: seven are
already a lot, so more than this is a mistake in the file."""

TOKEN_BYTES: Final = 16
"""Of the random names that nodes give to their disks and starts."""

MAX_TRANSACTION_STATEMENTS: Final = 100_000
MAX_TRANSACTION_BYTES: Final = 64 << 20
"""Of all its records. Until a transaction is over its bytes are kept."""

MAX_SET_STATEMENTS: Final = 10_000
"""Of a transaction at one replica set. Its end there is one entry, so that readers see all of it or
nothing, and everybody else waits for that: 7 µs a statement, of two busy cores. Records that are
given together share a statement."""

MAX_SET_ROWS: Final = 32_768
"""Of tables, that these statements change: keys of an index, ranges, instances, batches that were
staged. Of what makes such an entry large besides its statements: some 6 µs a row, to prepare it and
to end it."""

MAX_TOGETHER: Final = 256
"""Transactions that are decided by one entry, each of them a row."""

MAX_PARTICIPANTS: Final = 256
"""Replica sets in one transaction. Each is asked and told on its own."""

MAX_CALL_MESSAGE_BYTES: Final = 4 << 20
"""One value of a call to an endpoint, either way. gRPC's default is the same."""

MAX_CALL_HEADER_BYTES: Final = 8 << 10
"""Of all headers of a call, or of its answer. What HTTP servers take is of this size."""

MAX_CALL_ITEMS: Final = 1_000
"""Of one message about calls: who hears it deals with all of it in one turn."""

MAX_CALL_MS: Final = 24 * 3_600_000
"""From a call's beginning to its deadline: nothing is open for ever."""

CALL_WINDOW_BYTES: Final = 256 << 10
"""What one side of a streaming call may send before the other one, or its program, has taken it."""

MAX_SERVER_CALLS: Final = 10_000
"""Calls that one server of an endpoint has at a time, whatever it asks for."""

CALL_VALUE_BYTES: Final = 32
"""What a value of a streaming call counts beside its bytes: empty ones cost something, too."""
