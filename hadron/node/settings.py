"""The settings of a node: one table of name, type, default, bounds and help.

A setting is a top-level key of the configuration file (`durability: fsync`), and an environment
variable `HADRON_<NAME>` overrides it. The table is the dataclass below: `hadron node --settings`,
the parser and the typed values all come from it, so that a setting cannot exist without its help.
Defaults are written as a user would write them and go through the same parser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from hadron.model.errors import ConfigurationError, RequestError
from hadron.model.limits import MAX_BATCH_BYTES, MAX_PENDING_BYTES
from hadron.model.marked_fields import Fields, parse_whole
from hadron.model.problems import Problems, did_you_mean, one_of, shorten
from hadron.model.units import format_duration, format_size, parse_duration_ms, parse_size
from hadron.storage.space import least_reserve

VARIABLE_PREFIX: Final = "HADRON_"
_OTHER_VARIABLES: Final = ("HADRON_URL", "HADRON_CONTEXT", "HADRON_CHECKPOINTS")
"""What clients and commands read."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How one type of setting is read and written; `parse` raises `RequestError`."""

    name: str
    unit: str
    allowed: str
    parse: Callable[[str], Any]
    format: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """One row of `hadron node --settings`: everything as the file has it."""

    name: str
    type: str
    """"choice", "duration", "size" or "whole number"."""
    unit: str
    """The units that a value may be written in; "" when it has none."""
    allowed: str
    """The values it may have: `fsync or os`, `100ms to 1h`."""
    default: str
    help: str
    variable: str
    """The environment variable that overrides it."""
    attribute: str
    """Its name in `Settings`, where durations are seconds and sizes bytes."""


def _choice(*words: str) -> Kind:
    def parse(text: str) -> str:
        if text not in words:
            found = f"{shorten(text)} is unknown{did_you_mean(text, words)}"
            raise RequestError(found, f"expected {one_of(words)}")
        return text

    return Kind("choice", "", one_of(words), parse, str)


def _between(
    least: int, most: int, parse: Callable[[str], int], allowed: str
) -> Callable[[str], int]:
    def parse_bounded(text: str) -> int:
        value = parse(text)
        if not least <= value <= most:
            raise RequestError(f"{shorten(text)} is out of range", f"expected {allowed}")
        return value

    return parse_bounded


def _duration(least: str, most: str) -> Kind:
    """Seconds, as the timers of anyio and trio take them."""
    allowed = f"{least} to {most}"
    bounds = parse_duration_ms(least), parse_duration_ms(most)
    parse_ms = _between(*bounds, parse_duration_ms, allowed)
    return Kind(
        "duration",
        "ms, s, m, h or d",
        allowed,
        lambda text: parse_ms(text) / 1_000,
        lambda seconds: format_duration(round(seconds * 1_000)),
    )


def _size(least: int, most: int) -> Kind:
    allowed = f"{format_size(least)} to {format_size(most)}"
    parse = _between(least, most, parse_size, allowed)
    return Kind("size", "bytes, kB, KiB, MB, MiB, GB, GiB, TB or TiB", allowed, parse, format_size)


def _count(least: int, most: int) -> Kind:
    allowed = f"{least} to {most}"
    return Kind("whole number", "", allowed, _between(least, most, parse_whole, allowed), str)


def _setting(default: str, kind: Kind, help: str) -> Any:
    return field(
        default=kind.parse(default), metadata={"default": default, "kind": kind, "help": help}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting's value. Attributes end in their unit; the file's keys do not have `_s`."""

    durability: str = _setting(
        "fsync",
        _choice("fsync", "os"),
        "What an acknowledged record survives. fsync: power loss, every commit is flushed to the "
        "disk. os: crashes of processes only, nothing is flushed on the write path; a replica set "
        "of one node flushes always.",
    )
    keepalive_s: float = _setting(
        "5s",
        _duration("100ms", "1h"),
        "How long a connection may be quiet before a ping is sent on it.",
    )
    silence_limit_s: float = _setting(
        "15s",
        _duration("200ms", "1d"),
        "How long a peer may be silent, pings included, before its connection is given up. "
        "Must be longer than keepalive.",
    )
    max_pending_bytes: int = _setting(
        format_size(MAX_PENDING_BYTES),
        _size(MAX_BATCH_BYTES, 1 << 40),
        "Commands accepted but not yet written; beyond it, connections are not read any more.",
    )
    checkpoint_bytes: int = _setting(
        "4MiB",
        _size(64 << 10, 1 << 40),
        "Size of the write-ahead log at which it is copied into the database file, in the "
        "background. Smaller keeps files smaller, larger writes less.",
    )
    reader_threads: int = _setting(
        "2", _count(1, 64), "Threads that read from the database file for fetches and queries."
    )
    replication_window_bytes: int = _setting(
        "8MiB",
        _size(MAX_BATCH_BYTES, 1 << 40),
        "Log entries sent to one replica and not yet confirmed by it.",
    )
    idle_commit_notice_s: float = _setting(
        "5ms",
        # PROTOCOL A1: a replica applies committed entries within 10 ms when idle.
        _duration("0s", "10ms"),
        "How long a leader that has nothing to send waits before it tells replicas that the "
        "watermark moved.",
    )
    log_keep_bytes: int = _setting(
        "64MiB",
        _size(64 << 10, 1 << 40),
        "Newest part of the log that is kept even when every member has it, so that a node which "
        "comes back soon is fed from the log.",
    )
    log_max_lag_bytes: int = _setting(
        "1GiB",
        _size(64 << 10, 1 << 50),
        "How much log is kept for a member that is away or behind. Beyond it the log is trimmed "
        "all the same, and the member needs a snapshot when it comes back.",
    )
    disk_reserve_bytes: int = _setting(
        "128MiB",
        _size(0, 1 << 43),
        "Room on the disk below which records are refused, so that acknowledgements and retention, "
        "which make room, still have some. Writing goes on by itself when there is more. At least "
        f"{least_reserve(1)} times checkpoint_bytes, for a checkpoint; 0: none.",
    )
    state_digest_interval_s: float = _setting(
        "10s",
        _duration("0s", "1d"),
        "How long after a change the leader logs a digest of some rows, which every replica "
        "compares with its own: one whose tables have come to differ takes a snapshot. 0s: never.",
    )
    scrub_interval_s: float = _setting(
        "1d",
        _duration("0s", "365d"),
        "How often a node reads all that it has on disk and compares it with its checksums and its "
        "hash chain, in the background. What is damaged is repaired from other members. 0s: never.",
    )
    scrub_bytes_per_second: int = _setting(
        "8MiB",
        _size(64 << 10, 1 << 40),
        "How many bytes of log it reads in a second while it does that.",
    )
    log_level: str = _setting(
        "info",
        _choice("debug", "info", "warning", "error"),
        "The least severe messages that are logged.",
    )
    log_format: str = _setting(
        "text",
        _choice("text", "json"),
        "How log lines are written: for people, or one JSON object per line.",
    )


def describe_settings() -> list[SettingDescription]:
    """Every setting, in the table's order."""
    described = []
    for row in fields(Settings):
        kind, name = _kind_of(row), row.name.removesuffix("_s")
        described.append(
            SettingDescription(
                name=name,
                type=kind.name,
                unit=kind.unit,
                allowed=kind.allowed,
                default=row.metadata["default"],
                help=row.metadata["help"],
                variable=VARIABLE_PREFIX + name.upper(),
                attribute=row.name,
            )
        )
    return described


def read_settings(
    document: Fields | None, environ: Mapping[str, str], problems: Problems
) -> Settings:
    """The settings of a file, overridden by the environment; mistakes go to `problems`.

    Args:
        document: the file's top-level keys; None when there is no file.
        environ: the environment's variables; those that are not settings are ignored here (see
            `unknown_variables`).
    """
    values: dict[str, Any] = {}
    noted = len(problems)
    for row, described in zip(fields(Settings), describe_settings(), strict=True):
        kind = _kind_of(row)
        if document is not None:
            values[row.name] = document.parsed(
                described.name, kind.parse, row.default, kind.allowed
            )
        override = environ.get(described.variable)
        if override is None:
            continue
        try:
            values[row.name] = kind.parse(override)
        except RequestError as error:
            expected = error.hint.removeprefix("expected ")
            where = f"environment variable {described.variable}"
            problems.add_at(where, error.message.removesuffix(f" is not {expected}"), expected)
    settings = replace(Settings(), **values)
    if len(problems) == noted:
        _check_together(settings, document, environ, problems)
    return settings


def settings_from_environment(environ: Mapping[str, str]) -> Settings:
    """Defaults overridden by `HADRON_…` variables, for a node without a file.

    Raises `ConfigurationError` naming each variable with a bad value.
    """
    problems = Problems("the environment")
    settings = read_settings(None, environ, problems)
    problems.raise_as(ConfigurationError)
    return settings


def settings_to_file(settings: Settings) -> dict[str, str]:
    """The settings that differ from their defaults, as the file's keys and values."""
    return {
        row.name.removesuffix("_s"): _kind_of(row).format(getattr(settings, row.name))
        for row in fields(Settings)
        if getattr(settings, row.name) != row.default
    }


def _check_together(
    settings: Settings, document: Fields | None, environ: Mapping[str, str], problems: Problems
) -> None:
    if settings.silence_limit_s <= settings.keepalive_s:
        _note_together(
            ("silence_limit", "keepalive"),
            f"silence_limit {settings.silence_limit_s:g}s is not longer than keepalive",
            f"more than {settings.keepalive_s:g}s",
            document,
            environ,
            problems,
        )
    least = least_reserve(settings.checkpoint_bytes)
    if 0 < settings.disk_reserve_bytes < least:
        _note_together(
            ("disk_reserve_bytes", "checkpoint_bytes"),
            f"disk_reserve_bytes {format_size(settings.disk_reserve_bytes)} is less than a "
            f"checkpoint needs on a full disk, with checkpoint_bytes "
            f"{format_size(settings.checkpoint_bytes)}",
            f"{format_size(least)} or more, or 0 for no reserve",
            document,
            environ,
            problems,
        )


def _note_together(
    pair: tuple[str, str],
    found: str,
    expected: str,
    document: Fields | None,
    environ: Mapping[str, str],
    problems: Problems,
) -> None:
    """Where people set one of the two."""
    set_in_file = [key for key in pair if document is not None and document.has(key)]
    overridden = [name for key in pair if (name := VARIABLE_PREFIX + key.upper()) in environ]
    if overridden:
        problems.add_at(f"environment variable {overridden[0]}", found, expected)
    elif document is not None and set_in_file:
        document.note(set_in_file[0], found, expected)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like Hadron's and that nothing reads, each as a sentence."""
    known = {*_OTHER_VARIABLES, *(each.variable for each in describe_settings())}
    return [
        f"{name} is no variable that hadron knows{did_you_mean(name, known)}"
        for name in sorted(environ)
        if name.startswith(VARIABLE_PREFIX) and name not in known
    ]


def _kind_of(row: Any) -> Kind:
    kind = row.metadata["kind"]
    assert isinstance(kind, Kind), row
    return kind
