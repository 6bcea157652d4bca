"""What is handed to another process says what to do instead."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import hadron
from hadron.client.consuming.consumer import Consumer


def made() -> dict[str, Any]:
    blocking = hadron.connect_sync("hadron://127.0.0.1:1")
    consumer = Consumer.__new__(Consumer)
    return {
        "client": hadron.connect("hadron://127.0.0.1:1"),
        "producer": hadron.connect("hadron://127.0.0.1:1").producer("s"),
        "blocking client": blocking,
        "blocking producer": blocking.producer("s"),
        "blocking subscription": blocking.subscribe("s", group="g"),
        "consumer": consumer,
    }


@pytest.mark.parametrize("what", made())
def test_nothing_of_a_client_is_pickled(what: str) -> None:
    with pytest.raises(TypeError, match="cannot be pickled, and so not be given to another"):
        pickle.dumps(made()[what])
