"""What is told of an exception: whose it is, and where."""

from __future__ import annotations

from hadron.spark.failures import summary


class Py4JJavaError(Exception):
    """As py4j words it: its own line, and then Java's exception with its stack."""

    def __str__(self) -> str:
        return (
            "An error occurred while calling o57.start.\n"
            ": java.io.FileNotFoundException: /checkpoints/metadata (Permission denied)\n"
            "\tat java.base/java.io.FileOutputStream.open0(Native Method)\n"
        )


def test_an_exception_of_javas_has_its_own_name() -> None:
    told = summary(Py4JJavaError())
    assert told == "java.io.FileNotFoundException: /checkpoints/metadata (Permission denied)"


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_says_nothing_is_named() -> None:
    assert summary(MuteError()) == "MuteError"
    assert summary(ValueError()) == "ValueError"


def test_an_exception_of_pythons_has_its_line() -> None:
    assert summary(ValueError("no carrier")) == "ValueError: no carrier"
