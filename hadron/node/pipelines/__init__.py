"""Pipelines over replica sets: reading inputs that live elsewhere, outputs that go there."""
