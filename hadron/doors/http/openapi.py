"""The door's OpenAPI document, made of the table of operations: what is served is what it says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from starlette.responses import Response

from hadron.doors.http import fields
from hadron.doors.http.call import Call, NoQuery, json_response
from hadron.doors.http.door import Door
from hadron.doors.http.live import EVENTS
from hadron.doors.http.operations import Operation
from hadron.doors.http.problems import CONTENT_TYPE, Problem
from hadron.model.limits import MAX_OFFSET
from hadron.model.version import VERSION

_ERRORS: Final = (400, 403, 404, 405, 408, 413, 414, 421, 429, 431, 500, 502, 503, 504)
"""Statuses of problems that any operation may have."""

_REFERENCES: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_EXAMPLES: Final = {"endpoint": "quote", "exchange": "prices"}
"""Of names in paths, as docs/HTTP.md has them."""

_DESCRIPTION: Final = (
    "Streams, groups, calls and messages. docs/HTTP.md has the rules. HEAD is answered where GET "
    f"is, with its head; but 405 for answers that go on ({EVENTS})."
)

_OFFSETS: Final = {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET}
_NAMES: Final = {"type": "string", "pattern": "^[-_.a-zA-Z0-9]+$", "maxLength": 100}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    structs = list(dict.fromkeys([Problem, *_structs(operations)]))
    schemas, components = msgspec.json.schema_components(structs, ref_template=_REFERENCES)
    known = dict(zip(structs, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        path = _PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hadron",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _structs(operations: Iterable[Operation]) -> list[type[Any]]:
    contents = [each for one in operations for each in (*one.body.values(), *one.answer.values())]
    flat = [each for one in contents for each in (one if isinstance(one, tuple) else (one,))]
    return [each for each in flat if isinstance(each, type)]


def _operation(operation: Operation, known: dict[Any, Any]) -> dict[str, Any]:
    problem = {
        "description": "What is wrong.",
        "content": {CONTENT_TYPE: {"schema": known[Problem]}},
    }
    answer: dict[str, Any] = {"description": "Done."}
    if operation.answer:
        answer["content"] = _content(operation.answer, known)
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path(operation.path), *_query(operation.query), *_headers(operation)],
        "responses": {
            "200" if operation.answer else "204": answer,
            **{str(each): problem for each in sorted({*_ERRORS, *operation.errors})},
        },
    }
    if operation.body:
        described["requestBody"] = {
            "required": operation.needs_body,
            "content": _content(operation.body, known),
        }
    return described


def _content(contents: Any, known: dict[Any, Any]) -> dict[str, Any]:
    return {media: {"schema": _schema(content, known)} for media, content in contents.items()}


def _schema(content: Any, known: dict[Any, Any]) -> Any:
    if isinstance(content, tuple):
        return {"anyOf": [known[each] for each in content]}
    return known[content] if isinstance(content, type) else content


def _path(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _OFFSETS if name == "offset" else _NAMES,
            **({"example": _EXAMPLES[name]} if name in _EXAMPLES else {}),
        }
        for name in _PARAMETER.findall(path)
    ]


def _query(kind: type[Any]) -> list[dict[str, Any]]:
    """A struct's fields as parameters, with what its docstring says of them."""
    said = fields.purposes(kind)
    properties, required = fields.schemas(kind)
    found = []
    for name, its in properties.items():
        parameter: dict[str, Any] = {"name": name, "in": "query", "required": name in required}
        parameter["schema"] = {key: value for key, value in its.items() if key != "default"}
        if its.get("default") not in (None, ""):
            parameter["schema"]["default"] = its["default"]
        if text := said.get(name):
            parameter["description"] = text
        found.append(parameter)
    return found


def _headers(operation: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": pattern},
            "description": text,
        }
        for name, (text, pattern) in operation.headers.items()
    ]


@lru_cache(maxsize=1)
def _whole() -> dict[str, Any]:
    from hadron.doors.http.table import OPERATIONS

    return document(OPERATIONS)


async def openapi(_door: Door, _call: Call, _query: NoQuery) -> Response:
    return json_response(_whole())
