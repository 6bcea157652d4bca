"""Functions of stages, as `hadron apply` looks for them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hadron.cli.pipelines import functions as stage_functions
from hadron.model.errors import SchemaError
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject


def declared(*runs: str) -> list[SchemaObject]:
    stages = tuple(StageSpec(name=f"s{index}", run=run) for index, run in enumerate(runs))
    spec = PipelineSpec(replica_set="local/p0", input="in", stages=stages)
    return [SchemaObject(kind="Pipeline", name="p", spec=spec)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_functions_that_are_there_are_not_spoken_of(here: Path) -> None:
    text = "print('loud')\nclass C:\n    def go(df): ...\ndef f(df): ...\n"
    (here / "stages_a.py").write_text(text)
    assert stage_functions.check(declared("stages_a:f", "stages_a:C.go")) == []


def test_a_wrong_name_in_a_module_that_imports_is_refused(here: Path) -> None:
    (here / "stages_b.py").write_text("def verdict(df): ...\nlimit = 5")
    with pytest.raises(SchemaError) as caught:
        stage_functions.check(declared("stages_b:verdickt", "stages_b:limit"))
    said = str(caught.value)
    assert "stages[0].run: 'stages_b:verdickt': module 'stages_b' imports, and has no" in said
    assert "did you mean 'verdict'?" in said
    assert "stages[1].run: 'stages_b:limit' is an int, expected a function" in said


def test_a_module_that_does_not_import_here_is_told(here: Path) -> None:
    (here / "stages_c.py").write_text("import no_such_library\n")
    (here / "stages_d.py").write_text("import os\nos._exit(0)\n")
    runs = "no_such_module:f", "stages_c:f", "stages_d:f"
    notes = stage_functions.check(declared(*runs))
    assert [run in note for run, note in zip(runs, notes, strict=True)] == [True] * 3
    assert "ModuleNotFoundError: No module named 'no_such_library'" in notes[1]
    assert "ended Python" in notes[2]


@pytest.mark.long
def test_spark_is_not_started_and_nothing_hangs(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "stages_e.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(stage_functions, "_WITHIN_S", 1.0)
    began = time.monotonic()
    (note,) = stage_functions.check(declared("stages_e:f"))
    assert time.monotonic() - began < 20
    assert "more than 1 s" in note
    monkeypatch.setattr(stage_functions, "_WITHIN_S", 30.0)
    (here / "stages_f.py").write_text(
        "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
        "def f(df): ...\n"
    )
    (note,) = stage_functions.check(declared("stages_f:f"))
    assert "does not import here" in note
    assert "Error" in note
