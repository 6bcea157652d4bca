"""Makes `faces` of the async classes: `make faces`; `make check` sees when it was forgotten.

A blocking class has the public methods of the async one: the same arguments, defaults and words,
for editors and type checkers to see, and a body that hands the call on. Only sources are read here,
so that faces that are out of date do not stand in the way.

What a client gives for a name, as `client.counter("hits")` gives a `Counter`, needs no entry here:
of a method of `Client` that returns a class of the client's the blocking class is made as well. Its
methods are `async`, or open something: one that returns `Opening[Jobs]` gives a `SyncJobs`, whose
life is written by hand and needs an entry in `_KNOWN`.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]
FACES: Final = Path(__file__).parent / "faces"
_BLOCKING: Final = "hadron.client.blocking"
_PART: Final = f"{_BLOCKING}.bases.PartBase"
_WIDTH: Final = 100


class GenerateError(Exception):
    """An async class has what no rule says how to block."""


@dataclass(frozen=True, slots=True)
class Face:
    """How a blocking class is made.

    Attributes:
        module, name: of the async class.
        base: of the blocking one, written by hand: its life, and what its calls are handed to.
        body: of a method: `{name}`, `{given}` (its arguments; also `{given_by_name}`), and
            `{async_call}`, a function from the async object to its answer.
        bodies: of single methods, where they differ.
        by_hand: methods that the base has.
        tells_more: the words on the async class, without its first paragraph, hold here too.
    """

    module: str
    name: str
    base: str
    body: str
    bodies: Mapping[str, str] = field(default_factory=dict)
    by_hand: frozenset[str] = frozenset()
    tells_more: bool = False

    @property
    def home(self) -> str:
        return f"{_BLOCKING}.faces.{self.module.rpartition('.')[2]}"

    @property
    def is_part(self) -> bool:
        """What a client gives for a name."""
        return self.base == _PART


_OPENED: Final = "return {answer}(self._hold, {async_call})"
_OPENED_BY_PART: Final = "return {answer}(self._hold, self._opening({async_call}))"
_OPENING: Final = re.compile(r"Opening\[(\w+)\]")

_CLIENT: Final = Face(
    "hadron.client.client",
    "Client",
    f"{_BLOCKING}.bases.ClientBase",
    "return self._call({async_call})",
    bodies={
        "read": "return record_reader(self._hold, {async_call})",
        "read_batches": "return batch_reader(self._hold, {async_call})",
        "stage": "return SyncStageInvocations(self._hold, {async_call})",
    },
    by_hand=frozenset({"close"}),
)
_KNOWN: Final = (
    _CLIENT,
    Face(
        "hadron.client.producing.producer",
        "Producer",
        f"{_BLOCKING}.outbox.ProducerBase",
        "return (self._lazy.core or self._lazy.get()).{name}({given})",
        by_hand=frozenset({"close"}),
        tells_more=True,
    ),
    Face(
        "hadron.client.consuming.subscription",
        "Subscription",
        f"{_BLOCKING}.intake.SubscriptionBase",
        "return self._within({given}, Intake.{name})",
        bodies={
            "batches": "return self._batches()",
            "transactions": "return self._steps({given_by_name})",
            "flush": "return self._lazy.get().flush({given})",
        },
        by_hand=frozenset({"close"}),
        tells_more=True,
    ),
    Face(
        "hadron.client.consuming.deliveries",
        "Delivery",
        f"{_BLOCKING}.deliveries.DeliveryBase",
        "return self._subscription.{name}({given_self})",
    ),
    Face(
        "hadron.client.consuming.deliveries",
        "DeliveryBatch",
        f"{_BLOCKING}.deliveries.DeliveryBatchBase",
        "return self._subscription.{name}_batch({given_self})",
    ),
    Face(
        "hadron.client.transactions.transaction",
        "Transaction",
        f"{_BLOCKING}.transacting.TransactionBase",
        "return self._call({async_call})",
        by_hand=frozenset({"id", "state", "receipts"}),
        tells_more=True,
    ),
    Face(
        "hadron.client.consuming.steps",
        "Step",
        f"{_BLOCKING}.transacting.StepBase",
        "return self._call({async_call})",
        by_hand=frozenset({"partition", "receipts"}),
        tells_more=True,
    ),
    Face(
        "hadron.client.pipelines.stage_run",
        "StageRun",
        f"{_BLOCKING}.invocations.StageRunBase",
        "return self._lazy.get().{name}({given})",
        tells_more=True,
    ),
    Face(
        "hadron.client.exchanges.messages",
        "Messages",
        f"{_BLOCKING}.messages.MessagesBase",
        "",
        by_hand=frozenset({"missed", "interruptions"}),
        tells_more=True,
    ),
    Face(
        "hadron.client.endpoints.stream",
        "CallStream",
        f"{_BLOCKING}.endpoints.CallStreamBase",
        "return self._lazy.get().{name}({given})",
        by_hand=frozenset({"close", "headers"}),
        tells_more=True,
    ),
    Face(
        "hadron.client.endpoints.serving",
        "Serving",
        f"{_BLOCKING}.endpoints.ServingBase",
        "return self._lazy.get().{name}({given})",
        by_hand=frozenset({"close"}),
        tells_more=True,
    ),
    Face(
        "hadron.client.handling.stage",
        "StageInvocations",
        f"{_BLOCKING}.handling.StageInvocationsBase",
        "",
        by_hand=frozenset({"close", "run"}),
        tells_more=True,
    ),
    Face(
        "hadron.client.handling.invocation",
        "StageInvocation",
        f"{_BLOCKING}.handling.StageInvocationBase",
        "return self._call({async_call})",
        tells_more=True,
    ),
)

_ANSWERS: Final = {
    "Pending": "SyncPending",
    "RecordReader": "SyncReader[Record]",
    "BatchReader": "SyncReader[RecordBatch]",
    "DeliveryBatches": "Iterator[SyncDeliveryBatch]",
    "StageOpening": "SyncStageInvocations",
    "Steps": "Iterator[SyncStep]",
    **{face.name: f"Sync{face.name}" for face in _KNOWN},
}
"""What async methods return, and blocking ones."""

_HOMES: Final = {
    "Callable": "collections.abc",
    "Intake": f"{_BLOCKING}.intake",
    "Iterator": "collections.abc",
    "Record": "hadron.model.record",
    "RecordBatch": "hadron.model.record_batch",
    "SyncPending": f"{_BLOCKING}.outbox",
    "SyncReader": f"{_BLOCKING}.reader",
    "batch_reader": f"{_BLOCKING}.reader",
    "partial": "functools",
    "record_reader": f"{_BLOCKING}.reader",
    **{f"Sync{face.name}": face.home for face in _KNOWN},
}
"""Where names come from that the async modules do not have."""

_MORE: Final = {
    ("Client", "subscribe"): (
        "Heartbeats are sent by the client's own thread, however long a handler takes."
    ),
    ("Subscription", "poll"): (
        "At the first use connecting and joining count as well: they go on after that, and a later"
        " call raises what they fail with."
    ),
    ("Producer", "send_many"): (
        "`values` are iterated, and serialized, in the caller's thread, while it waits."
    ),
}
"""What is to be said of blocking methods besides."""

_CONNECT: Final = (
    "A blocking client, for `with hadron.connect_sync() as client` or for use as it is, such as in"
    " a module; `SyncClient` tells of its life."
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """An async module, as it is written."""

    def __init__(self, module: str) -> None:
        self.module = module
        path = _ROOT.joinpath(*module.split(".")).with_suffix(".py")
        self._body = ast.parse(path.read_text()).body
        self.imported = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in self._body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def find_class(self, name: str) -> ast.ClassDef:
        return next(n for n in self._body if isinstance(n, ast.ClassDef) and n.name == name)

    def find_function(self, name: str) -> ast.FunctionDef:
        return next(n for n in self._body if isinstance(n, ast.FunctionDef) and n.name == name)

    def home_of(self, name: str) -> str | None:
        """The module that a name is imported from; this one if it is its own."""
        if name in self.imported:
            return self.imported[name].rpartition(".")[0]
        own = (n for n in self._body if isinstance(n, (ast.Assign, ast.AnnAssign, ast.ClassDef)))
        for node in own:
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            names = {each.id for each in targets if isinstance(each, ast.Name)}
            if name in names or getattr(node, "name", None) == name:
                return self.module
        return None


class Module:
    """A module of faces, of the async module `of`, while it is made."""

    def __init__(self, name: str, of: str) -> None:
        self.of = of
        self._name = name
        self._imports: set[tuple[str, str]] = set()
        self._parts: list[str] = []

    def add_class(self, face: Face, source: Source, faces: Sequence[Face]) -> None:
        node = source.find_class(face.name)
        base = face.base.rpartition(".")
        self._imports.add((base[0], base[2]))
        generic = ""
        if face.is_part:
            generic = f"[{face.name}]"
            self._imports.add((source.module, face.name))
        lines = [f"class Sync{face.name}({base[2]}{generic}):"]
        lines += _docstring(_class_words(face, node), 4)
        for written, method in _offered(source, node):
            if method.name not in face.by_hand:
                lines += ["", *self._method(method, face, written, faces)]
        self._parts.append("\n".join(lines))

    def _method(
        self, method: Function, face: Face, source: Source, faces: Sequence[Face]
    ) -> Iterator[str]:
        answer = self._answer(method, face, source, faces)
        head = f"    def {method.name}({self._parameters(method, source)}) -> {answer}:"
        body = face.bodies.get(method.name, face.body)
        if isinstance(method, ast.FunctionDef) and method.name not in face.bodies:
            if face is _CLIENT:
                body = _OPENED
            elif face.is_part:
                # Else `_answer` has refused it.
                body = _OPENED_BY_PART
        given = [each.arg for each in [*method.args.args[1:], *method.args.kwonlyargs]]
        call = f"lambda {_variable(face)}: {_variable(face)}.{method.name}({_passed_on(method)})"
        body = body.format(
            name=method.name,
            given=", ".join(given),
            given_by_name=", ".join(f"{each}={each}" for each in given),
            given_self=", ".join(["self", *given]),
            async_call=call,
            answer=answer,
        )
        if answer == "None":
            body = body.removeprefix("return ")
        self._import_names(body.replace(call, ""), source, known_only=True)
        words = _adapted(ast.get_docstring(method) or "")
        if more := _MORE.get((face.name, method.name)):
            words += f"\n\n{more}"
        return iter([head, *_docstring(words, 8), f"        {body}"])

    def _answer(self, method: Function, face: Face, source: Source, faces: Sequence[Face]) -> str:
        assert method.returns is not None
        written = ast.unparse(method.returns)
        names = {f.name: f"Sync{f.name}" for f in faces} | _ANSWERS
        answer = _OPENING.sub(r"\1", written)
        answer = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), answer)
        is_plain = isinstance(method, ast.FunctionDef)
        opened = _OPENING.fullmatch(written)
        if is_plain and opened and (face is _CLIENT or face.is_part):
            if opened[1] not in (known.name for known in _KNOWN):
                raise GenerateError(
                    f"{face.name}.{method.name} opens {opened[1]}, which has no blocking class:"
                    f" write one of `OpenedBase`, and say in {Path(__file__).name} what it is"
                )
        elif is_plain and (face.is_part or answer == written != "None"):
            raise GenerateError(
                f"{face.name}.{method.name} returns {written} without waiting: write it `async`, or"
                f" say in {Path(__file__).name} what a blocking one returns"
            )
        for found in faces:
            if f"Sync{found.name}" in answer:
                self._imports.add((found.home, f"Sync{found.name}"))
        self._import_names(answer, source)
        return answer

    def _parameters(self, method: Function, source: Source) -> str:
        for each in [*method.args.args, *method.args.kwonlyargs]:
            if each.annotation is not None:
                self._import_names(ast.unparse(each.annotation), source)
        for default in [*method.args.defaults, *method.args.kw_defaults]:
            if default is not None:
                self._import_names(ast.unparse(default), source)
        return ast.unparse(method.args)

    def _import_names(self, code: str, source: Source, *, known_only: bool = False) -> None:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Name):
                home = _HOMES.get(node.id) or (None if known_only else source.home_of(node.id))
                if home is not None and home != self._name:
                    self._imports.add((home, node.id))

    def add_connect(self, source: Source) -> None:
        """`connect_sync`, of `connect`."""
        node = source.find_function("connect")
        words = (ast.get_docstring(node) or "").partition("\n\n")[2]
        words = f"{_CONNECT}\n\n{words}".replace("entering raises", "opening raises")
        words = words.replace("how long entering the block tries", "how long opening it tries")
        self._imports |= {("functools", "partial"), (source.module, "connect")}
        self._parts.append(
            "\n".join(
                [
                    f"def connect_sync({self._parameters(node, source)}) -> SyncClient:",
                    *_docstring(_adapted(words), 4),
                    f"    return SyncClient(partial(connect, {_passed_on(node, skip=0)}))",
                ]
            )
        )

    def text(self) -> str:
        """The module, laid out."""
        imports = [f"from {home} import {name}" for home, name in sorted(self._imports)]
        about = f"The blocking face of `{self.of}`, made of it by `make faces`."
        head = [f'"""{about}"""', "", "from __future__ import annotations", "", *imports]
        return _laid_out("\n".join([*head, "", "", "\n\n\n".join(self._parts)]) + "\n", self._name)


def methods(node: ast.ClassDef) -> Iterator[Function]:
    """The public ones."""
    for each in node.body:
        if isinstance(each, Function) and not each.name.startswith("_"):
            yield each


def _offered(source: Source, node: ast.ClassDef) -> Iterator[tuple[Source, Function]]:
    """What a class has itself, and what it has of parts that were too long to stand in it, whose
    names say that they are `…Methods`; with the module that each is written in."""
    for method in methods(node):
        yield source, method
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id.endswith("Methods"):
            home = source.home_of(base.id)
            assert home is not None, base.id
            part = Source(home)
            for method in methods(part.find_class(base.id)):
                yield part, method


def _variable(face: Face) -> str:
    return face.name.lower()


def _passed_on(function: Function, *, skip: int = 1) -> str:
    """Its own arguments, to a function that takes the same."""
    given = [each.arg for each in function.args.args[skip:]]
    given += [f"{each.arg}={each.arg}" for each in function.args.kwonlyargs]
    return ", ".join(given)


# --- words ----------------------------------------------------------------------------------------


def _class_words(face: Face, node: ast.ClassDef) -> str:
    own = _adapted(ast.get_docstring(node) or "")
    if face.is_part:
        return own
    module, _, name = face.base.rpartition(".")
    words = ast.get_docstring(Source(module).find_class(name)) or ""
    if face.tells_more and (more := own.partition("\n\n")[2]):
        words += f"\n\n{more}"
    return words


def _adapted(words: str) -> str:
    """Words on an async class or method, as they hold for the blocking one."""
    words = re.sub(r"`async (with|for) ", r"`\1 ", words)
    words = re.sub(r"`await ", "`", words)
    words = re.sub(r"\btask(s?)\b", r"thread\1", words)
    names = "|".join(["Pending", *(face.name for face in _KNOWN)])
    return re.sub(rf"`({names})\b(?=[.`])", r"`Sync\1", words)


def _docstring(words: str, indent: int) -> list[str]:
    """Its lines, none too long; nothing where nothing is said."""
    if not words:
        return []
    room = _WIDTH - indent
    lines = f'"""{words}'.split("\n")
    done: list[str] = []
    while lines:
        line = lines.pop(0)
        if len(line) > room:
            cut = line.rindex(" ", 0, room)
            line, rest = line[:cut], line[cut + 1 :]
            depth = len(lines[0]) - len(lines[0].lstrip()) if lines and lines[0] else None
            if depth is not None and not re.match(r" *(\* |\w+: )", lines[0]):
                lines[0] = " " * depth + f"{rest} {lines[0].lstrip()}"
            else:
                lines.insert(0, " " * (len(line) - len(line.lstrip())) + rest)
        done.append(line)
    if len(done) == 1 and len(done[0]) + 3 <= room:
        done[0] += '"""'
    else:
        done.append('"""')
    return [" " * indent + line if line else "" for line in done]


def _laid_out(text: str, module: str) -> str:
    """As `make format` does."""
    path = _ROOT.joinpath(*module.split(".")).with_suffix(".py")
    # Said in so many words: ruff looks for modules, and some of these are only being made.
    ours = ["--config", "lint.isort.known-first-party = ['hadron']"]
    for command in (
        ["check", "--fix", "--quiet", "--select", "I,F401", *ours],
        ["format", "--quiet", "--line-length", str(_WIDTH)],
    ):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


# --- all of them ----------------------------------------------------------------------------------


def _parts_of_client() -> Iterator[Face]:
    """Of what `Client` gives for a name; see the module."""
    source = Source(_CLIENT.module)
    for written, method in _offered(source, source.find_class(_CLIENT.name)):
        if isinstance(method, ast.FunctionDef) and isinstance(method.returns, ast.Name):
            name = method.returns.id
            home = written.home_of(name)
            if name not in _ANSWERS and home is not None and home.startswith("hadron.client."):
                yield Face(home, name, _PART, "return self._call({async_call})")


def render() -> dict[str, str]:
    """All modules of faces, by the name of their file."""
    faces = (*_KNOWN, *_parts_of_client())
    modules: dict[str, Module] = {}
    for face in faces:
        source = Source(face.module)
        name = face.home.rpartition(".")[2]
        if name not in modules:
            modules[name] = Module(face.home, face.module)
        if modules[name].of != face.module:
            raise GenerateError(f"{face.module} and {modules[name].of} both become {name}.py")
        modules[name].add_class(face, source, faces)
        if face is _CLIENT:
            modules[name].add_connect(source)
    texts = {f"{name}.py": module.text() for name, module in modules.items()}
    return {
        "__init__.py": '"""What users of the blocking client call, made by `make faces`."""\n',
        **texts,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the faces; `arguments` are `sys.argv`'s unless given."""
    parser = argparse.ArgumentParser(
        prog="python -m hadron.client.blocking.generate",
        description=f"Make {FACES.name}/ of the async classes: writes them anew.",
    )
    parser.parse_args(arguments)
    texts = render()
    FACES.mkdir(exist_ok=True)
    for path in FACES.glob("*.py"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FACES / name).write_text(text)


if __name__ == "__main__":
    main()
