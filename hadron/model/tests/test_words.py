"""Numbers in sentences."""

from __future__ import annotations

from hadron.model.words import counted, with_article


def test_what_is_counted_agrees_with_its_number() -> None:
    assert [counted(number, "record") for number in (0, 1, 2, 1_000_000)] == [
        "0 records",
        "1 record",
        "2 records",
        "1,000,000 records",
    ]
    assert counted(1, "batch was", "batches were") == "1 batch was"
    assert counted(2, "batch was", "batches were") == "2 batches were"


def test_a_name_has_its_article() -> None:
    assert [with_article(each) for each in ("int", "str", "Event", "uint8", "")] == [
        "an int",
        "a str",
        "an Event",
        "a uint8",
        "a ",
    ]
