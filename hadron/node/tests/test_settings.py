"""Settings: one table, its help, the file's keys and the environment's overrides."""

from __future__ import annotations

import pytest

from hadron.model.errors import ConfigurationError
from hadron.model.limits import MAX_PENDING_BYTES
from hadron.model.marked_fields import Fields
from hadron.model.marked_yaml import parse_yaml
from hadron.model.problems import Problems
from hadron.node.settings import (
    Settings,
    describe_settings,
    read_settings,
    settings_from_environment,
    settings_to_file,
    unknown_variables,
)


def _read(text: str, environ: dict[str, str] | None = None) -> tuple[Settings, list[str]]:
    problems = Problems("f.yaml")
    (root,) = parse_yaml(text, problems)
    settings = read_settings(Fields(root, problems), environ or {}, problems)
    return settings, problems.lines()


def test_defaults() -> None:
    assert Settings() == Settings(
        durability="fsync",
        keepalive_s=5.0,
        silence_limit_s=15.0,
        max_pending_bytes=MAX_PENDING_BYTES,
        checkpoint_bytes=4 << 20,
        reader_threads=2,
        replication_window_bytes=8 << 20,
        idle_commit_notice_s=0.005,
        log_level="info",
        log_format="text",
    )


def test_every_setting_is_described_as_the_file_has_it() -> None:
    described = describe_settings()
    assert [each.name for each in described] == [
        "durability",
        "keepalive",
        "silence_limit",
        "max_pending_bytes",
        "checkpoint_bytes",
        "reader_threads",
        "replication_window_bytes",
        "idle_commit_notice",
        "log_keep_bytes",
        "log_max_lag_bytes",
        "disk_reserve_bytes",
        "state_digest_interval",
        "scrub_interval",
        "scrub_bytes_per_second",
        "log_level",
        "log_format",
    ]
    for each in described:
        assert each.variable == f"HADRON_{each.name.upper()}"
        assert each.help.endswith(".")
        assert each.allowed
        assert each.type in ("choice", "duration", "size", "whole number")
        # The default as described is the default as it is.
        settings, problems = _read(f"{each.name}: {each.default}\n")
        assert (settings, problems) == (Settings(), [])


def test_the_file_sets_and_the_environment_overrides() -> None:
    settings, problems = _read(
        "durability: os\nkeepalive: 100ms\nreader_threads: 4\n",
        {"HADRON_KEEPALIVE": "2s", "HADRON_CHECKPOINT_BYTES": "1MiB", "HADRON_URL": "hadron://x"},
    )
    assert problems == []
    assert settings == Settings(
        durability="os", keepalive_s=2.0, reader_threads=4, checkpoint_bytes=1 << 20
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("durability: fsnc", "'fsnc' is unknown (did you mean 'fsync'?), expected fsync or os"),
        ("durability: ''", "'' is unknown, expected fsync or os"),
        ("keepalive: 5", "'5' is not a duration, expected a duration such as 500ms"),
        ("keepalive: 0s", "'0s' is out of range, expected 100ms to 1h"),
        ("idle_commit_notice: 11ms", "'11ms' is out of range, expected 0s to 10ms"),
        ("checkpoint_bytes: 1", "'1' is out of range, expected 64KiB to 1TiB"),
        ("checkpoint_bytes: lots", "'lots' is not a size, expected a size such as 512"),
        ("max_pending_bytes: 1MiB", "'1MiB' is out of range, expected 2MiB to 1TiB"),
        ("reader_threads: 0", "'0' is out of range, expected 1 to 64"),
        ("reader_threads: two", "'two', expected a whole number"),
        ("log_level: loud", "'loud' is unknown, expected debug, info, warning or error"),
    ],
)
def test_a_bad_value_is_refused_in_file_and_environment(text: str, expected: str) -> None:
    name, value = text.split(": ")
    _, problems = _read(f"# a comment\n{text}\n")
    assert len(problems) == 1
    assert problems[0].startswith(f"f.yaml:2: {name}: {expected}")
    variable = f"HADRON_{name.upper()}"
    with pytest.raises(ConfigurationError) as caught:
        settings_from_environment({variable: value.strip("'")})
    assert caught.value.message.startswith(f"environment variable {variable}: {expected}")


def test_a_list_is_no_setting() -> None:
    _, problems = _read("log_level: [info]")
    assert problems == ["f.yaml:1: log_level is a list, expected debug, info, warning or error"]


def test_a_peer_may_be_silent_for_longer_than_between_pings() -> None:
    told = "silence_limit 15s is not longer than keepalive, expected more than 20s"
    assert _read("\nkeepalive: 20s\n")[1] == [f"f.yaml:2: {told}"]
    assert _read("log_level: info", {"HADRON_KEEPALIVE": "20s"})[1] == [
        f"environment variable HADRON_KEEPALIVE: {told}"
    ]
    # One mistake is told once.
    assert len(_read("keepalive: 20s\nsilence_limit: 1 minute\n")[1]) == 1


def test_only_what_differs_is_written() -> None:
    assert settings_to_file(Settings()) == {}
    changed = Settings(keepalive_s=0.25, max_pending_bytes=64 << 20, log_format="json")
    assert settings_to_file(changed) == {
        "keepalive": "250ms",
        "max_pending_bytes": "64MiB",
        "log_format": "json",
    }


def test_a_reserve_has_room_for_a_checkpoint() -> None:
    told = (
        "disk_reserve_bytes {} is less than a checkpoint needs on a full disk, with "
        "checkpoint_bytes {}, expected {} or more, or 0 for no reserve"
    )
    assert _read("disk_reserve_bytes: 31MiB")[1] == [
        f"f.yaml:1: {told.format('31MiB', '4MiB', '32MiB')}"
    ]
    assert _read("checkpoint_bytes: 64MiB")[1] == [
        f"f.yaml:1: {told.format('128MiB', '64MiB', '512MiB')}"
    ]
    assert _read("{}", {"HADRON_DISK_RESERVE_BYTES": "1"})[1] == [
        f"environment variable HADRON_DISK_RESERVE_BYTES: {told.format('1', '4MiB', '32MiB')}"
    ]
    for good in (
        "disk_reserve_bytes: 32MiB",
        "disk_reserve_bytes: 0",
        "{disk_reserve_bytes: 8MiB, checkpoint_bytes: 1MiB}",
    ):
        assert _read(good)[1] == []


def test_variables_that_nothing_reads_are_named() -> None:
    environ = {
        "HADRON_URL": "x",
        "HADRON_CONTEXT": "x",
        "HADRON_CHECKPOINTS": "x",
        "HADRON_DURABILITY": "os",
        "PATH": "x",
        "HADRON_KEEPALIVE_S": "5",
        "HADRON_XYZZY": "",
    }
    assert unknown_variables(environ) == [
        "HADRON_KEEPALIVE_S is no variable that hadron knows (did you mean 'HADRON_KEEPALIVE'?)",
        "HADRON_XYZZY is no variable that hadron knows",
    ]
