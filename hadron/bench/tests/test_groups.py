"""`hadron bench groups`, in small, against a node of its own."""

from __future__ import annotations

import dataclasses
import json

import click
import pytest
from click.testing import CliRunner

from hadron.bench import groups, noisy, parts
from hadron.bench.ground import Plan
from hadron.bench.parts import PARTS
from hadron.bench.report import Part, Verdict, middle_ratio, print_found, print_json, print_tables
from hadron.cli.bench_options import part_option

_PARTS = ("idle", "groups", "members", "stopped", "noisy", "log", "acknowledged")


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(parts, "GROUPS", (1, 2))
    monkeypatch.setattr(parts, "MEMBERS", (1, 3))
    monkeypatch.setattr(parts, "SHORT_LOG", 500)
    monkeypatch.setattr(parts, "_COST_RECORDS", 50)
    monkeypatch.setattr(parts, "_COST_ROUNDS", 1)
    monkeypatch.setattr(parts, "_STOPPED_ROUNDS", 1)
    monkeypatch.setattr(noisy, "_ROUNDS", 1)
    monkeypatch.setattr(noisy, "_RUN_IN_S", 0.05)
    monkeypatch.setattr(parts, "_SETTLE_S", 0.0)
    return Plan(
        nodes=1,
        record_bytes=100,
        durability="fsync",
        seconds=0.2,
        rounds=1,
        log_records=3_000,
        fill_s=30.0,
        idle_members=3,
        holes=100,
        parts=_PARTS,
    )


@pytest.mark.long
def test_every_figure_is_measured_and_every_bar_is_judged(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert groups.run(plan, "json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["short_log_records"], figures["long_log_records"]) == (500, 3_000)
    assert (figures["small_acknowledged"], figures["small_ranges"]) == (500, 500)
    # Of 2,820: the others are delivered one by one behind them.
    assert (figures["large_acknowledged"], figures["large_ranges"]) == (2_722, 98)
    assert figures["nothing_acknowledged"] == 0
    for name in (
        "groups_1_records_per_s",
        "groups_2_records_per_s",
        "groups_single_2_records_per_s",
        "members_3_records_per_s",
        "members_single_3_records_per_s",
        "alone_records_per_s",
        "silent_records_per_s",
        "frozen_records_per_s",
        "short_log_p50_us",
        "long_log_p50_us",
        "noisy_alone_sends_per_s",
        "noisy_nack_4_to_alone",
        "noisy_acknowledge_1_to_alone",
        "long_log_middle_p50_us",
        "nothing_p50_us",
        "small_p50_us",
        "large_p50_us",
    ):
        assert figures[name] > 0, name
    with_bar = [each for each in figures["verdicts"] if each["bar"]]
    assert len(with_bar) == 10
    assert all(each["met"] in (True, False) for each in with_bar)
    assert [each["met"] for each in figures["verdicts"] if not each["bar"]] == [None] * 4


def test_one_part_is_measured_alone(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert groups.run(dataclasses.replace(plan, parts=("log",)), "table") == 0
    shown = capsys.readouterr().out
    assert "3,000 records, at the end" in shown
    assert "idle member" not in shown


def test_the_command_knows_every_part() -> None:
    from hadron.cli.commands import bench

    assert tuple(PARTS) == bench._PARTS == _PARTS


def test_a_round_that_was_disturbed_counts_for_nothing() -> None:
    # The machine was slow in the second round, on both sides, and in the third on one.
    assert middle_ratio([100.0, 10.0, 20.0], [100.0, 10.0, 100.0]) == 1.0


def test_verdicts_say_what_was_missed_and_what_has_no_bar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = Part("Things", ("thing", "size"), [("door", "3")], {"door_size": 3.0})
    part.verdicts = [
        Verdict("a door", "3 m", "≤ 2 m", is_met=False),
        Verdict("a window", "1 m", "≤ 2 m", True),
        Verdict("a wall", "9 m"),
    ]
    print_tables([part], "measured here")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "measured here"
    for what, word in (("a door", "NOT MET"), ("a window", "met"), ("a wall", "shown")):
        (line,) = [line for line in shown if what in line]
        assert line.rstrip(" │").endswith(word)
    print_json([part], {"nodes": 1})
    found = json.loads(capsys.readouterr().out)
    assert (found["door_size"], found["nodes"]) == (3.0, 1)
    assert [each["met"] for each in found["verdicts"]] == [False, True, None]


def test_what_it_was_measured_with_is_told_in_both_forms(
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = Part("A part", ("what", "how much"), [("x", "1")], {"x": 1.0})
    setting = {"nodes": 3, "rounds": 2, "seconds": 0.5, "durability": "os"}
    print_found([part], "json", "3 node(s)", setting, 1.6, "through a door")
    told = json.loads(capsys.readouterr().out)
    assert (told["x"], told["nodes"], told["took_s"]) == (1.0, 3, 2)
    print_found([part], "table", "3 node(s)", setting, 1.6, "through a door")
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("3 node(s) on this machine (")
    assert (
        "), durability os; through a door; medians of 2 rounds, 0.5 s each; took 2 s A part"
    ) in shown


def test_all_parts_are_measured_where_none_is_named() -> None:
    @click.command()
    @part_option(("a", "b"))
    def command(parts: tuple[str, ...]) -> None:
        click.echo(",".join(parts))

    runner = CliRunner()
    assert runner.invoke(command, []).output == "a,b\n"
    assert runner.invoke(command, ["--part", "b"]).output == "b\n"
    assert runner.invoke(command, ["--part", "c"]).exit_code == 2
