"""Docs run: every python block of README and docs is executed, each in an empty folder of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        if page.name == "spark.md":
            continue  # tests/spark runs it, with the session that all tests share
        for number, match in enumerate(
            re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        ):
            found.append(pytest.param(match[1], id=f"{page.name}-{number + 1}"))
    return found


@pytest.mark.parametrize("code", python_blocks())
def test_python_block_runs(code: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_first_example_of_the_api_runs_where_the_quick_start_did(tmp_path: Path) -> None:
    """Whoever reads on stays in the folder."""
    for page in ("README.md", "docs/api.md"):
        found = re.search(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        assert found is not None
        test_python_block_runs(found[1], tmp_path)


def test_there_are_blocks() -> None:
    assert len(python_blocks()) >= 3, "README lost its quick start"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"
