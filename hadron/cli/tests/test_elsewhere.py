"""What people type who know other tools: the answer names what there is here."""

from __future__ import annotations

import re

import click
import pytest

from hadron.cli import main
from hadron.cli.elsewhere import _COMMANDS, _OPTIONS
from hadron.cli.root import root


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topic", "list"], "no such command 'topic' (`hadron get streams` lists them, "),
        (["start"], "no such command 'start' (`hadron dev` runs one node, "),
        (["pipeline", "list"], "no such command 'list' (`hadron pipeline show` shows all)"),
        (["pipeline", "describe", "p"], "(`hadron describe pipeline NAME` shows one, `hadron "),
        (["group", "show", "g"], "no such command 'show' (`hadron group describe` shows one)"),
        (["pub", "s", "-f", "x.csv"], "no such option '-f' (--file is -l)"),
        (["read", "s", "-n", "1"], "no such option '-n' (--limit is -c)"),
        (["group", "lsit"], "no such command 'lsit' (did you mean 'list'?)"),
    ],
)
def test_what_has_another_name_here_is_answered_with_it(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_the_answers_name_what_there_is_for_what_there_is_not() -> None:
    known = names_of(root, "hadron")
    for group, answers in _COMMANDS.items():
        assert not known & {f"{group} {name}" for name in answers}
        for answer in answers.values():
            for named in re.findall(r"`(hadron(?: [a-z]+)+)", answer):
                assert named in known or named.rpartition(" ")[0] in known, answer
    assert known >= _OPTIONS.keys()


def names_of(command: click.Command, path: str) -> set[str]:
    found = {path}
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            found |= names_of(below, f"{path} {name}")
    return found
