"""The checks of stages that wait find what is wrong with a history, and nothing in a good one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from hadron.model.pipelines import PipelineSpec, StageSpec, Wait
from hadron.model.schema import spec_to_json
from hadron.sim.evidence.history import Settle
from hadron.sim.evidence.made import Keyed, keyed
from hadron.sim.tests.support import PARTITION, STREAM, Scene
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.pipelines.waits import ExpireWaits, Signal, SignalInstance, SignalStages
from hadron.state.schema import ApplySchema, ObjectChange

Spoil = Callable[[Scene], None]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An order at 0, a question about it, and two payments, of which nobody is told yet."""
    scene = Scene(tmp_path / "hadron.db")
    flow = PipelineSpec(
        replica_set=PARTITION,
        input=STREAM,
        triggers=("order.*",),
        start="earliest",
        max_parallel=10,
        stages=(
            StageSpec(name="paid", wait=Wait(stream=STREAM, types=("payment.*",))),
            StageSpec(name="approved", wait=Wait(signal=True, timeout_ms=1), after=("paid",)),
        ),
    )
    change = ObjectChange("Pipeline", "default", "flow", spec_to_json(flow).decode())
    scene.log(ApplySchema(1, (change,)))
    scene.flow_id = scene.stream_id + 1
    for does in ("order.placed", "question.asked", "payment.made", "payment.made"):
        scene.publish(f"{Keyed('k', does)}{scene.history.tick()}")
    keys = struct.pack("<Q", 7)
    scene.log(TriggerInstances(scene.flow_id, PARTITION, 0, 4, (0,), key_hashes=keys))
    return scene


def paid_with(scene: Scene, offset: int) -> None:
    told = (Signal(1, "paid", offset),)
    scene.log(SignalStages(scene.flow_id, scene.stream_id, PARTITION, 0, 4, told))


def asked(scene: Scene) -> Settle:
    """Somebody signals the instance, and has no answer yet."""
    flow = f"flow#{scene.flow_id}"
    return scene.history.settle("o", flow, "approved", STREAM, PARTITION, [(1, 1)], how="signal")


def approved(scene: Scene) -> None:
    scene.history.ok(asked(scene))
    scene.log(SignalInstance(scene.flow_id, 1, "approved", 0, 0))


def later_record(scene: Scene) -> None:
    paid_with(scene, 3)
    approved(scene)


def record_of_another_type(scene: Scene) -> None:
    paid_with(scene, 1)
    approved(scene)


def signal_lost(scene: Scene) -> None:
    paid_with(scene, 2)
    scene.history.ok(asked(scene))
    scene.log(ExpireWaits(scene.flow_id, 1 << 60))


def refused_and_done(scene: Scene) -> None:
    paid_with(scene, 2)
    scene.history.refused(asked(scene), "it does not wait")
    approved(scene)


def signalled_by_nobody(scene: Scene) -> None:
    paid_with(scene, 2)
    approved(scene)
    (noted,) = scene.history.of(Settle)
    noted.ranges = [(2, 2)]


CASES: list[tuple[Spoil, str]] = [
    (later_record, "the_first_record_counts"),
    (record_of_another_type, "the_first_record_counts"),
    (signal_lost, "who_was_signalled_goes_on"),
    (refused_and_done, "who_was_signalled_goes_on"),
    (signalled_by_nobody, "who_was_signalled_goes_on"),
]


def test_a_good_history_has_no_fault(scene: Scene) -> None:
    paid_with(scene, 2)
    approved(scene)
    assert scene.broken() == set()
    assert {"the_first_record_counts", "who_was_signalled_goes_on"} <= scene.verdict().judged


@pytest.mark.parametrize(("spoil", "invariant"), CASES, ids=[each.__name__ for each, _ in CASES])
def test_only_the_check_that_it_is_for_finds_it(scene: Scene, spoil: Spoil, invariant: str) -> None:
    spoil(scene)
    assert scene.broken() == {invariant}


def test_a_value_says_who_does_what() -> None:
    assert keyed(f"{Keyed('k1', 'payment.made')}c/1") == Keyed("k1", "payment.made")
    assert keyed("filler") is None
