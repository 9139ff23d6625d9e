"""`viewtide keys`, as a user runs it, and what servers make of it."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from viewtide.cli import app
from viewtide.ltm.keys import CLIENT, LTM, Allowed, AllowList, Identity, Keys


def run(*arguments: str, ok: bool = True) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments])
    assert (result.exit_code == 0) == ok, result.output
    return result.output


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_new_key_is_in_a_file_and_on_the_list(place: Path) -> None:
    output = run("new", "ltm-1", "--role", "ltm", "--dir", str(place))
    keys = Keys.load(place / "ltm-1.key")
    assert keys.public in output and keys.secret not in output
    assert AllowList(place / "allowed").find(keys.public) == Identity("ltm-1", LTM)
    listed = run("list", "--dir", str(place))
    assert listed.split() == ["ltm-1", "ltm", keys.public]


def test_a_rotation_keeps_the_old_key_allowed_until_it_is_revoked(place: Path) -> None:
    run("new", "shop", "--role", "client", "--dir", str(place))
    old = Keys.load(place / "shop.key")
    assert "--old" in run("rotate", "shop", "--dir", str(place))
    new = Keys.load(place / "shop.key")
    assert new.public != old.public and new.role == CLIENT
    allowed = AllowList(place / "allowed")
    assert allowed.find(old.public) == allowed.find(new.public) == Identity("shop", CLIENT)
    assert old.public in run("revoke", "shop", "--old", "--dir", str(place))
    assert AllowList(place / "allowed").entries() == (Allowed(new.public, "shop", CLIENT),)
    assert "no older keys" in run("revoke", "shop", "--old", "--dir", str(place))
    run("revoke", "shop", "--dir", str(place))
    assert AllowList(place / "allowed").entries() == ()


def test_commands_that_are_named_can_be_copied(place: Path) -> None:
    run("new", "shop", "--role", "client", "--dir", str(place))
    assert f"viewtide keys rotate shop --dir {place}" in run(
        "new", "shop", "--role", "client", "--dir", str(place), ok=False
    )
    assert f"viewtide keys list --dir {place}" in run("revoke", "nobody", "--dir", str(place), ok=False)
    assert f"viewtide keys revoke shop --old --dir {place}" in run("rotate", "shop", "--dir", str(place))


def test_a_rotation_tells_of_older_keys_only_where_some_are_listed(place: Path) -> None:
    run("new", "shop", "--role", "client", "--dir", str(place))
    run("revoke", "shop", "--dir", str(place))
    assert "older keys" not in run("rotate", "shop", "--dir", str(place))
    assert "older keys" in run("rotate", "shop", "--dir", str(place))


def test_a_key_that_was_made_elsewhere_is_allowed_and_revoked_by_itself(place: Path) -> None:
    first, second = "AB" * 32, "cd" * 32
    for public in (first, second):
        run("allow", "partner", public, "--role", "client", "--dir", str(place))
    assert "already" in run("allow", "other", first, "--role", "admin", "--dir", str(place), ok=False)
    run("revoke", first.lower(), "--dir", str(place))
    assert [entry.public for entry in AllowList(place / "allowed").entries()] == [second]


def test_json_for_programs(place: Path) -> None:
    made = json.loads(run("new", "vm-1", "--role", "view-manager", "--dir", str(place), "--json"))
    assert (made["name"], made["role"], made["file"]) == ("vm-1", "view-manager", str(place / "vm-1.key"))
    assert json.loads(run("list", "--dir", str(place), "--json")) == [
        {"public": made["public"], "name": "vm-1", "role": "view-manager"}
    ]
    rotated = json.loads(run("rotate", "vm-1", "--dir", str(place), "--json"))
    assert rotated["done"] == "rotated"
    revoked = json.loads(run("revoke", "vm-1", "--dir", str(place), "--json"))
    assert [entry["public"] for entry in revoked] == [made["public"], rotated["public"]]
    assert json.loads(run("list", "--dir", str(place), "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("new", "shop", "--role", "client"), "rotate shop"),
        (("new", "x", "--role", "king"), "no role 'king'"),
        (("new", "../x", "--role", "client"), "no name"),
        (("rotate", "nobody"), "cannot be read"),
        (("revoke", "nobody"), "no key of nobody"),
        (("allow", "x", "123", "--role", "client"), "no public key"),
    ],
)
def test_mistakes_are_explained_and_change_nothing(place: Path, arguments: tuple[str, ...], says: str) -> None:
    run("new", "shop", "--role", "client", "--dir", str(place))
    before = sorted(path.name for path in place.iterdir()), (place / "allowed").read_text()
    assert says in run(*arguments, "--dir", str(place), ok=False)
    assert (sorted(path.name for path in place.iterdir()), (place / "allowed").read_text()) == before


@pytest.mark.parametrize("words", [("new", "x", "--role", "client"), ("allow", "x", "ab" * 32, "--role", "client")])
def test_keys_are_made_in_directories(tmp_path: Path, words: tuple[str, ...]) -> None:
    (file := tmp_path / "events.csv").touch()
    assert f"{file} is a file (keys are in a directory: choose another path)" in run(
        *words, "--dir", str(file), ok=False
    )
    long = f"{tmp_path}/{'x' * 300}"
    whys = {f"{file}/x": "Not a directory", "/proc/x": "No such file or directory", long: "File name too long"}
    for wrong, why in whys.items():
        said = run(*words, "--dir", wrong, ok=False)
        assert said == f"viewtide: cannot create {wrong}: {why} (choose another directory)\n"


def test_a_directory_that_there_is_not_is_no_empty_list(tmp_path: Path) -> None:
    place = tmp_path / "nokeys"
    for options in ((), ("--json",)):
        assert run("list", "--dir", str(place), *options, ok=False) == (
            f"viewtide: there is no directory {place} "
            f"(check its name; a first key makes it: viewtide keys new NAME --role ROLE --dir {place})\n"
        )
    long = tmp_path / ("x" * 300)
    assert f"there is no directory {long}" in run("list", "--dir", str(long), ok=False)
    place.touch()
    assert f"{place} is a file (name the directory with the keys)" in run("list", "--dir", str(place), ok=False)


def test_two_who_change_the_list_at_once_lose_nothing(place: Path) -> None:
    def add(number: int) -> None:
        AllowList(place / "allowed").add(Allowed(f"{number:064x}", f"n{number}", CLIENT))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert len(AllowList(place / "allowed").entries()) == 40


def test_help_does_not_load_zeromq() -> None:
    script = "import sys; from viewtide.cli import app; app(['keys', '--help'], standalone_mode=False)"
    subprocess.run([sys.executable, "-c", f"{script}; assert 'zmq' not in sys.modules"], check=True, timeout=60)
