"""What all groups of a leadership stand on: handed to each driver, and to what writes for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from hadron.delivery.keys import KeyRoom
from hadron.delivery.members import DeliveryNumbers
from hadron.delivery.shelf import Shelves
from hadron.model.ports import Random
from hadron.partition.controller import Controller
from hadron.serving.catalog import Catalog
from hadron.serving.visible import VisibleStreams


@dataclass(frozen=True, slots=True)
class Ground:
    """One per leadership."""

    controller: Controller
    visible: VisibleStreams
    catalog: Catalog
    nursery: trio.Nursery
    numbers: DeliveryNumbers
    random: Random
    shelves: Shelves = field(default_factory=Shelves)
    key_room: KeyRoom = field(default_factory=KeyRoom)
