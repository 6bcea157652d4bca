"""Publishing from the command line: conditions, the latest record of a key, and what values are."""

from __future__ import annotations

import pytest

from hadron.cli.tests.test_live import good, run

pytestmark = pytest.mark.usefixtures("environment")


def test_a_record_on_a_condition() -> None:
    good("create", "stream", "accounts", "--keys", "indexed")
    assert "keys: indexed" in good("get", "stream", "accounts", "-o", "yaml")
    publish = ("pub", "accounts", "--key", "anna")
    good(*publish, "+5", "--expect-key-offset", "-1")
    refused = run(*publish, "+7", "--expect-key-offset", "-1")
    assert refused.returncode != 0
    assert "is at offset 0, and there should be none" in refused.stderr
    good(*publish, "+7", "--expect-key-offset", "0", "--expect-offset", "1")
    assert good("read", "accounts", "--latest-of", "anna") == "+7\n"
    assert good("read", "accounts", "--latest-of", "anna", "-f", "%o %k\\n") == "1 anna\n"
    nobody = run("read", "accounts", "--latest-of", "bert")
    assert nobody.returncode != 0
    assert "no record with the key 'bert'" in nobody.stderr


def test_what_makes_no_sense() -> None:
    several = run("pub", "accounts", "a", "b", "--expect-offset", "1")
    assert "a condition is for one VALUE" in several.stderr
    both = run("read", "accounts", "--latest-of", "k", "--limit", "1")
    assert "--latest-of is one record" in both.stderr


def test_who_sends_json_as_text_is_told() -> None:
    good("create", "stream", "carts")
    for value, form, is_told in (
        ('{"n": 1}', (), True),
        ('{"n": 1}', ("--format", "jsonl"), False),
        ('{"n": 1}', ("--format", "lines"), False),
        ("{n}", (), False),
        ("1", (), False),
        ("[" * 100_000, (), False),
    ):
        said = run("pub", "carts", value, *form)
        assert said.returncode == 0
        assert ("note: sent as text; --format jsonl" in said.stderr) is is_told, value


def test_whose_input_is_json_and_sent_as_text_is_told() -> None:
    good("create", "stream", "baskets")
    for content, form, is_told in (
        ('{"n": 1}\ntext\n', (), True),
        ('text\n{"n": 1}\n', (), False),
        ('{"n": 1}\n', ("--format", "lines"), False),
        ("", (), False),
    ):
        said = run("pub", "baskets", *form, stdin=content)
        assert said.returncode == 0
        assert ("note: sent as text; --format jsonl" in said.stderr) is is_told, content
