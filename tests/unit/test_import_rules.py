"""The import rules that import-linter cannot express: libraries nobody has listed, and machines that do no I/O."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORT_NAMES = {
    "api": "viewtide",
    "changetables": "viewtide.changetables",
    "coordinator": "viewtide.coordinator",
    "ltm": "viewtide.ltm",
}

# The protocol machines: time, randomness and I/O reach them as arguments only, so that one seed gives one trace. A
# pattern stands for all modules of a protocol, also those that are still to be written.
PURE_MACHINES = [
    "ltm/participant.py",
    "ltm/versions.py",
    "ltm/two_phase/*.py",
    "ltm/cluster/member.py",
    "coordinator/transaction.py",
    "coordinator/timestamps.py",
    "coordinator/two_phase/*.py",
    "coordinator/cluster/leader.py",
    "coordinator/vms/cluster_*.py",
    "coordinator/vms/view_manager.py",
    "coordinator/vms/subsystem.py",
    "coordinator/vms/scheduler.py",
]
IMPURE = {
    "asyncio", "happybase", "kazoo", "lmdb", "multiprocessing", "os", "pathlib", "queue", "random",
    "secrets", "select", "selectors", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "zmq",
}  # fmt: skip


def source_files() -> list[Path]:
    return sorted(path for folder in IMPORT_NAMES for path in (ROOT / folder).rglob("*.py"))


def import_name(path: Path) -> str:
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([IMPORT_NAMES[folder], *(part for part in rest if part != "__init__")])


def imported_libraries(source: str) -> Iterator[str]:
    """The top-level names of all absolute imports, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def third_party_imports(path: Path) -> set[str]:
    libraries = set(imported_libraries(path.read_text()))
    return libraries - sys.stdlib_module_names - {"viewtide"}


def library_contract() -> dict[str, list[str]]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    return next(contract for contract in contracts if contract["type"] == "forbidden")


def test_the_tree_is_found() -> None:
    assert {import_name(path) for path in source_files()} >= set(IMPORT_NAMES.values())


def test_imports_inside_functions_are_seen() -> None:
    source = "import os.path\ndef f():\n    from zmq import Context\n    from . import time\n"
    assert set(imported_libraries(source)) == {"os", "zmq"}


def test_third_party_libraries_are_imported_only_where_the_contract_says() -> None:
    allowed = set(library_contract()["ignore_imports"])
    found = {f"{import_name(path)} -> {library}" for path in source_files() for library in third_party_imports(path)}
    unlisted = [line for line in found if not any(fnmatchcase(line, pattern) for pattern in allowed)]
    assert unlisted == [], f"not listed in pyproject.toml: {sorted(unlisted)}"


def test_the_contract_forbids_every_library_that_it_makes_an_exception_for() -> None:
    contract = library_contract()
    excepted = {line.split(" -> ")[1] for line in contract["ignore_imports"]}
    assert excepted <= set(contract["forbidden_modules"])


def test_packages_import_each_other_relatively() -> None:
    """An absolute `import viewtide.x` inside the packages would run the public module first."""
    absolute = [import_name(path) for path in source_files() if "viewtide" in imported_libraries(path.read_text())]
    assert absolute == []


def test_every_machine_that_is_named_exists() -> None:
    """One that was moved would not be looked at any more, and nobody would notice."""
    missing = [pattern for pattern in PURE_MACHINES if not list(ROOT.glob(pattern))]
    assert missing == []


def test_machines_do_no_io() -> None:
    machines = {path for pattern in PURE_MACHINES for path in ROOT.glob(pattern)}
    assert ROOT / "ltm/two_phase/participant.py" in machines
    found = {str(path.relative_to(ROOT)): IMPURE & set(imported_libraries(path.read_text())) for path in machines}
    impure = {name: libraries for name, libraries in found.items() if libraries}
    assert impure == {}, f"machines with I/O: {impure}"
