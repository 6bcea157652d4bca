"""Endpoints and values of calls, on the command line and through pipes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

if TYPE_CHECKING:
    from hadron.client import Client
    from hadron.model.services import EndpointSpec

format_option: Final = click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "json", "text", "raw"]),
    default="auto",
    show_default=True,
    help="What a value is made of: auto is JSON where it is some, else text; raw is bytes, as they "
    "are.",
)


def parse(data: bytes, form: str, where: str) -> Any:
    """The value that `data` stands for. Raises `InvalidRecordError` naming `where`."""
    from hadron.model.errors import InvalidRecordError

    if form == "raw":
        return data
    try:
        if form != "text":
            return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if form == "json":
            raise InvalidRecordError(
                f"{where} is no JSON: {error}", "quote it for the shell, or give --format text"
            ) from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        if form == "auto":
            return data
        raise InvalidRecordError(f"{where} is not UTF-8", "give --format raw") from None


def written(value: Any, form: str) -> bytes:
    """As it is printed, and given to a program: bytes and, unless JSON is asked for, text as they
    are; else JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and form != "json":
        return value.encode(errors="surrogateescape")
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


def line(value: Any) -> bytes:
    """As a line of its own among others: text as JSON, too, so that its lines are one."""
    return json.dumps(plain(value), ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def plain(value: Any) -> Any:
    """As JSON can have it: bytes are text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


async def declared(client: Client, name: str) -> EndpointSpec:
    """Raises `NotFoundError`."""
    from hadron.model.services import EndpointSpec

    found = await client.objects("Endpoint", client.namespace, name)
    if not found:
        # It says what there is.
        await client.endpoints(name)
    spec = found[0].spec
    assert isinstance(spec, EndpointSpec)
    return spec


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Commands, and callers, are told of one error."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
