"""Whether the functions that stages and queries on Spark name import, where `hadron apply` runs.

A module may print, hang, end the process or start Spark when it is imported, so another process
imports it, which has a time limit and finds no Spark to start. Only what is certain is refused: a
module that imports, and has no such function. That a module does not import here says nothing of
where the stages will run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hadron.model.documents.problem import Problem
    from hadron.model.problems import ValuePath
    from hadron.model.schema import SchemaObject

_WITHIN_S: Final = 10.0
"""For all of them: PySpark takes a second to import, pandas another one."""

_MOST_NAMES: Final = 200
"""Of a module's functions, to suggest one of them."""

_MOST_CHARACTERS: Final = 200
"""Of why a module does not import."""

_SCRIPT: Final = """
import importlib, json, os, sys
say = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, os.getcwd())
for run in json.loads(sys.argv[1]):
    module, _, path = run.partition(":")
    try:
        found = importlib.import_module(module)
    except BaseException as error:
        told = {"why": f"{type(error).__name__}: {error}"}
    else:
        told = {}
        for name in path.split("."):
            names = [each for each in dir(found) if callable(getattr(found, each, None))]
            found = getattr(found, name, None)
            if found is None:
                told = {"missing": name, "names": [n for n in names if n[0] != "_"][:MOST]}
                break
        else:
            if not callable(found):
                told = {"is": type(found).__name__}
    print(json.dumps([run, told]), file=say, flush=True)
"""


def check(objects: Sequence[SchemaObject]) -> list[str]:
    """What could not be looked at here, in words. Raises `SchemaError` for functions that do not
    exist in modules that do."""
    from hadron.model.documents.problem import schema_error
    from hadron.model.pipelines import PipelineSpec, StreamPipelineSpec

    named: list[tuple[SchemaObject, ValuePath, str, str]] = []
    for found in objects:
        spec = found.spec
        if isinstance(spec, StreamPipelineSpec):
            named.append((found, ("run",), spec.run, ""))
        elif isinstance(spec, PipelineSpec):
            named += [
                (found, ("stages", index, "run"), stage.run, f" of stage {stage.name!r}")
                for index, stage in enumerate(spec.stages)
                if stage.is_on_spark and ":" in stage.run
            ]
    if not named:
        return []
    told = _import({run: None for _, _, run, _ in named})
    problems: list[Problem] = []
    notes = []
    for found, path, run, owner in named:
        answer = told.get(run, {"why": f"it took more than {_WITHIN_S:g} s, or ended Python"})
        if "SESSION_OR_CONTEXT_NOT_EXISTS" in (why := answer.get("why", "")):
            notes.append(
                f"{found.label}: {run!r}{owner} was not looked at, as its module needs a Spark "
                "session to be imported; `hadron pipeline run` has one"
            )
        elif why:
            notes.append(
                f"{found.label}: {run!r}{owner} was not looked at, as its module does not import "
                f"here: {_one_line(why)}; it has to where the runner runs"
            )
        elif answer:
            problems.append(_problem(found, path, run, answer))
    if problems:
        raise schema_error(problems)
    return notes


def _import(runs: dict[str, None]) -> dict[str, dict[str, Any]]:
    # A module that starts Spark when it is imported gets an error at once.
    surroundings = {**os.environ, "SPARK_HOME": os.devnull}
    surroundings.pop("SPARK_REMOTE", None)
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _SCRIPT.replace("MOST", str(_MOST_NAMES)),
                json.dumps(list(runs)),
            ],
            env=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_WITHIN_S,
            check=False,
        )
        said = done.stdout
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    found: dict[str, dict[str, Any]] = {}
    for line in said.splitlines():
        run, answer = json.loads(line)
        found[run] = answer
    return found


def _problem(found: SchemaObject, path: ValuePath, run: str, answer: dict[str, Any]) -> Problem:
    from hadron.model.documents.problem import Problem
    from hadron.model.problems import did_you_mean
    from hadron.model.words import with_article

    if "is" in answer:
        return Problem(found.label, path, f"{run!r} is {with_article(answer['is'])}", "a function")
    module, missing = run.partition(":")[0], answer["missing"]
    close = did_you_mean(missing, answer["names"])
    return Problem(
        found.label,
        path,
        f"{run!r}: module {module!r} imports, and has no {missing!r}{close}",
        "a function of that module, or a runner's own module that is not found here",
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MOST_CHARACTERS]
