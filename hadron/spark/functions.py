"""Finding the functions that stages name with `run: package.module:function`.

A function that cannot be found, or is wrong whatever its input, is a fault of the code and not of
the data, so it raises an error of its own kind: nobody's attempts may be used up for it.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.problems import did_you_mean
from hadron.model.words import said_by, with_article
from hadron.spark.failures import RAISED, StageError
from hadron.spark.pickling import send_whole
from hadron.spark.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

StageFunction = Callable[["DataFrame"], "DataFrame"]

_LISTED: Final = 8
"""Functions of a module that a hint names, when none is close to what was written."""


class StageCodeError(StageError):
    """A stage's code is wrong, whatever its input: the runner that has it stops, and the instances
    wait for one that has better code."""


class StageLoadError(StageCodeError):
    """A stage's function cannot be loaded in this process; another runner may be able to."""


def check_functions(pipeline: str, spec: PipelineSpec, stages: Sequence[str] = ()) -> None:
    """Load the functions of these Spark stages, of all when `stages` is empty.

    Raises `StageError` for a name in `stages` that is no Spark stage of the pipeline, and
    `StageLoadError` for the first function that cannot be loaded.
    """
    for stage in spark_stages(pipeline, spec, stages):
        load_function(stage)


def spark_stages(pipeline: str, spec: PipelineSpec, names: Sequence[str] = ()) -> list[StageSpec]:
    """The Spark stages with these names, all when `names` is empty, in the declared order.

    Raises `StageError` for a name that is no Spark stage of the pipeline.
    """
    known = {stage.name: stage for stage in spec.stages if stage.is_on_spark}
    for name in names:
        if name not in known:
            raise StageError(
                f"pipeline {pipeline!r} has no Spark stage {name!r}{did_you_mean(name, known)}",
                f"its Spark stages are {', '.join(known)}" if known else "it has no Spark stage",
            )
    return [stage for name, stage in known.items() if not names or name in names]


def load_function(stage: StageSpec) -> StageFunction:
    """The function that `run: package.module:function` names. Raises `StageLoadError`."""
    return cast(StageFunction, load(stage.run, f"stage {stage.name!r}"))


def load(run: str, owner: str) -> Callable[..., Any]:
    """The function that `owner`, a stage or a pipeline, names. Raises `StageLoadError`."""
    module_name, separator, path = run.partition(":")
    if not separator or not module_name or not path:
        raise StageLoadError(
            f"{owner} runs {run!r}, which does not name a function",
            "write it as package.module:function",
        )
    named = name_of(run, owner)
    module = _import(named, module_name)
    found: Any = module
    for name in path.split("."):
        holder, found = found, getattr(found, name, None)
        if found is None:
            raise StageLoadError(f"{named} does not exist in {module_name}", _near(holder, name))
    if not callable(found):
        raise StageLoadError(f"{named} is {with_article(type(found).__name__)}, not a function")
    function: Callable[..., Any] = found
    return function


def code_version(spec: str) -> str:
    """Of a stage as it is declared (JSON): what `version_of` says of its function's module."""
    run = msgspec.json.decode(spec, type=StageSpec).run if spec else ""
    return version_of(run.partition(":")[0])


def label(stage: StageSpec) -> str:
    """How errors name a stage's function."""
    return name_of(stage.run, f"stage {stage.name!r}")


def name_of(run: str, owner: str) -> str:
    """How errors name a function of a stage, or of a pipeline."""
    return f"function {run!r} of {owner}"


def _import(named: str, module_name: str) -> ModuleType:
    known = set(sys.modules)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        own = module_name == missing or module_name.startswith(f"{missing}.")
        reason = str(error) if own else f"{error}, which {_last_place(error) or module_name} needs"
        raise StageLoadError(
            f"{named} does not import: ModuleNotFoundError: {reason}",
            _searched() if own else f"install it where the runner runs; {_searched()}",
        ) from error
    except RAISED as error:
        place = _last_place(error)
        raise StageLoadError(
            f"{named} does not import: {type(error).__name__}: {said_by(error)}"
            + (f" ({place})" if place else ""),
            "it has to import where the runner runs, with a Spark session active",
        ) from error
    came_along = [sys.modules[name] for name in list(sys.modules) if name not in known]
    send_whole([module, *came_along])
    return module


def _searched() -> str:
    """Where modules were looked for, as far as the user decides it."""
    given = os.environ.get("PYTHONPATH")
    path = f"PYTHONPATH ({given})" if given else "PYTHONPATH (not set)"
    return (
        f"looked in the current directory ({os.getcwd()}), {path} and the installed packages: "
        "start the runner where the module lies, or install it"
    )


def _last_place(error: BaseException) -> str:
    """File and line that raised, unless that is the import machinery or this module."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
        and frame.filename != __file__
        and not frame.filename.endswith(os.path.join("importlib", "__init__.py"))
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _near(holder: Any, name: str) -> str:
    """What may have been meant: close names, otherwise what there is."""
    functions = (
        [
            each
            for each, value in vars(holder).items()
            if callable(value)
            and not each.startswith("_")
            and getattr(value, "__module__", None) == getattr(holder, "__name__", None)
        ]
        if hasattr(holder, "__dict__")
        else []
    )
    close = difflib.get_close_matches(name, functions, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if functions:
        more = ", …" if len(functions) > _LISTED else ""
        return f"it defines {', '.join(functions[:_LISTED])}{more}"
    where = getattr(holder, "__file__", None)
    return f"{where} defines no function" if where else "it defines no function"
