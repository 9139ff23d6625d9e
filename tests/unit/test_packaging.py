"""The distribution: the wheel holds the whole tree, works where nothing else is, and `import viewtide` stays cheap."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE_DIRS = {
    "api": "viewtide",
    "changetables": "viewtide/changetables",
    "coordinator": "viewtide/coordinator",
    "ltm": "viewtide/ltm",
}

IMPORT_MS_MAX = 100.0
IMPORT_RUNS = 7
# Costly libraries that a user may never need: they are imported where they are first used.
LAZY_LIBRARIES = {
    "happybase",
    "kazoo",
    "lmdb",
    "pandas",
    "pyarrow",
    "pyspark",
    "rich",
    "sqlglot",
    "thriftpy2",
    "typer",
    "zmq",
}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program; its output is part of the failure."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tree_as_installed() -> set[str]:
    """Every module and data file of the repository, under the name that a user's site-packages should have."""
    return {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in PACKAGE_DIRS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".thrift", ".java", ".xml") or path.name == "py.typed"
    }


def first_python_block(markdown: str) -> str:
    """The code of the first fenced python block: in README.md, that is the quick start."""
    match = re.search(r"^```python\n(.*?)^```\s*$", markdown, re.DOTALL | re.MULTILINE)
    assert match is not None, "README.md has no ```python block"
    return match.group(1)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a stale build folder beside the sources must not leak into the wheel."""
    source = tmp_path_factory.mktemp("source")
    for folder in PACKAGE_DIRS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, cwd=source)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture
def empty_environment(wheel: Path, tmp_path: Path) -> Path:
    """A virtual environment with the wheel and its declared dependencies, and nothing else; returns its python."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
    return python


def test_first_python_block_is_found() -> None:
    markdown = "# T\n```sh\npip\n```\n```python\nx = 1\ny = 2\n```\n```python\nz\n```\n"
    assert first_python_block(markdown) == "x = 1\ny = 2\n"


def test_a_text_without_python_is_refused() -> None:
    with pytest.raises(AssertionError, match="no ```python block"):
        first_python_block("```sh\nls\n```\n")


@pytest.mark.slow
def test_wheel_holds_exactly_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert names == tree_as_installed()


@pytest.mark.slow
def test_wheel_names_licence_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(files["METADATA"]).decode()
        commands = archive.read(files["entry_points.txt"]).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "viewtide = viewtide.cli:main" in commands
    assert "licenses/LICENSE" in files


@pytest.mark.slow
def test_wheel_works_in_an_empty_environment(empty_environment: Path, tmp_path: Path) -> None:
    """The README's quick start and the command. One test, because the environment takes longest."""
    script = tmp_path / "quick_start.py"
    script.write_text(first_python_block((ROOT / "README.md").read_text()))
    # -I: neither the working directory nor the user's settings help it to find the package.
    run(empty_environment, "-I", script, cwd=tmp_path)
    assert "demo" in run(empty_environment.parent / "viewtide", "--help", cwd=tmp_path)


def test_import_is_lazy(tmp_path: Path) -> None:
    program = "import sys, viewtide; print(*{name.partition('.')[0] for name in sys.modules})"
    imported = set(run(sys.executable, "-c", program, cwd=tmp_path).split())
    assert "viewtide" in imported
    assert not imported & LAZY_LIBRARIES


def test_import_is_fast(tmp_path: Path) -> None:
    """Timed inside the new interpreter, so that its start-up does not count; the best run is the least disturbed."""
    program = "import time; start = time.perf_counter(); import viewtide; print((time.perf_counter() - start) * 1000)"
    best_ms = min(float(run(sys.executable, "-c", program, cwd=tmp_path)) for _ in range(IMPORT_RUNS))
    assert best_ms < IMPORT_MS_MAX
