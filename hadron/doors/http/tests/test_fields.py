"""What a parameter that is wrong has to be is said, of every one that the door has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from hadron.doors.http import fields
from hadron.doors.http.call import Call
from hadron.doors.http.table import OPERATIONS
from hadron.model.errors import RequestError

CHECKED = [
    (kind, name)
    for kind in dict.fromkeys(each.query for each in OPERATIONS)
    for name, its in (fields.schemas(kind)[0].items() if kind.__struct_fields__ else ())
    if its.get("type") != "string"
]


@pytest.mark.parametrize(
    ("path", "name", "given", "form"),
    [
        ("endpoints/e", "timeout_s", "abc", "a number from 0.001 to 86400"),
        ("endpoints/e", "timeout_s", "0", "a number from 0.001 to 86400"),
        ("endpoints/e", "timeout_s", "nan", "a number from 0.001 to 86400"),
        ("streams/s", "expect_key_offset", "-2", f"a whole number from -1 to {(1 << 63) - 1}"),
        ("streams/s", "timestamp_ms", "9" * 30, "a whole number from -92"),
        ("streams/s", "lines", "rows", "records or values"),
        ("exchanges/x", "logged", "maybe", "true or false"),
    ],
)
async def test_what_is_wrong_is_told_with_what_is_right(
    http: httpx.AsyncClient, path: str, name: str, given: str, form: str
) -> None:
    answer = await http.post(f"/v1/{path}", params={name: given}, json=1)
    assert answer.status_code == 400
    told = answer.json()
    assert told["detail"].startswith(f"the parameter {name} is '{given}'")
    assert f"and has to be {form}" in told["detail"]
    assert told["hint"].startswith(f"{name}: ")


@pytest.mark.parametrize(("kind", "name"), CHECKED)
def test_every_parameter_that_has_a_form_names_it(kind: type[Any], name: str) -> None:
    asking = cast(Call, SimpleNamespace(scope={"query_string": f"{name}=%3F".encode()}))
    with pytest.raises(RequestError) as caught:
        Call.query(asking, kind)
    assert caught.value.message == (
        f"the parameter {name} is '?', and has to be {fields.form(kind, name)}"
    )
    assert caught.value.hint.startswith(f"{name}: ")
