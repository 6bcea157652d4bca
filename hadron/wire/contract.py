"""The published contract: names and numbers of proto/, and whether a newer one still has them all.

`proto/released.json` is what the last release promised. Programs were built with it, so nothing
that is in it may go or become something else; adding is always right. `make release-contract`
writes it anew, on purpose, when there is a release.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from hadron.wire._pb import calls_pb2, frames_pb2, messages_pb2, records_pb2, stages_pb2
from hadron.wire.messages import METHODS, Audience, files

Contract = Mapping[str, Mapping[str, Any]]
"""For messages, enums and methods: by full name, what is promised of each."""

DOOR_FILES: Final = tuple(
    each.DESCRIPTOR for each in (calls_pb2, frames_pb2, messages_pb2, records_pb2, stages_pb2)
)
"""Of services that only a door has: their methods have names, and no numbers."""

RELEASED: Final = Path(__file__).parents[2] / "proto" / "released.json"


def contract() -> Contract:
    """That of the code at hand, as far as it is for clients to rely on. Deterministic."""
    found: dict[str, dict[str, Any]] = {"messages": {}, "enums": {}, "methods": {}}
    for file in (*files(), *DOOR_FILES):
        for message in file.message_types_by_name.values():
            _add_message(found, message)
        for enum in file.enum_types_by_name.values():
            _add_enum(found, enum)
        found["methods"].update(_methods(file))
    return {kind: dict(sorted(each.items())) for kind, each in found.items()}


def broken(released: Contract, now: Contract) -> list[str]:
    """What was promised and is not so any more, a sentence each."""
    found: list[str] = []
    for kind, names in released.items():
        for name, promised in names.items():
            there = now[kind].get(name)
            one = kind.removesuffix("s")
            if there is None:
                found.append(f"{one} {name} is gone, which programs were built with")
                continue
            for part, was in promised.items():
                if part not in there:
                    found.append(f"{name}.{part} is gone, which programs were built with")
                elif there[part] != was:
                    found.append(f"{name}.{part} was {_said(was)} and is {_said(there[part])} now")
    return found


def text_of(found: Contract) -> str:
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _said(what: Any) -> str:
    return " ".join(map(str, what)) if isinstance(what, list) else str(what)


def _add_message(found: dict[str, dict[str, Any]], message: Descriptor) -> None:
    found["messages"][message.full_name] = {
        field.name: [field.number, _type_of(field)] for field in message.fields
    }
    for nested in message.nested_types:
        _add_message(found, nested)
    for enum in message.enum_types:
        _add_enum(found, enum)


def _add_enum(found: dict[str, dict[str, Any]], enum: EnumDescriptor) -> None:
    found["enums"][enum.full_name] = {value.name: value.number for value in enum.values}


def _type_of(field: FieldDescriptor) -> str:
    kind = field.message_type or field.enum_type
    name = kind.full_name if kind is not None else _SCALARS[field.type]
    return f"repeated {name}" if field.is_repeated else name


def _methods(file: FileDescriptor) -> Iterator[tuple[str, dict[str, Any]]]:
    numbers = {f"{each.service}.{each.name}": each for each in METHODS.values()}
    for service in file.services_by_name.values():
        for method in service.methods:
            numbered = numbers.get(f"{service.name}.{method.name}")
            if numbered is not None and numbered.audience is not Audience.CLIENTS:
                continue
            yield (
                method.full_name,
                {
                    "number": numbered.number if numbered is not None else 0,
                    "request": _side(method.input_type, method.client_streaming),
                    "response": _side(method.output_type, method.server_streaming),
                },
            )


def _side(message: Descriptor, streams: bool) -> str:
    return f"stream of {message.full_name}" if streams else message.full_name


_SCALARS: Final = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the contract down as released; `arguments` are `sys.argv`'s unless given."""
    parser = argparse.ArgumentParser(
        prog="python -m hadron.wire.contract",
        description=f"Promise proto/ as it is at hand: writes {RELEASED.name} anew.",
    )
    parser.parse_args(arguments)
    RELEASED.write_text(text_of(contract()))
    sys.stdout.write(f"{RELEASED} is what is at hand now\n")


if __name__ == "__main__":
    main()
