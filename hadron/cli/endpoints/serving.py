"""What `hadron serve` does: programs as handlers, one for each call, or one for all."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
import trio

from hadron.cli.endpoints.heirs import Heirs, kill_group, watched
from hadron.cli.endpoints.values import declared, first_of, line, parse, plain, written
from hadron.cli.patience import connected
from hadron.client.endpoints.incoming import IncomingCall
from hadron.model.errors import CallFailedError, InvalidRecordError, RequestError
from hadron.model.limits import MAX_CALL_MESSAGE_BYTES
from hadron.model.problems import shorten
from hadron.model.services import STREAM

if TYPE_CHECKING:
    from hadron.model.services import EndpointSpec

_ERROR_BYTES: Final = 2_000
"""Of what a program prints on stderr, from its end: what its caller is told."""

_READ_BYTES: Final = 64 << 10
_ENDS_WITHIN_S: Final = 2.0
"""After SIGTERM, before it is killed."""

_ONE_LINE: Final = (
    "let it print answers on stdout, a line of JSON for each call, and all else on stderr"
)
_LINES: Final = "let it print on stdout what --format says, a value a line, and all else on stderr"
_ONE_ANSWER: Final = "let it print its answer on stdout, as --format says, and all else on stderr"

_SHELLS: Final = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<"})
"""Words that mean something to a shell alone."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for; see the options of `hadron serve`."""

    endpoint: str
    command: str
    is_worker: bool
    has_envelope: bool
    form: str
    max_in_flight: int
    region: str
    name: str


async def run(url: str, asked: Asked) -> None:
    """Serve until SIGINT or SIGTERM; then end what has begun."""
    words = _words(asked.command)
    async with connected(url) as client:
        spec = await declared(client, asked.endpoint)
        async with contextlib.AsyncExitStack() as stack:
            heirs = stack.enter_context(watched())
            handler: Callable[..., Any]
            if asked.is_worker:
                if STREAM in (spec.input, spec.output):
                    raise RequestError(
                        f"endpoint {asked.endpoint!r} has streams, and a worker answers each line "
                        "with a line",
                        "leave --worker out: a program for each call reads and writes lines",
                    )
                worker = await stack.enter_async_context(_worker(heirs, words))
                handler = worker.ask_with_envelope if asked.has_envelope else worker.ask
            else:
                handler = _handler(heirs, words, spec, asked)
            async with client.serve(
                asked.endpoint,
                handler,
                max_in_flight=1 if asked.is_worker else asked.max_in_flight,
                region=asked.region,
                name=asked.name,
            ) as serving:
                click.echo(f"serving {asked.endpoint} by {asked.command}", err=True)
                await _until_signal(serving.wait)


def _words(command: str) -> list[str]:
    """Raises `RequestError` for what no call could be run by."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RequestError(f"--exec {command!r}: {error}", "look at its quotes") from None
    if not words:
        raise RequestError("--exec names no program", "for example --exec 'python quote.py'")
    if found := _SHELLS.intersection(words):
        raise RequestError(
            f"--exec runs a program and no shell: it would be given {min(found)!r} as a word",
            "let a shell run it: --exec \"sh -c '…'\"",
        )
    if shutil.which(words[0]) is None:
        raise RequestError(f"--exec: there is no program {words[0]!r}", "give its path")
    return words


async def _until_signal(wait: Callable[[], Any]) -> None:
    async with trio.open_nursery() as nursery:

        async def ended() -> None:
            await wait()
            nursery.cancel_scope.cancel()

        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            nursery.start_soon(ended)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


# --- a program for each call ----------------------------------------------------------------------


def _handler(
    heirs: Heirs, words: Sequence[str], spec: EndpointSpec, asked: Asked
) -> Callable[..., Any]:
    if spec.output == STREAM:

        async def answer_all(given: Any, call: IncomingCall) -> AsyncIterator[Any]:
            async with _running(heirs, words, given, call, spec, asked.form) as process:
                assert process.stdout is not None
                async for found in _Lines(process.stdout):
                    yield _answered(found, asked.form, words[0], _LINES)

        return answer_all

    async def answer(given: Any, call: IncomingCall) -> Any:
        data = bytearray()
        async with _running(heirs, words, given, call, spec, asked.form) as process:
            assert process.stdout is not None
            async for chunk in process.stdout:
                data += chunk
                if len(data) > MAX_CALL_MESSAGE_BYTES:
                    raise _failed(f"it answered with more than {MAX_CALL_MESSAGE_BYTES} bytes")
        found = bytes(data) if asked.form == "raw" else bytes(data).rstrip(b"\r\n")
        return _answered(found, asked.form, words[0], _ONE_ANSWER)

    return answer


@contextlib.asynccontextmanager
async def _running(
    heirs: Heirs,
    words: Sequence[str],
    given: Any,
    call: IncomingCall,
    spec: EndpointSpec,
    form: str,
) -> AsyncIterator[trio.Process]:
    """A process that is given its input. Raises `CallFailedError` when it fails; killed when the
    block is left before it has ended."""
    try:
        process = await heirs.start(
            words, stderr=subprocess.PIPE, env={**os.environ, **_environment(call)}
        )
    except OSError as error:
        raise _failed(f"{words[0]} cannot be run: {error.strerror or error}") from None
    last_words = bytearray()
    feeding = trio.CancelScope()
    is_over = False
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_feed, process, given, spec, form, feeding)
            nursery.start_soon(_keep_end, process, last_words)
            yield process
            await process.wait()
            # A caller that sends nothing more for now is not waited for.
            feeding.cancel()
            # What it has started may hold its stderr open for ever.
            kill_group(process.pid, signal.SIGKILL)
            heirs.forget(process)
            is_over = True
    except ExceptionGroup as errors:
        raise first_of(errors) from None
    finally:
        try:
            await _end(process, is_over=is_over)
        finally:
            # Also where the call is cancelled: its number may be another's soon.
            if not is_over:
                heirs.forget(process)
    if process.returncode:
        told = last_words.decode(errors="replace").strip().splitlines()
        raise _failed(
            told[-1] if told else f"it ended with status {process.returncode}",
            f"{words[0]} ended with status {process.returncode}",
        )


def _environment(call: IncomingCall) -> dict[str, str]:
    """What a program may know of the call."""
    told = {
        "HADRON_ENDPOINT": call.endpoint,
        "HADRON_CALLER": call.caller,
        "HADRON_ATTEMPT": str(call.attempt),
        "HADRON_TIME_LEFT": f"{call.left_s:.3f}",
        # In ASCII, and without a zero byte, whatever they are.
        "HADRON_HEADERS": json.dumps(dict(call.headers)),
    }
    for name in ("traceparent", "tracestate"):
        if name in call.headers:
            told[name.upper()] = call.headers[name]
    return told


async def _feed(
    process: trio.Process, given: Any, spec: EndpointSpec, form: str, feeding: trio.CancelScope
) -> None:
    stdin = process.stdin
    assert stdin is not None
    # A program need not read what it is given.
    with feeding, contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async with stdin:
            if spec.input == STREAM:
                async for value in given:
                    await stdin.send_all(line(value))
            else:
                await stdin.send_all(written(given, form))


async def _keep_end(process: trio.Process, last_words: bytearray) -> None:
    assert process.stderr is not None
    async for chunk in process.stderr:
        last_words += chunk
        del last_words[:-_ERROR_BYTES]


async def _end(process: trio.Process, *, is_over: bool = False) -> None:
    """With all that it has started. `is_over`: that was done, and its number may be another's."""
    if not is_over:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                kill_group(process.pid, signal.SIGTERM)
                with trio.move_on_after(_ENDS_WITHIN_S):
                    await process.wait()
            kill_group(process.pid, signal.SIGKILL)
            await process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await trio.aclose_forcefully(stream)


class _Lines:
    """Lines without their ends. Raises `CallFailedError` for one that is too long."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._rest = bytearray()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        rest = self._rest
        while (end := rest.find(b"\n")) < 0:
            if len(rest) > MAX_CALL_MESSAGE_BYTES:
                raise _failed(f"it wrote a line of more than {MAX_CALL_MESSAGE_BYTES} bytes")
            chunk = await self._stream.receive_some(_READ_BYTES)
            rest += chunk
            if not chunk:
                if not rest:
                    raise StopAsyncIteration
                end = len(rest)
                break
        line = bytes(rest[:end])
        del rest[: end + 1]
        return line.removesuffix(b"\r")

    @property
    def has_more(self) -> bool:
        """Whether something was written that nobody has read yet."""
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._stream.fileno(), _READ_BYTES)
        return bool(self._rest)


def _failed(message: str, hint: str = "") -> CallFailedError:
    return CallFailedError(message, hint, type="ProgramFailed")


def _answered(data: bytes, form: str, program: str, wanted: str) -> Any:
    """What a program has printed as a value. Raises `CallFailedError` that blames the program, for
    who calls and for who serves."""
    try:
        return parse(data, form, program)
    except InvalidRecordError as error:
        shown = shorten(data.decode(errors="backslashreplace"))
        what = f"{program}, which serves the endpoint, printed {shown}"
        why = error.message.removeprefix(f"{program} ")
        with contextlib.suppress(OSError):
            click.echo(f"a call failed: {what}: it {why}; {wanted}", err=True)
        raise _failed(f"{what}: it {why}", f"that is a mistake of the server: {wanted}") from None


# --- one for all ----------------------------------------------------------------------------------


_TOO_MUCH: Final = "has printed more than one line for a call"


class _Worker:
    """A program that answers each line of JSON with a line of JSON; started again when it ends, or
    says what nobody has asked for."""

    def __init__(self, heirs: Heirs, words: Sequence[str]) -> None:
        self._heirs = heirs
        self._words = words
        self._process: trio.Process | None = None
        self._answers: _Lines | None = None
        self._turn = trio.Lock()

    async def ask_with_envelope(self, value: Any, call: IncomingCall) -> Any:
        """The line says also what a program may know of the call."""
        return await self.ask(
            {
                "value": plain(value),
                "headers": dict(call.headers),
                "caller": call.caller,
                "attempt": call.attempt,
                "left_s": round(call.left_s, 3),
            }
        )

    async def ask(self, value: Any) -> Any:
        async with self._turn:
            try:
                return await self._ask(value)
            except BaseException:
                # What it answers next would be taken for the answer to the next call.
                await self.stop()
                raise

    async def _ask(self, value: Any) -> Any:
        if self._process is not None and (why := self._unfit()):
            with contextlib.suppress(OSError):
                click.echo(f"{self._words[0]} is started again: it {why}", err=True)
            await self.stop()
        if self._process is None:
            try:
                self._process = await self._heirs.start(self._words)
            except OSError as error:
                why = error.strerror or str(error)
                raise _failed(f"{self._words[0]} cannot be run: {why}") from None
            self._answers = _Lines(self._process.stdout)
        process, answers = self._process, self._answers
        assert process.stdin is not None
        assert answers is not None
        try:
            await process.stdin.send_all(line(value))
            answer = await anext(answers, None)
        except trio.BrokenResourceError:
            answer = None
        if answer is None:
            await process.wait()
            raise _failed(f"{self._words[0]} has ended with status {process.returncode}")
        if answers.has_more:
            raise _failed(f"{self._words[0]} {_TOO_MUCH}", _ONE_LINE)
        return _answered(answer, "json", self._words[0], _ONE_LINE)

    def _unfit(self) -> str:
        """Why the process cannot be asked any more; "" when it can."""
        assert self._process is not None
        assert self._answers is not None
        if self._answers.has_more:
            # It would be taken for the answer to the next call.
            return _TOO_MUCH
        status = self._process.poll()
        return "" if status is None else f"has ended with status {status}"

    async def stop(self) -> None:
        process, self._process, self._answers = self._process, None, None
        if process is not None:
            try:
                await _end(process)
            finally:
                self._heirs.forget(process)


@contextlib.asynccontextmanager
async def _worker(heirs: Heirs, words: Sequence[str]) -> AsyncIterator[_Worker]:
    worker = _Worker(heirs, words)
    try:
        yield worker
    finally:
        with trio.CancelScope(shield=True):
            await worker.stop()
