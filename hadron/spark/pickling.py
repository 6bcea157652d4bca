"""Modules of the user's that Spark's Python workers cannot import.

`@F.udf("string")` and `F.col("x")` at a module's top need a session, and a worker has none. A UDF
is sent to the workers as it is, but a function of its module that it calls is sent as a name: the
worker would import the module for it, and fail. So whatever such a module defines is sent as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any


def send_whole(modules: Iterable[ModuleType]) -> None:
    """See to it that functions of those of `modules` which need a session are sent by value."""
    from pyspark import cloudpickle

    register: Any = cloudpickle.register_pickle_by_value
    for module in modules:
        if _needs_session(module):
            register(module)


def _needs_session(module: ModuleType) -> bool:
    return any(_is_made_by_a_session(value) for value in list(vars(module).values()))


def _is_made_by_a_session(value: Any) -> bool:
    from pyspark.sql import Column

    if isinstance(value, Column):
        return True
    # What `udf` makes of a function; a type that was written as text is parsed by the session.
    made = vars(value).get("_unwrapped") if isinstance(value, FunctionType) else None
    return isinstance(getattr(made, "_returnType", None), str)
