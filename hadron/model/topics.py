"""Topics of exchanges, and patterns of them, as everybody writes them: dot segments, in a pattern
`*` for any one of them and `>` for the rest, one or more. Pure.

They are event types and patterns of these, within bounds: what is published is a record whose type
is its topic, so a stream can be bridged to an exchange without a record being touched.
"""

from __future__ import annotations

import re
from typing import Final

from hadron.model.errors import RequestError
from hadron.model.ids import is_event_type
from hadron.model.problems import did_you_mean, shorten

MAX_TOPIC_CHARACTERS: Final = 255
"""RabbitMQ's bound on routing keys."""

MAX_SEGMENTS: Final = 16
"""Each may double what a match has to look at: as a `*`, and as itself."""

MAX_PATTERNS: Final = 100
"""Of one subscription."""

TOPIC_FORM: Final = (
    f"write 1 to {MAX_SEGMENTS} dot segments such as eu.ibm, without blanks, "
    f"{MAX_TOPIC_CHARACTERS} characters at most; * and > are for patterns"
)
PATTERN_FORM: Final = (
    "write dot segments such as eu.*, of which any may be *, for one segment, and the last >, for "
    f"the rest; at most {MAX_SEGMENTS}, and {MAX_TOPIC_CHARACTERS} characters"
)
TEMPLATE_FORM: Final = (
    "a topic in which {type}, {stream} and {partition} stand for a record's own, such as "
    "orders.{type}"
)

FIELDS: Final = ("type", "stream", "partition")
"""What of a record a template's {NAME} may stand for."""

_FIELD: Final = re.compile(rf"\{{({'|'.join(FIELDS)})\}}")
_BRACED: Final = re.compile(r"\{[^{}]*\}")


def is_topic(text: str) -> bool:
    return (
        len(text) <= MAX_TOPIC_CHARACTERS and text.count(".") < MAX_SEGMENTS and is_event_type(text)
    )


def is_pattern(text: str) -> bool:
    if len(text) > MAX_TOPIC_CHARACTERS or text.count(".") >= MAX_SEGMENTS:
        return False
    *most, last = text.split(".")
    return all(each == "*" or is_event_type(each) for each in most) and (
        last in ("*", ">") or is_event_type(last)
    )


def check_topic(text: str) -> None:
    """Raises `RequestError` for what nobody can publish on."""
    if not is_topic(text):
        raise RequestError(f"{shorten(text)} is not a topic", TOPIC_FORM)


def check_pattern(text: str) -> None:
    """Raises `RequestError` for what no topic could match, and for RabbitMQ's `#`."""
    if "#" in text.split("."):
        raise RequestError(
            f"in {shorten(text)} # is no wildcard", "write > for the rest, one segment or more"
        )
    if not is_pattern(text):
        raise RequestError(f"{shorten(text)} is not a pattern of topics", PATTERN_FORM)


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern takes a topic, looked at one by one: for who has one of each. The leader
    has all patterns in a trie."""
    wanted, given = pattern.split("."), topic.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(
        each in ("*", found) for each, found in zip(wanted, given, strict=True)
    )


def wrong_in_template(text: str) -> str:
    """What is wrong with a template, in words; "" where topics can be made of it. An empty one
    stands for `{type}`."""
    known = [f"{{{name}}}" for name in FIELDS]
    for found in _BRACED.findall(text):
        if found not in known:
            return f"{shorten(found)} is no placeholder{did_you_mean(found, known)}"
    if len(text) > MAX_TOPIC_CHARACTERS:
        # It goes out with each batch.
        return f"{shorten(text)} has {len(text)} characters, the limit is {MAX_TOPIC_CHARACTERS}"
    rest = _FIELD.sub("x", text)
    if "{" in rest or "}" in rest:
        return f"{shorten(text)} has a brace that belongs to no placeholder"
    return "" if not text or is_topic(rest) else f"{shorten(text)} makes no topic"


def expand(template: str, event_type: str, stream: str, partition: str) -> str:
    """The topic of a record of a bridged stream; "" when that would be none, for want of a type
    perhaps. A partition's `/` becomes a dot."""
    if not template:
        return event_type if event_type and is_topic(event_type) else ""
    own = {"type": event_type, "stream": stream, "partition": partition.replace("/", ".")}
    topic = _FIELD.sub(lambda found: own[found[1]], template)
    return topic if is_topic(topic) else ""
