"""What a leader does beside its log: the one list, in which a feature has a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hadron.delivery.groups import Groups
from hadron.endpoints.driver import Endpoints
from hadron.exchanges.driver import Exchanges
from hadron.metadata.adopter import Allegiance, SchemaAdopter
from hadron.metadata.pusher import Introduction, ReplicaSets, SchemaPusher, Wires
from hadron.model.ports import Clock, Random
from hadron.node.leader_links import LeaderLinks
from hadron.node.pipelines.other_leaders import OtherLeaders
from hadron.node.pipelines.outputs import StageOutputs
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.schema_driver import AskLeader, schema_driver
from hadron.pipelines.driver import Pipelines
from hadron.serving.digests import DigestDriver
from hadron.serving.dropping import DropDriver
from hadron.serving.leading import Leading, Part
from hadron.serving.retention import RetentionDriver
from hadron.serving.staged import StagedDriver
from hadron.transactions.part import Transactions


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What parts are given beside the leadership itself.

    Attributes:
        clock: of the log.
        sets: the other replica sets of the cluster; None when there are none.
        wires: how they are reached.
        ask: asks the leader of one of them, once.
    """

    config: ReplicaSetConfig
    uuid: bytes
    epoch: int
    clock: Clock
    random: Random
    sets: ReplicaSets | None
    wires: Wires | None
    ask: AskLeader | None


def parts_of(leading: Leading, around: Surroundings) -> Iterator[Part]:
    """Everything that this leader does, in the order in which it ends."""
    controller, catalog, visible = leading.controller, leading.catalog, leading.visible
    name, settings = around.config.name, around.config.settings
    yield Groups(controller, visible, catalog, name, around.random, leading.locks)
    yield Exchanges(visible, catalog, name)
    yield Endpoints(catalog, name, around.random)
    others = OtherLeaders(around.sets, around.wires)
    yield Pipelines(
        controller,
        catalog,
        visible,
        around.clock,
        name,
        leading.locks,
        around.random,
        others,
        StageOutputs(leading),
    )
    links = LeaderLinks(leading, around.config.cluster, around.sets, around.wires, around.random)
    transactions = Transactions(controller, name, links, around.random, locks=leading.locks)
    transactions.claims.observe(controller.observers)
    yield transactions
    yield links
    yield (schema := schema_driver(leading, around.config.metadata, around.sets, around.ask))
    yield SchemaAdopter(
        Allegiance(around.config.cluster, name, around.uuid, around.epoch, around.config.metadata),
        controller,
        catalog,
    )
    if around.config.metadata == name and around.sets is not None and around.wires is not None:
        own = Introduction(around.config.cluster, name, around.uuid, around.epoch)
        yield SchemaPusher(own, controller, catalog, schema, around.sets, around.wires)
    yield DropDriver(controller, catalog)
    yield RetentionDriver(controller, catalog, name)
    yield StagedDriver(controller)
    yield DigestDriver(controller, settings.state_digest_interval_s)
