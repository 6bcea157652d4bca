"""Errors as people of the command line read them: with its options in place of parameters.

An error names a parameter as all doors have it, `allow_destructive`: an argument of programs, a
parameter over HTTP, a field over gRPC. Only here it is an option, and only of the command that was
given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import click

_NAMED: Final = re.compile(r"`([a-z][a-z0-9_]*)`")


def flags_of(command: click.Command) -> dict[str, str]:
    """Its options by the names of their parameters."""
    return {
        each.name: max(each.opts, key=len)
        for each in command.params
        if isinstance(each, click.Option) and each.name
    }


def in_flags(text: str, flags: Mapping[str, str]) -> str:
    return _NAMED.sub(lambda found: flags.get(found[1], found[0]), text)
