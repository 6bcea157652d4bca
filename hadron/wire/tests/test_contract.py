"""What was released stays: proto/released.json, and the judge of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from hadron.wire import contract as module
from hadron.wire.contract import RELEASED, broken, contract, main


def test_what_was_released_is_still_there() -> None:
    """`make release-contract` is for releases, and for who changes something on purpose before."""
    assert not broken(json.loads(RELEASED.read_text()), contract())


def changed(kind: str, name: str, part: str, to: Any) -> Any:
    now: Any = copy.deepcopy(contract())
    if to is None:
        del now[kind][name][part]
    else:
        now[kind][name][part] = to
    return now


@pytest.mark.parametrize(
    ("kind", "name", "part", "to", "told"),
    [
        (
            "messages",
            "hadron.v1.FetchRequest",
            "offset",
            None,
            "hadron.v1.FetchRequest.offset is gone, which programs were built with",
        ),
        (
            "messages",
            "hadron.v1.FetchRequest",
            "offset",
            [14, "uint64"],
            "hadron.v1.FetchRequest.offset was 4 uint64 and is 14 uint64 now",
        ),
        (
            "methods",
            "hadron.v1.Streams.Fetch",
            "number",
            3,
            "hadron.v1.Streams.Fetch.number was 2 and is 3 now",
        ),
        ("enums", "hadron.v1.Acks", "ACKS_ALL", 1, "hadron.v1.Acks.ACKS_ALL was 2 and is 1 now"),
    ],
)
def test_what_goes_or_changes_is_told_in_a_sentence(
    kind: str, name: str, part: str, to: Any, told: str
) -> None:
    assert broken(contract(), changed(kind, name, part, to)) == [told]


def test_a_method_that_is_gone_is_told() -> None:
    now: Any = copy.deepcopy(contract())
    del now["methods"]["hadron.v1.Records.Publish"]
    (told,) = broken(contract(), now)
    assert told == "method hadron.v1.Records.Publish is gone, which programs were built with"


def test_adding_breaks_nothing() -> None:
    now: Any = copy.deepcopy(contract())
    now["messages"]["hadron.v1.FetchRequest"]["more"] = [15, "string"]
    now["messages"]["hadron.v1.New"] = {}
    assert not broken(contract(), now)


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["--check"], 2), (["now"], 2)])
def test_only_the_bare_command_writes(
    arguments: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = tmp_path / "released.json"
    monkeypatch.setattr(module, "RELEASED", released)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status
    assert not released.exists()
    main([])
    assert json.loads(released.read_text()) == contract()
