"""What is met once is forgotten, and whoever makes much of it fills neither log nor status."""

from __future__ import annotations

from hadron.model.troubles import Troubles


def test_what_is_repeated_stands_and_is_logged_once() -> None:
    logged: list[str] = []
    troubles = Troubles(logged.append)
    for now_s in (0.0, 50.0, 100.0):
        troubles.meet("a", "a fails", now_s)
        assert troubles.standing(now_s + 59.9) == ["a fails"]
    assert troubles.standing(160.0) == []
    assert logged == ["a fails"]
    troubles.meet("a", "a fails", 200.0)
    assert logged == ["a fails"] * 2, "it has come again"
    troubles.meet("a", "a fails otherwise", 201.0)
    assert logged[2:] == troubles.standing(201.0) == ["a fails otherwise"]
    troubles.forget("a")
    assert troubles.standing(201.0) == []


def test_however_many_are_made_and_however_long() -> None:
    logged: list[str] = []
    troubles = Troubles(logged.append)
    for number in range(1_000):
        troubles.meet(f"{number}", f"{number} " + "x" * 10_000, 0.1 * number)
    # 100 s: the end of the first minute is told with the beginning of the next.
    assert len(logged) == 64 + 1 + 64
    assert logged[64] == "536 more warnings like these were not written down"
    assert len(troubles.standing(100.0)) == 64
    assert troubles.standing(100.0)[-1].startswith("999 x")
    assert max(map(len, [*logged, *troubles.standing(100.0)])) == 4_000
