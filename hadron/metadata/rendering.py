"""Declared objects as the YAML that declares them: for `get`, `describe` and diffs.

What has its default is left out, so a document reads like what a person would have written, and
reading it again gives the same object.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.schema import (
    NamespaceSpec,
    PipelineSpec,
    Retention,
    Retry,
    SchemaObject,
    StageSpec,
    StreamSpec,
)
from hadron.model.units import format_duration, format_size

_OTHER_BREAKS = re.compile("[\x85\u2028\u2029]")
"""Line breaks to YAML 1.1, which folds them away unless they are escaped."""
_DEFAULT_STAGE = StageSpec(name="")
_DEFAULT_PIPELINE = PipelineSpec(replica_set="", input="", stages=())


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, so that a diff shows the line that changed."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if _OTHER_BREAKS.search(text):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(obj: SchemaObject) -> str:
    """The object as one YAML document, without `---`; its id and index are not part of it."""
    document: dict[str, Any] = {"kind": obj.kind, "name": obj.name}
    if obj.namespace != DEFAULT_NAMESPACE:
        document["namespace"] = obj.namespace
    if obj.spec.description:
        document["description"] = obj.spec.description
    if isinstance(obj.spec, StreamSpec):
        document |= _stream(obj.spec)
    elif isinstance(obj.spec, PipelineSpec):
        document |= _pipeline(obj.spec)
    else:
        assert isinstance(obj.spec, NamespaceSpec), obj.spec
    text: str = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    return text


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
