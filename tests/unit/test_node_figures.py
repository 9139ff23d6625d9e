"""/metrics, /healthz and /readyz of `viewtide serve`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import viewtide as vt
from tests.cluster.running import wait_for
from viewtide.ltm.keys import Allowed, AllowList, Keys
from viewtide.ltm.transport import Hub, new_keys
from viewtide.metrics_server import metrics_text
from viewtide.node_figures import NodeFigures
from viewtide.server import Server

ANYWHERE = "tcp://127.0.0.1:0"
SUMS = "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM e GROUP BY g"


class Watched:
    """A node in this process whose figures are looked at as a scraper sees them."""

    def __init__(self, database: vt.Database, hub: Hub) -> None:
        self.database, self.address = database, hub.address
        self.figures = NodeFigures()
        self.server, self._hub = Server(database, hub), hub

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.server.run)
        thread.start()
        try:
            with self.figures.of(self.database, self.server, self._hub):
                yield
        finally:
            self.server.stop()
            thread.join()

    def shown(self) -> dict[str, float]:
        """By name, with the view and the state behind it."""
        found = {}
        for name, labels, value in self.figures.figures():
            found[":".join([name, *(text for label, text in labels.items() if label != "database")])] = value
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Watched]:
    with vt.connect(tmp_path / "db") as database:
        database.create_table("e", {"id": int, "g": int, "v": int}, key="id")
        database.create_view("s", SUMS)
        database.create_view("d", SUMS, refresh="manual")
        watched = Watched(database, Hub("node", listen=ANYWHERE))
        with watched.serving():
            yield watched


def write(db: vt.Database, *ids: int, g: int = 0) -> None:
    with db.transaction() as tx:
        tx.upsert("e", [{"id": id, "g": g, "v": 1} for id in ids])


def test_what_a_node_does_and_holds(node: Watched) -> None:
    before = node.shown()
    assert (before["tables"], before["views"], before["connections"]) == (1, 2, 0)
    with vt.connect(node.address) as db:
        for number in range(5):
            write(db, *range(10 * number, 10 * number + 10))
        with db.snapshot() as snapshot:
            snapshot.get("e", 1)
            during = node.shown()
    assert during["commits_total"] - before["commits_total"] == 5
    assert 0 < during["flushes_total"] - before["flushes_total"] <= 5
    assert during["log_bytes"] > before["log_bytes"]
    assert during["rows_in_memory"] >= 50
    assert (during["connections"], during["sessions_open"], during["store_cells"]) == (1, 1, 0)
    assert during["transport_received_payloads_total"] > 5
    assert during["resident_bytes"] > 10_000_000
    assert during["descriptors_open"] > 5
    wait_for("the client has gone", lambda: node.shown()["connections"] == 0)
    node.database._engine.checkpoint()  # type: ignore[attr-defined]
    after = node.shown()
    assert after["checkpoints_total"] - before["checkpoints_total"] == 1
    assert after["store_cells"] >= 50
    assert after["store_bytes"] >= 4096


def test_how_views_are(node: Watched) -> None:
    write(node.database, 1, 2, 3)
    shown = node.shown()
    assert shown["view_lag_ms:s"] == 0
    assert shown["view_state:s:live"] == 1
    assert "view_backlog_rows:s" not in shown, "a synchronous view has none"
    assert (shown["view_backlog_rows:d"], shown["view_steps_total:d"], shown["view_failures:d"]) == (3, 0, 0)
    assert shown["view_backlog_bytes:d"] > 0
    assert shown["view_lag_ms:d"] >= 0
    node.database.view("d").refresh()
    shown = node.shown()
    assert (shown["view_backlog_rows:d"], shown["view_steps_total:d"]) == (0, 1)


def test_a_view_that_fails_shows_it(node: Watched) -> None:
    view = node.database.create_view("f", "SELECT g, 1 / (COUNT(*) - 2) AS x FROM e GROUP BY g", refresh="manual")
    write(node.database, 1, 2)
    with pytest.raises(vt.StaleRead, match="division by zero"):
        view.refresh()
    shown = node.shown()
    assert shown["view_failures:f"] >= 1
    assert {name: value for name, value in shown.items() if name.startswith("view_state:f")} == {
        "view_state:f:live": 0,
        "view_state:f:held": 0,
        "view_state:f:failing": 1,
        "view_state:f:needs batch refresh": 0,
    }
    assert node.figures.why_not_ready() == "", "one view is not the database"


def test_connections_with_keys_are_counted_while_they_last(tmp_path: Path) -> None:
    own, ann = new_keys("node", "ltm"), new_keys("ann", "client")
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    ann.save(folder / "ann.key")
    allowed = AllowList(folder / "allowed")
    allowed.add(Allowed(ann.public, ann.name, ann.role))
    with vt.connect("memory:") as database:
        watched = Watched(database, _hub_with(own, allowed))
        with watched.serving():
            for _ in range(3):
                with vt.connect(watched.address, keys=folder / "ann.key", server_key=own.public) as db:
                    assert db.tables() == []
                    assert watched.shown()["connections"] >= 1
            wait_for("the clients have gone", lambda: watched.shown()["connections"] == 0)
        assert "store_cells" not in watched.shown()


def _hub_with(own: Keys, allowed: AllowList) -> Hub:
    return Hub("node", listen=ANYWHERE, keys=own, allowed=allowed)


def test_before_and_after_it_is_not_ready_and_answers(node: Watched) -> None:
    figures = NodeFigures()
    assert figures.why_not_ready() == "the database is being opened"
    assert "viewtide_resident_bytes{} " in metrics_text(figures.figures())
    with figures.of(node.database, node.server, node._hub):
        assert figures.why_not_ready() == ""
        assert "viewtide_commits_total" in metrics_text(figures.figures())
    assert figures.why_not_ready() == "the database is being closed"
    assert "viewtide_commits_total" not in metrics_text(figures.figures())


def test_a_database_that_failed_is_not_ready(node: Watched) -> None:
    node.database._engine.fail(OSError("the disk is gone"))  # type: ignore[attr-defined]
    assert "has to be opened again" in node.figures.why_not_ready()
    assert node.shown()["tables"] == 1


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "viewtide.cli", "serve", str(tmp_path / "db"), "--listen", ANYWHERE]
    with subprocess.Popen(
        [*command, "--metrics", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            with vt.connect(said["address"]) as db:
                db.sql("CREATE TABLE t (id int PRIMARY KEY)")
                db.sql("INSERT INTO t VALUES (1)")
            wait_for("it is ready", lambda: get(said["metrics"], "/readyz") == "ok\n")
            assert get(said["metrics"], "/healthz") == "ok\n"
            assert f'viewtide_commits_total{{database="{tmp_path}/db"}} 1\n' in get(said["metrics"], "/metrics")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert process.stderr is not None
            assert process.stderr.read() == "stopped\n"
        finally:
            process.kill()
    with pytest.raises(urllib.error.URLError):
        get(said["metrics"], "/healthz")


def test_an_address_that_is_none_leaves_no_database_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "viewtide.cli", "serve", str(tmp_path / "db"), "--metrics", "9401"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "metrics is '9401'" in done.stderr
    assert not (tmp_path / "db").exists()
