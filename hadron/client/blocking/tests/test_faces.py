"""The blocking faces are what `make faces` makes of the async classes today, and typed as these."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import pytest

import hadron
from hadron.client import Client, Fetched, Receipt, SyncClient, connect
from hadron.client.blocking import generate
from hadron.client.blocking.bases import PartBase
from hadron.client.blocking.faces.deliveries import SyncDeliveryBatch
from hadron.client.blocking.faces.stage_run import SyncStageRun
from hadron.client.blocking.life import Hold
from hadron.client.blocking.reader import SyncReader
from hadron.client.pipelines.calls import PipelineCalls
from hadron.model.errors import RequestError
from hadron.model.record import Record
from hadron.model.record_batch import RecordBatch
from hadron.model.schema import SchemaObject


@pytest.mark.long
def test_faces_are_fresh() -> None:
    wanted = generate.render()
    present = {path.name: path.read_text() for path in generate.FACES.glob("*.py")}
    assert sorted(present) == sorted(wanted), "run `make faces`"
    stale = [name for name in sorted(wanted) if present[name] != wanted[name]]
    assert not stale, f"run `make faces`: {', '.join(stale)} do not match the async classes"


def test_every_call_of_a_face_is_told_in_words() -> None:
    for path in generate.FACES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                words = ast.get_docstring(node) or ""
                assert words, f"{path.name}: {node.name}"
                assert "async" not in words, f"{path.name}: {node.name}"
                assert "await" not in words, f"{path.name}: {node.name}"


# --- a feature that is added ----------------------------------------------------------------------

_COUNTERS = '''
"""Counters."""
from __future__ import annotations
from collections.abc import Sequence
from hadron.client.connecting.session import Session

class Counter:
    """One counter; add to it with `await counter.add(3)`."""
    def __init__(self, session: Session, name: str) -> None: ...
    async def add(self, by: int = 1, *, tags: Sequence[str] = ()) -> int:
        """Its value after that."""
'''


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree whose client has counters."""
    monkeypatch.setattr(generate, "_ROOT", tmp_path)
    root = Path(hadron.__file__).parent.parent
    for path in (root / "hadron/client").rglob("*.py"):
        copy = tmp_path / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    (tmp_path / "hadron/client/counters.py").write_text(_COUNTERS)
    client = tmp_path / "hadron/client/client.py"
    text = client.read_text()
    text = text.replace(
        "\nfrom hadron", "\nfrom hadron.client.counters import Counter\nfrom hadron", 1
    )
    client.write_text(
        text.replace(
            "    async def create_stream(",
            "    def counter(self, name: str) -> Counter:\n"
            '        """The counter called `name`."""\n'
            "        return Counter(self._session, name)\n\n    async def create_stream(",
            1,
        )
    )
    return tmp_path


@pytest.mark.long
@pytest.mark.usefixtures("tree")
def test_what_a_client_gives_for_a_name_has_a_blocking_face() -> None:
    made = generate.render()
    assert "    def counter(self, name: str) -> SyncCounter:" in made["client.py"]
    assert "SyncCounter(self._hold, lambda client: client.counter(name))" in made["client.py"]
    assert '"""The counter called `name`."""' in made["client.py"]
    text = made["counters.py"]
    assert "class SyncCounter(PartBase[Counter]):" in text
    assert '"""One counter; add to it with `counter.add(3)`."""' in text
    assert "def add(self, by: int = 1, *, tags: Sequence[str] = ()) -> int:" in text
    assert "return self._call(lambda counter: counter.add(by, tags=tags))" in text
    assert text.count("from collections.abc import Sequence\n") == 1
    assert {name: text for name, text in made.items() if "Counter" not in text} == {
        path.name: path.read_text()
        for path in generate.FACES.glob("*.py")
        if path.name not in ("client.py", "counters.py")
    }


def test_what_no_rule_can_block_is_refused(tree: Path) -> None:
    path = tree / "hadron/client/counters.py"
    path.write_text(path.read_text().replace("async def add", "def add"))
    with pytest.raises(generate.GenerateError, match=r"Counter\.add returns int without waiting"):
        generate.render()
    path.write_text(path.read_text().replace("-> int", "-> None"))
    with pytest.raises(generate.GenerateError, match=r"Counter\.add returns None without waiting"):
        generate.render()


_QUEUE = '''
"""Queues."""
from __future__ import annotations
from hadron.client.connecting.session import Session
from hadron.client.pipelines.stage_run import StageRun
from hadron.client.terms.opening import Opening

class Counter:
    """Jobs: `async with counter.consume() as run`."""
    def __init__(self, session: Session, name: str) -> None: ...
    def consume(self, *, credit: int = 1) -> Opening[StageRun]:
        """Those that are ready: `async with counter.consume() as run`."""
'''


@pytest.mark.long
def test_what_a_part_opens_has_the_blocking_class_of_that(tree: Path) -> None:
    path = tree / "hadron/client/counters.py"
    path.write_text(_QUEUE)
    text = generate.render()["counters.py"]
    assert "    def consume(self, *, credit: int = 1) -> SyncStageRun:" in text
    assert '"""Those that are ready: `with counter.consume() as run`."""' in text
    flat = " ".join(text.split())
    call = "lambda counter: counter.consume(credit=credit)"
    assert f"return SyncStageRun( self._hold, self._opening({call}) )" in flat
    assert "from hadron.client.blocking.faces.stage_run import SyncStageRun\n" in text
    assert "import Opening" not in text

    path.write_text(_QUEUE.replace("StageRun", "Jobs"))
    with pytest.raises(generate.GenerateError, match=r"consume opens Jobs, .* of `OpenedBase`"):
        generate.render()


def test_what_a_part_opens_is_opened_of_the_part_that_is_in_use() -> None:
    made: list[Client] = []

    def make(client: Client) -> PipelineCalls:
        made.append(client)
        return PipelineCalls(client._session, client._catalog)

    class Runs(PartBase[PipelineCalls]):
        def run(self, name: str, credit: int) -> SyncStageRun:
            return SyncStageRun(
                self._hold, self._opening(lambda calls: calls.run(name, "spark", (), 1, credit))
            )

    hold = Hold(lambda: connect("hadron://127.0.0.1:1", connect_timeout_s=0.1))
    runs = Runs(hold, make)
    with pytest.raises(RequestError, match="credit 0 is out of bounds"):
        runs.run("p", 0)
    assert repr(runs.run("p", 1)) == "<SyncStageRun of 'p', not open yet>"
    assert made == [hold.template] * 3, "nothing is kept of the client that is never opened"
    client = connect("hadron://127.0.0.1:1")
    opening = runs._opening(lambda calls: calls.run("p", "spark", (), 1, 1))
    opening(client)
    opening(client)
    assert made[3:] == [client]


def test_two_modules_do_not_become_one_file(tree: Path) -> None:
    inside = tree / "hadron/client/counting/producer.py"
    inside.parent.mkdir()
    (tree / "hadron/client/counters.py").rename(inside)
    client = tree / "hadron/client/client.py"
    client.write_text(client.read_text().replace("client.counters", "client.counting.producer"))
    with pytest.raises(generate.GenerateError, match=r"both become producer\.py"):
        generate.render()


# --- what an editor knows -------------------------------------------------------------------------

if TYPE_CHECKING:

    def _types(client: SyncClient) -> None:
        """Judged by mypy alone."""
        assert_type(hadron.connect_sync(), SyncClient)
        assert_type(client.producer("s"), hadron.SyncProducer)
        assert_type(client.producer("s").send(b""), Receipt)
        with client.producer("s") as producer, client.subscribe("s", group="g") as members:
            assert_type(producer, hadron.SyncProducer)
            assert_type(members, hadron.SyncSubscription)
            assert_type(producer.send_soon(b"").wait(), Receipt)
            assert_type(members.poll(), hadron.SyncDelivery | None)
            for delivery in members:
                assert_type(delivery, hadron.SyncDelivery)
            for batch in members.batches():
                assert_type(batch, SyncDeliveryBatch)
        assert_type(client.read("s"), SyncReader[Record])
        assert_type(client.read_batches("s"), SyncReader[RecordBatch])
        assert_type(client.fetch("s", "p", 0), Fetched)
        assert_type(client.objects(), list[SchemaObject])
        assert_type(client.run_stages("p"), SyncStageRun)
        with client as entered:
            assert_type(entered, SyncClient)


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["--check"], 2)])
def test_only_the_bare_command_writes(
    arguments: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "FACES", tmp_path / "faces")
    with pytest.raises(SystemExit) as ended:
        generate.main(arguments)
    assert ended.value.code == status
    assert not generate.FACES.exists()
