"""Declared objects as the YAML that declares them: for `get`, `describe` and diffs.

What has its default is left out, so a document reads like what a person would have written, and
reading it again gives the same object.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml

from hadron.model.documents.spellings import respell
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.schema import (
    EndpointSpec,
    ExchangeSpec,
    Lane,
    NamespaceSpec,
    PipelineSpec,
    QueueSpec,
    Retention,
    Retry,
    ScheduleSpec,
    SchemaObject,
    Spec,
    StageSpec,
    StreamSpec,
    Target,
    TokenSpec,
)
from hadron.model.units import format_duration, format_size, format_time

_OTHER_BREAKS = re.compile("[\x85\u2028\u2029]")
"""Line breaks to YAML 1.1, which folds them away unless they are escaped."""
_DEFAULT_STAGE = StageSpec(name="")
_DEFAULT_PIPELINE = PipelineSpec(replica_set="", input="", stages=())
_DEFAULT_QUEUE = QueueSpec(replica_set="")
_DEFAULT_SCHEDULE = ScheduleSpec(cron="", target=Target())


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, so that a diff shows the line that changed."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if _OTHER_BREAKS.search(text):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_document(obj: SchemaObject) -> dict[str, Any]:
    """The object as the document that declares it; its id and index are not part of it."""
    document: dict[str, Any] = {"kind": obj.kind, "name": obj.name}
    if obj.namespace != DEFAULT_NAMESPACE:
        document["namespace"] = obj.namespace
    if obj.spec.description:
        document["description"] = obj.spec.description
    document |= _specified(obj.spec)
    respell(document, getattr(obj.spec, "written", ()))
    return document


def to_yaml(obj: SchemaObject) -> str:
    """The object as one YAML document, without `---`."""
    text: str = yaml.dump(
        to_document(obj),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    return text


def _specified(spec: Spec) -> dict[str, Any]:
    if isinstance(spec, StreamSpec):
        return _stream(spec)
    if isinstance(spec, PipelineSpec):
        return _pipeline(spec)
    if isinstance(spec, QueueSpec):
        return _queue(spec)
    if isinstance(spec, ScheduleSpec):
        return _schedule(spec)
    if isinstance(spec, TokenSpec):
        return _token(spec)
    if isinstance(spec, (ExchangeSpec, EndpointSpec)):
        return {"replica_set": spec.replica_set}
    assert isinstance(spec, NamespaceSpec), spec
    return {}


def _stream(spec: StreamSpec) -> dict[str, Any]:
    document: dict[str, Any] = {"partitions": list(spec.partitions)}
    if spec.retention != Retention():
        retention = document["retention"] = {}
        if spec.retention.max_age_ms:
            retention["max_age"] = format_duration(spec.retention.max_age_ms)
        if spec.retention.max_bytes:
            retention["max_bytes"] = format_size(spec.retention.max_bytes)
    return document


def _pipeline(spec: PipelineSpec) -> dict[str, Any]:
    document: dict[str, Any] = {"replica_set": spec.replica_set, "input": spec.input}
    if spec.triggers:
        document["triggers"] = list(spec.triggers)
    if spec.start != _DEFAULT_PIPELINE.start:
        document["start"] = spec.start
    if spec.max_parallel != _DEFAULT_PIPELINE.max_parallel:
        document["max_parallel"] = spec.max_parallel
    document["stages"] = [_stage(stage) for stage in spec.stages]
    return document


def _queue(spec: QueueSpec) -> dict[str, Any]:
    document: dict[str, Any] = {"replica_set": spec.replica_set}
    if spec.lanes:
        document["lanes"] = [_changed(lane, Lane(name="")) for lane in spec.lanes]
    if spec.max_attempts != _DEFAULT_QUEUE.max_attempts:
        document["max_attempts"] = spec.max_attempts
    for key in ("lease", "backoff", "result_ttl"):
        value = getattr(spec, f"{key}_ms")
        if value != getattr(_DEFAULT_QUEUE, f"{key}_ms"):
            document[key] = format_duration(value)
    return document


def _schedule(spec: ScheduleSpec) -> dict[str, Any]:
    document: dict[str, Any] = {"cron": spec.cron, "target": _changed(spec.target, Target())}
    if spec.value:
        document["value"] = spec.value
    if spec.catch_up != _DEFAULT_SCHEDULE.catch_up:
        document["catch_up"] = spec.catch_up
    return document


def _token(spec: TokenSpec) -> dict[str, Any]:
    document: dict[str, Any] = {"access": spec.access}
    if spec.namespaces:
        document["namespaces"] = list(spec.namespaces)
    if spec.expires_ms:
        document["expires"] = format_time(spec.expires_ms)
    if spec.sha256:
        document["sha256"] = spec.sha256
    return document


def _changed(value: msgspec.Struct, default: msgspec.Struct) -> dict[str, Any]:
    """The fields that differ from `default`'s, which are spelled as they are in YAML."""
    return {
        key: getattr(value, key)
        for key in value.__struct_fields__
        if getattr(value, key) != getattr(default, key)
    }


def _stage(stage: StageSpec) -> dict[str, Any]:
    document: dict[str, Any] = {"name": stage.name}
    for key in ("engine", "run", "schema"):
        if getattr(stage, key) != getattr(_DEFAULT_STAGE, key):
            document[key] = getattr(stage, key)
    for key in ("dependencies", "after"):
        if getattr(stage, key):
            document[key] = list(getattr(stage, key))
    if stage.delay_ms != _DEFAULT_STAGE.delay_ms:
        document["delay"] = format_duration(stage.delay_ms)
    if stage.timeout_ms != _DEFAULT_STAGE.timeout_ms:
        document["timeout"] = format_duration(stage.timeout_ms)
    if stage.retry != Retry():
        document["retry"] = {
            "max_attempts": stage.retry.max_attempts,
            "backoff": format_duration(stage.retry.backoff_ms),
        }
    if stage.output is not None:
        document["output"] = {"stream": stage.output.stream}
        if stage.output.partition:
            document["output"]["partition"] = stage.output.partition
    return document
