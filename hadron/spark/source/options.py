"""The options of `.format("hadron")`, under the names that Kafka's connector made familiar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from hadron.model.batch import CODECS
from hadron.model.errors import RequestError
from hadron.model.ids import check_name
from hadron.model.problems import did_you_mean
from hadron.model.units import TIME_FORM, parse_duration_ms, parse_time_ms

_EARLIEST: Final = -2
_LATEST: Final = -1
"""Kafka's own stand-ins inside an offsets object."""

_KEPT_S: Final = 3_600.0
"""What is staged is kept for so long: longer than a batch takes, with all its tasks."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or to end, before it is known which offsets that means.

    `offsets` holds one offset per partition for kind "offsets"; -2 there means earliest and -1
    latest. `at_ms` is for kind "timestamp": the first record appended at or after it.
    """

    kind: Literal["earliest", "latest", "offsets", "timestamp"]
    offsets: Mapping[str, int] = field(default_factory=dict)
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options of one read.

    Attributes:
        url: the server's URL, with the namespace in it.
        stream: the stream to read.
        partitions: the partitions to read, by replica set name; all of them when empty.
        starting: where to begin; earliest for a batch read, latest for a stream, when not given.
        ending: where a batch read ends.
        max_offsets_per_trigger: records per micro-batch over all partitions; None for no limit.
        min_partitions: split into at least so many tasks; one per partition when None.
        fail_on_data_loss: whether to fail, rather than skip, when asked for records that are gone.
        include_headers: whether there is a `headers` column.
        group: the consumer group that a streaming query shows its progress as; "": none.
        time_zone: of timestamps in values that have none; "": the session's.
    """

    url: str
    stream: str
    partitions: tuple[str, ...]
    starting: Position
    ending: Position
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_headers: bool
    group: str
    time_zone: str


_KNOWN: Final = (
    "server",
    "namespace",
    "stream",
    "partitions",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "groupId",
    "schema",
    "timeZone",
)


_KNOWN_TO_WRITE: Final = (
    "server",
    "namespace",
    "stream",
    "txnId",
    "batchId",
    "reset",
    "stagingTimeout",
    "codec",
)

_OF_SPARK: Final = frozenset(("checkpointlocation", "queryname", "outputmode", "trigger"))
"""What Spark hands on of its own."""

_ELSEWHERE: Final = {
    # What `load("orders")` becomes.
    "path": 'load() takes no name: .option("stream", NAME)',
    **dict.fromkeys(("subscribe", "topic", "topics"), 'a stream is .option("stream", NAME)'),
    "kafka.bootstrap.servers": 'nodes are .option("server", "hadron://HOST:PORT")',
}
"""What other sources call what is called otherwise here."""


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check what the user gave; names in any case. Raises `RequestError` naming the option."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given, _KNOWN)
    stream = _stream(given)
    starting = _position(given, "starting", "latest" if streaming else "earliest")
    ending = _position(given, "ending", "latest")
    if streaming and ending.kind != "latest":
        raise RequestError(
            "a streaming read has no end", "leave out endingOffsets and endingTimestamp"
        )
    if not streaming and starting.kind == "latest":
        raise RequestError(
            "a batch read that starts at 'latest' would read nothing",
            "start at earliest, at offsets, or use readStream",
        )
    if not streaming and "maxoffsetspertrigger" in given:
        raise RequestError(
            "option 'maxOffsetsPerTrigger' is of a streaming query's micro-batches",
            "leave it out: endingOffsets and endingTimestamp end a batch read",
        )
    return SourceOptions(
        url=_url(given),
        stream=stream,
        partitions=names_of(given.get("partitions", "")),
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=_optional(given, "maxOffsetsPerTrigger", _positive),
        min_partitions=_optional(given, "minPartitions", _positive),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", True),
        include_headers=_boolean(given, "includeHeaders", False),
        group=_group(given, streaming=streaming),
        time_zone=_time_zone(given),
    )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked options of one write.

    Attributes:
        txn_id: the name under which the cluster keeps how far this is; "": a streaming query's own
            id, and nothing for a batch, which is written once.
        batch_id: of a batch write with a name: higher than that of the last one.
        reset: the query that this one takes the sink over from.
        kept_s: what is staged and not published goes after so long.
    """

    url: str
    stream: str
    txn_id: str
    batch_id: int
    reset: str
    kept_s: float
    codec: str


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check what the user gave; names in any case. Raises `RequestError` naming the option."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown({each: given[each] for each in given if each not in _OF_SPARK}, _KNOWN_TO_WRITE)
    txn_id = given.get("txnid", "")
    for name, is_wrong, way in (
        ("batchId", streaming, "Spark numbers a query's batches"),
        ("batchId", not txn_id, "it is of a write that has a txnId"),
        ("reset", not streaming, "it is for a streaming query"),
    ):
        if name.lower() in given and is_wrong:
            raise RequestError(f"option {name!r} has no place here", f"{way}: leave it out")
    if txn_id:
        check_name("txnId", txn_id)
    if txn_id and not streaming and "batchid" not in given:
        raise RequestError(
            f"option 'txnId' is {txn_id!r}, and 'batchId' is missing",
            "say which batch it is, higher than the last one's: the same is written once",
        )
    codec = given.get("codec", "none").lower()
    if codec not in CODECS:
        raise RequestError(f"option 'codec' is {codec!r}", f"use {' or '.join(CODECS)}")
    kept_s = _optional(given, "stagingTimeout", _seconds)
    return SinkOptions(
        url=_url(given),
        stream=_stream(given),
        txn_id=txn_id,
        batch_id=_optional(given, "batchId", _number) or 0,
        reset=given.get("reset", ""),
        kept_s=_KEPT_S if kept_s is None else kept_s,
        codec=codec,
    )


def _group(given: Mapping[str, str], *, streaming: bool) -> str:
    group = given.get("groupid", "")
    if group and not streaming:
        raise RequestError(
            "option 'groupId' is for a streaming query, whose progress it shows",
            "leave it out: a batch read has none",
        )
    return check_name("groupId", group) if group else ""


def _time_zone(given: Mapping[str, str]) -> str:
    name = given.get("timezone", "")
    if name:
        # Here, because it loads Arrow.
        from hadron.spark.zones import zone_of

        try:
            zone_of(name)
        except RequestError:
            raise RequestError(
                f"option 'timeZone' is {name!r}", "use a name such as Europe/Berlin, or +02:00"
            ) from None
    return name


def _stream(given: Mapping[str, str]) -> str:
    stream = given.get("stream")
    if not stream:
        raise RequestError("option 'stream' is missing", 'add .option("stream", "<name>")')
    return check_name("stream", stream)


def _refuse_unknown(given: Mapping[str, str], names: Sequence[str]) -> None:
    """A misspelt option would be ignored silently otherwise."""
    known = {name.lower() for name in names}
    unknown = sorted(set(given) - known)
    if unknown:
        named = (f"{name!r}{_meant(name, names)}" for name in unknown)
        raise RequestError(f"unknown option {', '.join(named)}", f"known are {', '.join(names)}")


def _meant(unknown: str, names: Sequence[str]) -> str:
    """` (what to write instead)`, or ""."""
    way = _ELSEWHERE.get(unknown)
    return did_you_mean(unknown, names) if way is None else f" ({way})"


def _url(given: Mapping[str, str]) -> str:
    # Here, because it loads the whole client: finding the connector must stay quick.
    from hadron.client.connecting.contexts import find_server
    from hadron.client.connecting.url import parse_url

    url = find_server(given.get("server"))
    parse_url(url)
    namespace = given.get("namespace")
    if not namespace:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path="/" + check_name("namespace", namespace)))


def names_of(text: str) -> tuple[str, ...]:
    """What the option `partitions` names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _position(given: Mapping[str, str], which: str, default: str) -> Position:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if timestamp.lower() in given:
        if offsets.lower() in given:
            raise RequestError(f"both {offsets} and {timestamp} are given", "use one of them")
        return Position("timestamp", at_ms=_time_ms(timestamp, given[timestamp.lower()]))
    text = given.get(offsets.lower(), default).strip()
    if text.lower() == "earliest" and which == "starting":
        return Position("earliest")
    if text.lower() == "latest":
        return Position("latest")
    return Position("offsets", offsets=_offsets(offsets, text))


def _offsets(option: str, text: str) -> dict[str, int]:
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    good = (
        isinstance(parsed, dict)
        and parsed
        and all(type(offset) is int and offset >= _EARLIEST for offset in parsed.values())
    )
    if not good:
        words = "earliest, latest" if option.startswith("starting") else "latest"
        raise RequestError(
            f"option {option!r} is {text!r}",
            f'use {words}, or JSON such as {{"local/p0": 1000}}; -2 is earliest, -1 latest',
        )
    return dict(parsed)


def _optional(given: Mapping[str, str], name: str, read: Callable[[str, str], _T]) -> _T | None:
    text = given.get(name.lower())
    return None if text is None else read(name, text)


def _positive(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise RequestError(f"option {name!r} is {text!r}", "use a whole number above 0")
    return number


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) >> 63:
        raise RequestError(f"option {name!r} is {text!r}", "use a whole number from 0 on")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        found = parse_duration_ms(text) / 1_000
    except RequestError as error:
        raise RequestError(f"option {name!r} is {text!r}", error.hint) from None
    if not found:
        raise RequestError(f"option {name!r} is {text!r}", "use a time above 0, such as 1h")
    return found


def _time_ms(name: str, text: str) -> int:
    """Milliseconds since the Unix epoch, as Kafka's connector takes them, or an RFC 3339 time."""
    try:
        found = int(text) if text.strip().isdecimal() else parse_time_ms(text)
    except RequestError:
        found = 0
    if found < 1:
        raise RequestError(
            f"option {name!r} is {text!r}", f"use {TIME_FORM}, or milliseconds since 1970"
        )
    return found


def _boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise RequestError(f"option {name!r} is {text!r}", "use true or false")
    return text.lower() == "true"
