"""Which calls an endpoint's declaration allows: clients and leaders look before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from hadron.model.errors import RequestError
from hadron.model.services import SINGLE, STREAM, EndpointSpec


def misfit(
    label: str, spec: EndpointSpec, *, has_value: bool, is_single: bool
) -> RequestError | None:
    """What is wrong with a call of an endpoint that is declared so; None where nothing is.

    Args:
        label: what people call the endpoint.
        has_value: the call is one value, and not values that follow.
        is_single: its caller takes one value as the answer, as `client.call` does.
    """
    shape = f"{label} (input: {spec.input}, output: {spec.output})"
    if has_value and spec.input == STREAM:
        return RequestError(
            f"{shape} takes a stream, and was called with one value: it was not run",
            "open `client.call_stream(NAME)` without a value, and send what goes in (over gRPC: "
            "CallStream)",
        )
    if is_single and spec.output == STREAM:
        return RequestError(
            f"{shape} answers with a stream, and was called for one value: it was not run",
            "use `client.call_stream(NAME, value)`, and loop over it (over gRPC: CallStream)",
        )
    if not has_value and spec.input == SINGLE:
        return RequestError(
            f"{shape} takes one value, and a stream was begun: it was not run",
            "give the value: `client.call_stream(NAME, value)`; or declare `input: stream`",
        )
    return None


def header_bytes(headers: Mapping[str, str]) -> int:
    """What a call's headers, or an answer's, are counted by."""
    return sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
