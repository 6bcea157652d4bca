"""A browser's own `EventSource` follows a stream over the death of leaders and doors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import BROWSERS, Page, browser, which_browser

import hadron
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config


class Publisher:
    """Publishes 0, 1, 2 … until the block ends, whoever is killed meanwhile.

    Attributes:
        count: how many are acknowledged.
    """

    def __init__(self, url: str) -> None:
        self.count = 0
        self._url = url
        self._end = threading.Event()
        self._failure: Exception | None = None

    def _run(self) -> None:
        try:
            with hadron.connect_sync(self._url) as client, client.producer("s") as producer:
                while not self._end.wait(0.01):
                    producer.send(self.count)
                    self.count += 1
        except Exception as error:
            self._failure = error

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()
        if self._failure is not None:
            raise self._failure


@pytest.mark.skipif(which_browser() is None, reason=f"there is none of {', '.join(BROWSERS)}")
def test_an_event_source_misses_nothing_while_leaders_and_doors_die(tmp_path: Path) -> None:
    """The page follows at a replica's door: the leader is killed; it is killed again while the page
    is cut off and goes on at another door; and that door's node is killed."""
    config = write_config(tmp_path / "cluster.yaml", 3, "fsync", http_ports=free_ports(3))
    with LocalCluster(tmp_path, config=config) as cluster:
        doors = {each.name: each.http or "" for each in cluster.config.nodes}
        with hadron.connect_sync(cluster.url) as client:
            client.create_stream("s")
        publisher = Publisher(cluster.url)
        with Page(doors["n2"]) as page, browser(page.url, tmp_path):
            with publisher.running():
                page.wait("it follows", lambda it: len(it.seen) >= 50)

                cluster.kill("n1")
                cluster.start("n1")
                page.wait("behind the first kill", _more(publisher, 50))

                cluster.kill("n1")
                page.door = doors["n3"]
                page.cut()
                page.wait("it has come back", lambda it: len(it.asked) >= 2)
                cluster.start("n1")
                page.wait("behind the second kill", _more(publisher, 50))

                page.door = doors["n2"]
                cluster.kill("n3")
                page.wait("at the first door again", _more(publisher, 50))
            page.wait("all", lambda it: len(it.seen) >= publisher.count)
            told, asked = page.told, page.asked
        cluster.start("n3")
    assert told["seen"] == list(range(publisher.count)), "each once, in order"
    assert told["opened"] >= 3, "at three doors, one after the other"
    assert asked[0] == ""
    assert all(re.fullmatch(r"local/p0:\d+", each) for each in asked[1:]), asked
    # The door's own origin is another one than the page's.
    assert told["foreign"] == {"messages": 0, "refused": True}


def _more(publisher: Publisher, count: int) -> Callable[[Page], bool]:
    """The page has what is published from now on."""
    wanted = publisher.count + count
    return lambda page: len(page.seen) >= wanted
