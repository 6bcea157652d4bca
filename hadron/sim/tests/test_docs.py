"""The pages of rules are true as far as a program can tell: the code cites rules that are on them,
and they name code, tests, scenarios and planted bugs that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from hadron.sim.checks import checker
from hadron.sim.checks import regions as region_checks
from hadron.sim.checks.rules import ORACLES
from hadron.sim.mutants import MUTANTS
from hadron.sim.mutants.transaction_edits import PLANTED
from hadron.sim.scenarios import SCENARIOS
from hadron.sim.tests.test_rules import complaints

_ROOT = Path(__file__).parents[3]
_PACKAGE = _ROOT / "hadron"
_PAGES = tuple(sorted((_ROOT / "docs").glob("*.md")))
_READ_FIRST = (_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", _PACKAGE / "ARCHITECTURE.md")

_RULE = re.compile(r"^(#{2,3}) ([A-Z]\d*)\. (.+)$", re.MULTILINE)
_WITH_RULES = tuple(page.stem for page in _PAGES if _RULE.search(page.read_text()))
_CITED = re.compile(
    rf"\b({'|'.join(_WITH_RULES)}) ([A-Z]\d*(?:(?:, | and | or | to )[A-Z]\d*)*)\b(?!\w)"
)
_PARTS = ("*Without it:*", "- Where:", "- Held by:")
_MOST_WORDS = 120
"""In one paragraph, item or cell: a rule that needs more wants a table, or is two."""


def _rules(text: str) -> dict[str, str]:
    """A page's rules and sections by id, each with what stands below its heading."""
    heads = list(_RULE.finditer(text))
    other = [match.start() for match in re.finditer(r"^#{1,3} ", text, re.MULTILINE)]
    found: dict[str, str] = {}
    for head in heads:
        assert head[2] not in found, f"{head[2]} is there twice"
        end = min((at for at in other if at > head.start()), default=len(text))
        found[head[2]] = text[head.end() : end]
    return found


def _is_rule(name: str, body: str) -> bool:
    """Whether it is one, and not a section's heading."""
    return len(name) > 1 or any(part in body for part in _PARTS)


def _part(body: str, begins: str) -> str:
    """An item, up to the next one or the end of the paragraph."""
    assert begins in body, f"it has no {begins}"
    return re.split(r"\n- |\n\n", body.split(begins, 1)[1], maxsplit=1)[0]


def _names(text: str) -> list[str]:
    """What stands between backticks, which may go over the end of a line."""
    return [" ".join(name.split()) for name in re.findall(r"`([^`]+)`", text)]


def cited(text: str) -> set[str]:
    """The rules that a file names, as "PAGE id", wherever its lines end."""
    joined = re.sub(r"\s*\n[\s#*/\-]*", " ", text)
    found: set[str] = set()
    for match in _CITED.finditer(joined):
        page, ids = match.groups()
        found.update(f"{page} {each}" for each in re.findall(r"[A-Z]\d*", ids))
        for first, last in re.findall(r"([A-Z]\d+) to ([A-Z]\d+)", ids):
            between = range(int(first[1:]), int(last[1:]))
            found.update(f"{page} {first[0]}{n}" for n in between)
    return found


def citable() -> set[str]:
    """Each rule of each page; and a letter, which is a section's or a whole page's."""
    ids = ((page.stem, each) for page in _PAGES for each in _rules(page.read_text()))
    return {f"{page} {part}" for page, each in ids for part in (each, each[0])}


@cache
def _code() -> tuple[Path, ...]:
    folders = {"hadron": ("*.py", "*.md"), "proto": ("*.proto",), "cluster-tests": ("*.py",)}
    return tuple(
        path
        for folder, patterns in folders.items()
        for pattern in patterns
        for path in sorted((_ROOT / folder).rglob(pattern))
        if path != Path(__file__)
    )


@cache
def _tests() -> frozenset[str]:
    """Names of test functions, and paths of the files that have any."""
    found: set[str] = set()
    for path in (*_PACKAGE.rglob("tests/test_*.py"), *(_ROOT / "cluster-tests").glob("test_*.py")):
        found.update(re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
        found.add(str(path.relative_to(_ROOT)))
    return frozenset(found)


@cache
def _oracles() -> frozenset[str]:
    checks = {check.__name__ for check in (*checker.CHECKS, *region_checks.CHECKS)}
    return frozenset(checks | complaints())


def holds(name: str) -> bool:
    """Whether there is a test, a scenario, a planted bug, a check or a complaint of that name."""
    planted = MUTANTS.keys() | PLANTED.keys()
    return name in _tests() or name in SCENARIOS or name in planted or name in _oracles()


@cache
def _defined(module: str) -> frozenset[str]:
    """What a module has: `name` and `Class.name`, without importing it."""
    folder = _PACKAGE / module.replace(".", "/")
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    assert path.exists(), f"there is no module {module}"
    return frozenset(_defined_in(ast.parse(path.read_text()).body, ""))


def _defined_in(body: Sequence[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _defined_in(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield prefix + target.id


def exists(where: str) -> bool:
    """Whether "module:Class.function", the module below `hadron`, is there."""
    module, _, name = where.partition(":")
    return name in _defined(module)


def all_rules() -> dict[str, str]:
    """Of all pages."""
    found: dict[str, str] = {}
    for page in _PAGES:
        for name, body in _rules(page.read_text()).items():
            assert name not in found, f"{name} is on two pages"
            found[name] = body
    return found


_ALL = {name: body for name, body in all_rules().items() if _is_rule(name, body)}


def test_every_rule_that_the_code_cites_is_on_the_page() -> None:
    known = citable()
    for path in _code():
        unknown = cited(path.read_text()) - known
        assert not unknown, f"{path.relative_to(_ROOT)} cites {sorted(unknown)}"


def test_the_code_cites_nothing_that_is_not_in_the_repository() -> None:
    for path in _code():
        elsewhere = re.findall(r"\bDESIGN §|\bFACE\b", path.read_text())
        assert not elsewhere, f"{path.relative_to(_ROOT)} cites {elsewhere}"


def test_every_rule_that_scenarios_and_oracles_prove_is_on_a_page() -> None:
    named = {name.partition(" ")[0] for name in ORACLES}
    for scenario in SCENARIOS.values():
        named.update(re.findall(r"[A-Z]\d*\b", scenario.rule.partition(":")[0]))
    assert named <= set(all_rules()), named - set(all_rules())


@pytest.mark.parametrize("name", sorted(_ALL))
def test_a_rule_says_what_breaks_where_it_is_kept_and_what_holds_it(name: str) -> None:
    body = _ALL[name]
    assert _PARTS[0] in body
    assert not body.strip().startswith(_PARTS), "it does not say what holds"
    where, held_by = _names(_part(body, _PARTS[1])), _names(_part(body, _PARTS[2]))
    assert where
    assert [each for each in held_by if each in _tests() or each in SCENARIOS]
    assert not [each for each in where if not exists(each)]
    assert not [each for each in held_by if not holds(each)]


def test_each_scenario_holds_a_rule() -> None:
    named = {each for body in _ALL.values() for each in _names(_part(body, _PARTS[2]))}
    assert set(SCENARIOS) <= named, set(SCENARIOS) - named


def test_citations_are_found_however_they_are_written() -> None:
    assert cited("one (PROTOCOL A1, B2), PROTOCOL\n    D4. A PROTOCOL_VERSION = 1") == {
        "PROTOCOL A1",
        "PROTOCOL B2",
        "PROTOCOL D4",
    }
    assert cited("// the file (PROTOCOL\n// B6) PROTOCOL B1 to B3, B5; PROTOCOL F: a") == {
        *("PROTOCOL B6", "PROTOCOL B1", "PROTOCOL B2", "PROTOCOL B3", "PROTOCOL B5"),
        "PROTOCOL F",
    }
    assert cited("# PROTOCOL A and B). Every start PROTOCOL C) and") == {
        *("PROTOCOL A", "PROTOCOL B", "PROTOCOL C")
    }
    assert cited("is bounded (GROUPS G3,\n# BOUNDS W1 and W2, PIPELINES P9). HTTP is a door") == {
        *("GROUPS G3", "BOUNDS W1", "BOUNDS W2", "PIPELINES P9")
    }


def test_a_rule_of_another_page_is_not_taken_for_one_of_this() -> None:
    assert {"PROTOCOL A", "PROTOCOL A2", "ENDPOINTS N", "GROUPS G4"} <= citable()
    assert citable().isdisjoint({"PROTOCOL G4", "GROUPS A2", "GROUPS G99", "SPARK E10"})


def test_what_does_not_exist_is_noticed() -> None:
    assert holds("figure-8")
    assert not holds("figure-9")
    assert not holds("hadron/sim/tests/test_figures.py")
    assert exists("replication.quorum:Quorum._advance")
    assert not exists("replication.quorum:Quorum.advance")
    with pytest.raises(AssertionError, match="no module"):
        exists("replication.minority:Quorum")


# --- documents in general -----------------------------------------------------------------------


@pytest.mark.parametrize("path", [*_PAGES, *_READ_FIRST], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (path.parent / link).exists(), f"{path.name} links to {link}"
    for name in _names(text):
        if re.fullmatch(r"(hadron|docs|proto|config|deploy|cluster-tests)/[\w./-]+", name):
            assert (_ROOT / name).exists(), f"{path.name} names {name}"


_ROOMS = frozenset(
    path.name for path in _PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()
)


def module_exists(name: str) -> bool:
    """Whether `room/module`, `room/module.Name` or `room/file.md` is there."""
    path = _PACKAGE / name
    if path.suffix in (".py", ".md") or path.is_dir():
        return path.exists()
    module, _, attribute = name.partition(".")
    if not (_PACKAGE / module).is_dir() and not (_PACKAGE / module).with_suffix(".py").exists():
        return False
    defined = _defined(module.replace("/", "."))
    return not attribute or any(each.rpartition(".")[2] == attribute for each in defined)


@pytest.mark.parametrize("path", [*_PAGES, *_READ_FIRST], ids=lambda path: path.name)
def test_modules_that_are_named_are_there(path: Path) -> None:
    for name in _names(path.read_text()):
        room, _, rest = name.partition("/")
        if room in _ROOMS and re.fullmatch(r"[\w/.]+", rest):
            assert module_exists(name), f"{path.name} names {name}"


def test_every_room_has_its_line() -> None:
    text = (_PACKAGE / "ARCHITECTURE.md").read_text()
    table = text[text.index("## Rooms") : text.index("## Rules")]
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", table, re.MULTILINE)
    assert sorted(room for room, _ in rows) == sorted(_ROOMS)
    for room, start in rows:
        assert _names(start)
        assert all(name.startswith(f"{room}/") for name in _names(start))


def test_every_page_is_found_from_the_first_one() -> None:
    text = (_PACKAGE / "ARCHITECTURE.md").read_text()
    for page in _PAGES:
        assert f"(../docs/{page.name})" in text


@pytest.mark.parametrize("path", [*_PAGES, *_READ_FIRST[1:]], ids=lambda path: path.name)
def test_paragraphs_are_short_and_lines_too(path: Path) -> None:
    text = path.read_text()
    for block in re.split(r"\n\s*\n|\n(?=- |\d+\. )", text):
        for piece in block.split("|") if block.startswith("|") else [block]:
            words = len(piece.split())
            assert words <= _MOST_WORDS, f"{words} words: {piece.strip()[:80]}…"
    for number, line in enumerate(text.splitlines(), start=1):
        assert len(line) <= 100 or line.startswith("|"), f"{path.name}:{number} is too long"


def test_the_pages_to_begin_with_can_be_read_at_once() -> None:
    assert len((_PACKAGE / "ARCHITECTURE.md").read_text().splitlines()) <= 150
    assert len((_ROOT / "README.md").read_text().splitlines()) <= 150
