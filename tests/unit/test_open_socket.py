"""The socket of an open directory: commands and other processes reach a database that is running."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import viewtide as vt
from viewtide import open_socket
from viewtide.open_socket import running_address


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "viewtide.cli", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def filled(path: Path) -> vt.Database:
    db = vt.connect(path)
    db.create_table("t", {"id": int, "g": str}, key="id")
    db.create_view("counts", "SELECT g, COUNT(*) AS n FROM t GROUP BY g")
    with db.transaction() as tx:
        tx.insert("t", [{"id": number, "g": "ab"[number % 2]} for number in range(10)])
    return db


def folder_of(path: Path) -> Path:
    """Where the process that wrote the file listens."""
    return Path((path / "socket").read_text().splitlines()[-1])


def kill_one_that_has_it_open(path: Path) -> None:
    code = "import os, sys, viewtide as vt\nvt.connect(sys.argv[1])\nos.kill(os.getpid(), 9)\n"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9


def test_commands_reach_a_running_database(db_path: Path) -> None:
    with filled(db_path) as db:
        shown = command("sql", db_path, "-c", "INSERT INTO t VALUES (10, 'c'); SELECT g, n FROM counts", "--json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout.splitlines()[-1])["rows"] == [["a", 5], ["b", 5], ["c", 1]]
        assert db.view("counts").get("c") == {"g": "c", "n": 1}
        status = command("status", db_path, "--json")
        assert json.loads(status.stdout)["commits"] == 2
        assert [view["name"] for view in json.loads(command("views", db_path, "--json").stdout)] == ["counts"]
        verified = command("verify", db_path, "--json")
        assert verified.returncode == 0
        assert json.loads(verified.stdout)[0]["ok"] is True


def test_the_shell_of_a_running_database_has_transactions(db_path: Path) -> None:
    with filled(db_path) as db:
        script = "BEGIN; DELETE FROM t; ROLLBACK; BEGIN; DELETE FROM t WHERE id = 1; COMMIT; SELECT COUNT(*) FROM t"
        assert command("sql", db_path, "-c", script).returncode == 0
        assert db.view("counts").get("b") == {"g": "b", "n": 4}
        failed = command("sql", db_path, "-c", "SELECT nonsense FROM t")
        assert failed.returncode == 1
        assert "nonsense" in failed.stderr


def test_connect_by_the_socket(db_path: Path) -> None:
    with filled(db_path) as db:
        with vt.connect(f"ipc://{db_path}/socket") as other:
            assert other.view("counts").rows() == db.view("counts").rows()
        with pytest.raises(vt.OperationalError, match="is open in process") as raised:
            vt.connect(db_path)
        assert f"'ipc://{db_path}/socket'" in raised.value.hint
    with pytest.raises(vt.Unavailable, match="no process has the database"):
        vt.connect(f"ipc://{db_path}/socket")


@pytest.mark.parametrize("slash", ["", "/"])
def test_an_address_without_the_name_of_the_socket(db_path: Path, slash: str) -> None:
    with filled(db_path), pytest.raises(vt.InterfaceError, match="is the directory of a database") as raised:
        vt.connect(f"ipc://{db_path}{slash}")
    assert raised.value.hint == f"did you mean 'ipc://{db_path}/socket'?"


def test_only_its_owner_can_use_it(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(db_path):
        assert (db_path / "socket").stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(open_socket, "_user_of", lambda _: 12345)
        assert running_address(db_path) == ""
        monkeypatch.undo()
        address = running_address(db_path)
        folder = Path(address.removeprefix("ipc://")).parent
        assert folder == folder_of(db_path)
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not (db_path / "socket").exists()
    assert not folder.exists()


def test_nothing_is_started_before_somebody_knocks(db_path: Path) -> None:
    code = (
        "import sys, threading, viewtide as vt\n"
        "with vt.connect(sys.argv[1]) as db:\n"
        "    db.create_table('t', {'id': int}, key='id')\n"
        "    print('zmq' in sys.modules, sorted(t.name for t in threading.enumerate() if 'socket' in t.name))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(db_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False ['viewtide-socket']"


def test_a_long_path(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 40) / ("longer" * 30) / "db"
    with filled(path), vt.connect(f"ipc://{path}/socket") as other:
        assert other.tables() == ["t"]


def test_what_a_killed_process_left_is_no_hindrance(db_path: Path) -> None:
    kill_one_that_has_it_open(db_path)
    left = folder_of(db_path)
    assert left.is_dir()
    assert running_address(db_path) == ""
    assert command("sql", db_path, "-c", "CREATE TABLE u (id int PRIMARY KEY)").returncode == 0
    with filled(db_path) as db:
        assert running_address(db_path) != ""
        assert db.tables() == ["u", "t"]
        assert not left.exists()


def test_the_socket_of_an_earlier_version_is_replaced(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(db_path).close()
    monkeypatch.chdir(db_path)  # its path is too long for a socket, perhaps
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("socket")
    assert running_address(db_path) == ""
    with vt.connect(db_path):
        assert running_address(db_path) != ""


def test_a_file_that_was_not_written_yet_is_replaced(db_path: Path) -> None:
    filled(db_path).close()
    (db_path / "socket").touch()
    assert running_address(db_path) == ""
    with vt.connect(db_path):
        assert running_address(db_path) != ""
    assert not (db_path / "socket").exists()


def test_what_processes_left_goes_with_the_next_one_even_if_their_directories_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    left = []
    for number in range(2):
        kill_one_that_has_it_open(tmp_path / f"{number}.db")
        left.append(folder_of(tmp_path / f"{number}.db"))
        shutil.rmtree(tmp_path / f"{number}.db")
    (left[0] / "precious").touch()
    with filled(tmp_path / "running.db"):
        at_work = folder_of(tmp_path / "running.db")
        for folder in (*left, at_work):
            assert folder.parent == tmp_path
            os.utime(folder, (0, 0))
        code = "import sys, viewtide as vt\nvt.connect(sys.argv[1]).close()\n"
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "next.db")], check=True)
        assert [folder.exists() for folder in left] == [True, False]
        assert (left[0] / "precious").exists()
        with vt.connect(f"ipc://{tmp_path}/running.db/socket") as other:
            assert other.tables() == ["t"]


# --- copies ---


def test_what_a_killed_process_left_can_be_copied(db_path: Path, tmp_path: Path) -> None:
    filled(db_path).close()
    kill_one_that_has_it_open(db_path)
    left = folder_of(db_path)
    copy = tmp_path / "copy.db"
    shutil.copytree(db_path, copy)
    with vt.connect(copy) as copied:
        assert left.exists(), "it belongs to the original"
        with vt.connect(db_path) as original:
            assert not left.exists()
            assert copied.tables() == original.tables() == ["t"]
            addresses = {running_address(copy), running_address(db_path)}
            assert len(addresses) == 2
            assert "" not in addresses


def test_a_copy_of_an_open_database_does_not_lead_to_its_process(db_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with filled(db_path) as db:
        shutil.copytree(db_path, copy)
        assert (copy / "socket").is_file()
        db.sql("CREATE TABLE later (id int PRIMARY KEY)")
        assert running_address(copy) == ""
        with pytest.raises(vt.Unavailable, match="no process has the database"):
            vt.connect(f"ipc://{copy}/socket")
        status = command("status", copy, "--json")
        assert status.returncode == 0, status.stderr
        assert json.loads(status.stdout)["tables"] == 1
        assert json.loads(command("status", db_path, "--json").stdout)["tables"] == 2
        with vt.connect(copy) as copied:
            assert copied.tables() == ["t"]
            assert copied.view("counts").rows() == db.view("counts").rows()
        assert running_address(db_path) != "", "who closes the copy leaves the original alone"


def test_a_database_that_was_moved_while_it_is_open_is_reached(db_path: Path, tmp_path: Path) -> None:
    with filled(db_path):
        db_path.rename(tmp_path / "moved.db")
        with vt.connect(f"ipc://{tmp_path}/moved.db/socket") as other:
            assert other.tables() == ["t"]
        (tmp_path / "moved.db").rename(db_path)


def test_closing_removes_no_file_but_its_own(db_path: Path, tmp_path: Path) -> None:
    with filled(db_path), filled(tmp_path / "other.db"):
        shutil.copy(tmp_path / "other.db" / "socket", db_path / "socket")
        assert running_address(db_path) == ""
    assert (db_path / "socket").exists()
    with vt.connect(db_path):
        assert running_address(db_path) != ""


# --- what is believed ---


def to_all(path: Path) -> None:
    (path / "socket").chmod(0o644)


def by_a_link(path: Path) -> None:
    (path / "socket").rename(path / "elsewhere")
    (path / "socket").symlink_to(path / "elsewhere")


def as_a_pipe(path: Path) -> None:
    (path / "socket").unlink()
    os.mkfifo(path / "socket", 0o600)


def of_another_user(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(path / "socket", 12345, 12345)


def in_an_open_folder(path: Path) -> None:
    folder_of(path).chmod(0o755)


def in_a_linked_folder(path: Path) -> None:
    content, folder = (path / "socket").read_text(), folder_of(path)
    (path / "linked").symlink_to(folder)
    (path / "socket").write_text(content.replace(str(folder), str(path / "linked")))


@pytest.mark.parametrize("said", [to_all, by_a_link, as_a_pipe, of_another_user, in_an_open_folder, in_a_linked_folder])
def test_what_others_may_have_said_is_not_believed(db_path: Path, said: Callable[[Path], None]) -> None:
    with filled(db_path):
        assert running_address(db_path) != ""
        said(db_path)
        assert running_address(db_path) == ""


def test_only_sockets_of_a_private_folder_are_removed(db_path: Path, tmp_path: Path) -> None:
    """The file may name what its owner keeps, if somebody played a trick on him."""
    kill_one_that_has_it_open(db_path)
    left, content = folder_of(db_path), (db_path / "socket").read_text()
    precious = tmp_path / f"{open_socket.FOLDER_PREFIX}precious"
    precious.mkdir(mode=0o700)
    (precious / "k").write_text("not a socket")
    (db_path / "socket").write_text(content.replace(str(left), str(precious)))
    with vt.connect(db_path):
        assert (precious / "k").read_text() == "not a socket"
        assert running_address(db_path) != ""
    shutil.rmtree(left)


def test_a_long_path_for_temporary_files(db_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with filled(db_path), vt.connect(f"ipc://{db_path}/socket") as other:
        assert other.tables() == ["t"]


@pytest.mark.parametrize("name", ["socket", "log", "new"])
def test_nothing_is_opened_inside_of_a_database(db_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database at the place of the socket kept everybody from reaching the one around it."""
    filled(db_path).close()
    before = sorted(db_path.iterdir())
    done = command("sql", db_path / name, "-c", "SELECT 1")
    assert done.returncode == 1
    assert f"{db_path / name} is inside of a database, {db_path}" in done.stderr
    assert f"ipc://{db_path}/socket" in done.stderr
    monkeypatch.chdir(db_path)
    with pytest.raises(vt.OperationalError, match="is inside of a database"):
        vt.connect(name)
    assert sorted(db_path.iterdir()) == before
    with filled(db_path.parent / "beside"):
        pass


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_stays_and_is_told_of(db_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    filled(db_path).close()
    place = db_path / "socket"
    if kind == "file":
        place.write_text("x")
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to(db_path / "nowhere")
    with caplog.at_level("WARNING", "viewtide"), vt.connect(db_path) as db:
        assert db.tables() == ["t"]
        assert running_address(db_path) == ""
    assert f"{place} is no socket" in caplog.text
    assert place.is_symlink() if kind == "link" else place.exists()
    caplog.clear()
    place.rmdir() if kind == "directory" else place.unlink()
    with vt.connect(db_path):
        assert running_address(db_path) != ""
    assert caplog.text == ""


def test_a_forked_child_does_not_answer(db_path: Path) -> None:
    with filled(db_path):
        child = os.fork()
        if not child:
            os._exit(0 if running_address(db_path) else 1)  # by its parent
        assert os.waitpid(child, 0)[1] == 0


def test_closing_while_somebody_is_served(db_path: Path) -> None:
    db = filled(db_path)
    other = vt.connect(f"ipc://{db_path}/socket")
    tx = other.transaction()
    assert tx.get("t", 1) is not None
    before = threading.active_count()
    db.close()
    assert threading.active_count() < before
    other.close()
    with vt.connect(db_path) as again:
        assert again.view("counts").verify().ok


def test_a_database_that_is_closed_while_somebody_has_a_transaction_ends_properly(
    db_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with filled(db_path), vt.connect(f"ipc://{db_path}/socket") as client:
        tx = client.transaction()
        assert tx.update("t", 1, {"g": "c"})
        client.view("counts").rows()
        with client.snapshot() as snapshot:
            snapshot.get("t", 1)
    assert not failed
    with vt.connect(db_path) as again:
        assert again.view("counts").get("c") is None
