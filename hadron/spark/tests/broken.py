"""A module that cannot be imported."""

VALUE = 1 / 0
