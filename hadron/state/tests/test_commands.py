"""How commands stand in the log: a promise, because nodes of other versions read them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import NoReturn, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import get_original_bases

from hadron.model.errors import CorruptionError
from hadron.model.ids import Ballot
from hadron.model.schema import LostRange, RegisteredSet, Tombstone
from hadron.model.transactions import (
    DELETED,
    DONE,
    Note,
    Participant,
    StatementResult,
    TransactionId,
)
from hadron.state import machine
from hadron.state.adoption import AdoptObjects, StoredObject
from hadron.state.bodies import DropBodies
from hadron.state.digests import StateDigest
from hadron.state.dropping import DropObject
from hadron.state.features import FEATURES, MACHINE
from hadron.state.groups.changes import CollectGroups, DeleteGroup, ResetGroup
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import ORDER_KEY, AckRecords, CreateGroup, GroupOptions
from hadron.state.leadership import BeginBallot, FollowRules
from hadron.state.machine import BatchShape, Command, encode
from hadron.state.pipelines.backfills import ControlBackfill, StartBackfill, StepBackfill
from hadron.state.pipelines.cancellations import CancelInstances, StartInstances
from hadron.state.pipelines.finished import DropInstances
from hadron.state.pipelines.inputs import MoveInput, OpenInput, TriggerInstances
from hadron.state.pipelines.letters import SendLetters
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.retries import RetryInstances
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.pipelines.wait_inputs import OpenWait
from hadron.state.pipelines.waits import ExpireWaits, Signal, SignalInstance, SignalStages
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import ApplySchema, DeleteObjects, ObjectChange
from hadron.state.sinks.progress import AdvanceSink
from hadron.state.sinks.staging import DropStaged, GiveUpStaged, PublishStaged, StageBatches
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.streams.producers import ClaimProducer
from hadron.state.streams.retention import TrimStream
from hadron.state.together import DoTogether
from hadron.state.transactions.decisions import Decide, ForgetDecisions, NoteFinished
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    WriteIntents,
)
from hadron.state.transactions.joint_decisions import Appending, DecideAppends, DecideRun

TX = TransactionId("eu/p0", 3, 12, (1 << 20) + 7)

GOLDEN: list[tuple[Command, str]] = [
    (
        BeginBallot("n1", b"\x07" * 16, (("n1", "leader"), ("n2", "replica")), b"\x09" * 16, 1),
        "9801a26e31c410070707070707070707070707070707079292a26e31a66c656164657292a26e32a7"
        "7265706c696361c4100909090909090909090909090909090901"
        "c40000",
    ),
    (
        AppendBatch(3, 1_000, 65_536, b"\x01" * 16, 2, 40_000),
        "970203cd03e8ce00010000c4100101010101010101010101010101010102cd9c40",
    ),
    (AppendBatch(3, 1, 90, b"", 0, -1), "970203015ac40000ff"),
    (
        CreateGroup(3, "billing", 17, GroupOptions(ORDER_KEY, 30_000, 5, 4), 9),
        "960303a762696c6c696e67119402cd7530050409",
    ),
    (AckRecords(12, ((0, 9), (11, 300))), "93040c92920009920bcd012c"),
    (
        ApplySchema(4, (ObjectChange("Stream", "default", "f", '{"partitions":["p"]}'),)),
        "9305049194a653747265616da764656661756c74a166b47b22706172746974696f6e73223a5b2270225d7d",
    ),
    (
        TriggerInstances(5, "local/p0", 0, 300, (1, 299)),
        "980605a86c6f63616c2f703000cd012c9201cd012b920000c400",
    ),
    (
        CompleteStages(5, "enrich", (1, 2), (1, 3), 4, 70_000, (9, 300), 0, "r", "c", (7,)),
        "9c0705a6656e7269636892010292010304ce000111709209cd012c00a172a1639107",
    ),
    (
        FailStages(5, "enrich", (7,), (2,), "too cold", (9,), True, "r", "c", (7,)),
        "9b0805a6656e7269636891079102a8746f6f20636f6c649109c3a172a1639107",
    ),
    (
        StateDigest("hadron_group", b"\x91\x01", 7, True, b"\x05" * 16),
        "9609ac686164726f6e5f67726f7570c402910107c3c41005050505050505050505050505050505",
    ),
    (TrimStream(3, 40_000), "930a03cd9c40"),
    (
        AdoptObjects(
            b"\x01" * 16,
            2,
            4,
            7,
            0,
            True,
            False,
            (StoredObject(5, "Stream", "default", "f", "{}", 5),),
            (Tombstone(6, 3, "Stream", "default", "g"),),
            (RegisteredSet("p", b"\x02" * 16, 1, 7),),
            (LostRange(3, 4),),
        ),
        "9c0bc4100101010101010101010101010101010102040700c3c2919605a653747265616da764"
        "656661756c74a166a27b7d0591950603a653747265616da764656661756c74a1679194a170c4"
        "1002020202020202020202020202020202010791920304",
    ),
    (
        RegisterReplicaSet("local/p0", b"\x02" * 16, 3, 300),
        "950ca86c6f63616c2f7030c4100202020202020202020202020202020203cd012c",
    ),
    (DeleteObjects(9, (3, 300)), "930d099203cd012c"),
    (
        EndDeliveries(12, ((4, 9, 1), (300, 300, 2)), ((7, 8),)),
        "940e0c929304090193cd012ccd012c0291920708",
    ),
    (DeadLetterRecords(12, 4, ((7, 8),), 333), "950f0c0491920708cd014d"),
    (ResetGroup(12, 40, 99), "94100c2863"),
    (DeleteGroup(12), "92110c"),
    (CollectGroups(), "9112"),
    (DropObject(3, 40_000), "931403cd9c40"),
    (FollowRules(2), "921602"),
    (RetryInstances(5, (7, 300)), "9517059207cd012cc2c400"),
    (RetryInstances(5, (7, 300), True, b"\x05" * 16), "9517059207cd012cc3c410" + "05" * 16),
    (
        DoTogether.of(AppendBatch(3, 1, 90, b"", 0, -1), AckRecords(12, ((0, 9),))),
        "921892c409970203015ac40000ffc40793040c91920009",
    ),
    (DropBodies(300), "9219cd012c"),
    (
        WriteIntents(TX, 2, (encode(AppendBatch(3, 1, 90, b"", 0, -1)),)),
        "941e94a565752f7030030cce001000070291c409970203015ac40000ff",
    ),
    (FinishTransaction(TX, 300, 3), "941f94a565752f7030030cce00100007cd012c03"),
    (AbortTransaction(TX), "922094a565752f7030030cce00100007"),
    (ForgetTransactions((TX,)), "92219194a565752f7030030cce00100007"),
    (
        Decide(TX, (Participant("us/p1", 300, 3),), (encode(AckRecords(12, ((0, 9),))),)),
        "942294a565752f7030030cce001000079193a575732f7031cd012c0391c40793040c91920009",
    ),
    (
        NoteFinished((Note(TX, "us/p1", (StatementResult(40, 3, 1_000_000), DONE, DELETED)),)),
        "9223919394a565752f7030030cce00100007a575732f703193942803ce000f4240c294ff0000c294ff0000c3",
    ),
    (ForgetDecisions(1_000_000, 300, 7), "9424ce000f4240cd012c07"),
    (AppendGuarded(3, 1, 90, b"", 0, -1, 17, None), "9b2803015ac40000ff11c0c400ff"),
    (
        AppendGuarded(3, 1, 90, b"\x01" * 16, 300, 5, None, -1, b"\x02" * 8, 77),
        "9b2803015ac41001010101010101010101010101010101cd012c05c0ffc40802020202020202024d",
    ),
    (
        DecideAppends(
            "eu/p0",
            Ballot(3, 9),
            (Appending(7, (AppendBatch(3, 1, 90, b"", 0, -1),), (Participant("us/p1", 300, 3),)),),
        ),
        "942aa565752f703092030991930791970203015ac40000ff9193a575732f7031cd012c03",
    ),
    (
        DecideRun(TX, (1, 2), encode(AppendBatch(3, 3, 90, b"", 0, -1))),
        "943994a565752f7030030cce00100007920102c409970203035ac40000ff",
    ),
    (
        ClaimProducer(3, "billing-3", 12, b"\x05" * 16),
        "952903a962696c6c696e672d330cc41005050505050505050505050505050505",
    ),
    (OpenInput(5, "eu/p0", 4, 300), "952b05a565752f703004cd012c"),
    (MoveInput(5, "eu/p0", 0, 300, True, Ballot(1, 2)), "972c05a565752f703000cd012cc3920102"),
    (
        PublishStages(5, "do", (1,), (2,), (300,), 1, 4, "eu/p0"),
        "9c2d05a2646f9101910291cd012c0104a565752f7030a0a090",
    ),
    (
        StartInstances(5, 4, "eu/p0", (7, 300), b"rr", b"\x05" * 16),
        "972e0504a565752f70309207cd012cc4027272c41005050505050505050505050505050505",
    ),
    (CancelInstances(5, (7, 300)), "932f059207cd012c"),
    (SendLetters(5, (7, 300), 4, 70), "9530059207cd012c0446"),
    (DropInstances(5, 300), "933105cd012c"),
    (StartBackfill(5, "eu/p0", 7, 300, 9, True, b"rr"), "983205a565752f703007cd012c09c3c4027272"),
    (StepBackfill(5, 1, 7, 300, (9,)), "9733050107cd012c9109c400"),
    (ControlBackfill(5, 1, 2), "9434050102"),
    (
        SignalStages(5, 3, "eu/p0", 7, 300, (Signal(9, "paid", 8),), Ballot(3, 12)),
        "99350503a565752f703007cd012c919309a4706169640892030cc2",
    ),
    (SignalInstance(5, 9, "approve", 4, 70), "96360509a7617070726f76650446"),
    (ExpireWaits(5, 300), "933705cd012c"),
    (OpenWait(5, 3, "eu/p0", 300), "95380503a565752f7030cd012c"),
    (
        StageBatches(3, b"ww", b"aa", 4, (BatchShape(2, 70), BatchShape(1, 50)), 9, "x"),
        "984603c4027777c4026161049292024692013209a178",
    ),
    (GiveUpStaged(b"ww"), "9247c4027777"),
    (DropStaged(300), "9248cd012c"),
    (PublishStaged(3, b"ww", ((b"aa", 2),)), "944903c40277779192c402616102"),
    (AdvanceSink("n/s", "q", 7, "r"), "954aa36e2f73a17107a172"),
]


@pytest.mark.parametrize(("command", "data"), GOLDEN, ids=lambda v: type(v).__name__)
def test_the_bytes_of_each_command(command: Command, data: str) -> None:
    assert machine.encode(command).hex() == data
    assert MACHINE.decode(bytes.fromhex(data)) == command


@pytest.mark.parametrize(
    ("command", "data"),
    [
        (
            CompleteStages(5, "enrich", (1, 2), (1, 3), 4, 70_000),
            "970705a6656e7269636892010292010304ce00011170",
        ),
        (
            FailStages(5, "enrich", (7,), (2,), "too cold"),
            "960805a6656e7269636891079102a8746f6f20636f6c64",
        ),
        (ForgetDecisions(1_000_000), "9224ce000f4240"),
        (
            BeginBallot("n1", b"\x07" * 16, (), b"", 1, b"\x09"),
            "9701a26e31c4100707070707070707070707070707070790c40001c40109",
        ),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_was_logged_before_fields_were_added_is_read(command: Command, data: str) -> None:
    assert MACHINE.decode(bytes.fromhex(data)) == command


def test_every_command_has_golden_bytes() -> None:
    assert {type(command) for command, _ in GOLDEN} == set(MACHINE.commands)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 200, 255, 256, 900, 65_535])
@pytest.mark.parametrize("fields", [0, 3, 14, 15, 20])
def test_a_number_of_any_size_is_read_without_decoding(number: int, fields: int) -> None:
    """Whatever MessagePack makes of the array's length and of the number."""
    wide = msgspec.defstruct(
        "Wide",
        [(f"f{each}", int) for each in range(fields)],
        bases=(Command,),
        namespace={"__module__": __name__},
        frozen=True,
        array_like=True,
        tag=number,
    )
    data = machine.encode(wide(*range(fields)))
    assert machine.number_of(data) == number
    assert machine.number_of(data[: 1 if fields < 15 else 3]) == -1
    if number >= 128:
        assert machine.number_of(data[: 2 if fields < 15 else 4]) == -1


@given(st.binary(max_size=8))
def test_what_has_no_number_has_none(data: bytes) -> None:
    assert machine.number_of(data) >= -1
    assert machine.number_of(b"\x81" + data) == -1
    assert machine.number_of(b"\x92\xa1x" + data) == -1


def test_the_number_of_each_command_is_read() -> None:
    for command, data in GOLDEN:
        assert machine.number_of(bytes.fromhex(data)) == command.__struct_config__.tag


def test_the_number_comes_first() -> None:
    tags = [msgspec.msgpack.decode(machine.encode(command))[0] for command, _ in GOLDEN]
    assert len(set(tags)) == len(MACHINE.commands)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91\x63",
        b"\x91\x00",
        b"\x90",
        b"\x80",
        b"\x93\x03\x01",
        b"\x94\x03\xa1x\xa1y\x00",
        b"\x94\x03\x01\xa1y\x00\x00",
    ],
    ids=[
        "nothing",
        "no MessagePack",
        "an unknown number",
        "the base",
        "no number",
        "a map",
        "too few fields",
        "a field of another type",
        "bytes behind it",
    ],
)
def test_what_is_no_command_is_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="cannot be understood") as caught:
        MACHINE.decode(data)
    assert "newer version" in caught.value.hint


@given(st.binary(max_size=60))
def test_whatever_the_bytes_nothing_else_is_raised(data: bytes) -> None:
    try:
        command = MACHINE.decode(data)
    except CorruptionError:
        return
    assert isinstance(command, Command)


def test_fields_added_later_at_the_end_are_passed_over() -> None:
    """An older node reads what a newer one wrote; `apply_version` says whether it may."""
    data = msgspec.msgpack.encode([4, 1, [[3, 4]], "from the future"])
    assert MACHINE.decode(data) == AckRecords(1, ((3, 4),))


def test_a_group_from_before_there_were_options() -> None:
    data = bytes.fromhex("940303a762696c6c696e6711")
    assert MACHINE.decode(data) == CreateGroup(3, "billing", 17)


APPLIES = {command: apply for feature in FEATURES for command, apply in feature.commands.items()}


@pytest.mark.parametrize("command", APPLIES, ids=lambda each: each.__name__)
def test_whoever_logs_a_command_is_given_what_its_apply_returns(command: type[Command]) -> None:
    """`Controller.execute` has the type from the command, and the result from `apply`."""
    apply = APPLIES[command]
    names = vars(sys.modules[command.__module__]) | vars(sys.modules[apply.__module__])
    returned = get_type_hints(apply, names)["return"]
    if returned is NoReturn:
        assert get_original_bases(command) == (Command,), "a part of others, whose result it is in"
        return
    (base,) = get_original_bases(command)
    while base in APPLIES:
        (base,) = get_original_bases(base)
    (result,) = get_args(base)
    declared = get_type_hints(SimpleNamespace(__annotations__={"result": result}), names)
    assert declared["result"] == returned
