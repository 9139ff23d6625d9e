"""The development HBase: fetched once, started once per run, gone when nobody uses it, and killable part by part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bench import hbase as hbase_bench
from bench.__main__ import run_command
from tests.hbase_servers import is_whole
from viewtide import dev_cluster
from viewtide.changetables.errors import OperationalError
from viewtide.dev_cluster import DevelopmentHbase, install, shared, start
from viewtide.ltm.hbase_client import Hbase, RowOf, Value

pytestmark = pytest.mark.slow

WAIT_S_MAX = 90.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b""
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_installation_is_made_once(hbase_servers: DevelopmentHbase) -> None:
    folder = install()
    assert (folder / "classes" / "Launcher.class").exists()
    assert list((folder / "lib").glob("hbase-server-*.jar"))
    made = folder.stat().st_mtime_ns
    assert install() == folder and folder.stat().st_mtime_ns == made


def test_it_lives_outside_the_work_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert dev_cluster._cache() == tmp_path / "viewtide"


def test_a_missing_program_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperationalError, match=r"java is missing.*apt-get install openjdk-17-jdk-headless maven"):
        install()


def test_zookeeper_and_both_thrift_servers_answer(hbase_servers: DevelopmentHbase, hbase_namespace: str) -> None:
    zookeeper = KazooClient(hosts=hbase_servers.zookeeper)
    zookeeper.start(timeout=20)
    try:
        assert zookeeper.exists("/hbase")
    finally:
        zookeeper.stop()
        zookeeper.close()
    client = Hbase(hbase_servers.thrift)
    assert hbase_namespace in client.namespaces()
    client.close()


def test_servers_without_a_start_are_named(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=f"no HBase was started in {tmp_path}"):
        DevelopmentHbase.attach(tmp_path)


USER = """
import sys
from pathlib import Path
from viewtide.dev_cluster import shared
with shared(Path(sys.argv[1])) as servers:
    print(servers.pids["hbase"], flush=True)
    sys.stdin.read()
"""


def user(directory: Path) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_shared_servers_end_after_their_last_user_also_if_it_is_killed(tmp_path: Path) -> None:
    first, pid = user(tmp_path)
    second, again = user(tmp_path)
    assert again == pid
    first.communicate(timeout=WAIT_S_MAX)
    with shared(tmp_path) as servers:
        assert servers.alive and servers.pids == {"hbase": pid}
        with pytest.raises(OperationalError, match=r"runs in .* already"):
            start(tmp_path)
    # This process started nothing and has let go; the second one still holds it.
    time.sleep(1)
    assert not gone(pid)
    os.kill(second.pid, signal.SIGKILL)
    second.communicate(timeout=WAIT_S_MAX)
    wait_until(lambda: gone(pid))


def test_what_was_written_is_there_after_all_of_it_was_killed(tmp_path: Path) -> None:
    with dev_cluster.running(tmp_path) as servers:
        client = Hbase(servers.thrift)
        client.create_table(b"kept", [(b"f", 1)])
        client.put(b"kept", [RowOf(b"r", [Value(b"f", b"q", 5, b"acknowledged")])])
        client.close()
    with dev_cluster.running(tmp_path) as servers:
        client = Hbase(servers.thrift)
        found = client.get(b"kept", b"r")
        assert found is not None and found.values == [Value(b"f", b"q", 5, b"acknowledged")]
        client.close()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"hbase of HBase ended while it was started, status 1.*\n.*\n.*heap"):
        start(tmp_path, heap_mb=1)
    with pytest.raises(OperationalError, match="no HBase was started"):
        DevelopmentHbase.attach(tmp_path)


def test_parts_are_killed_and_started_again(own_hbase: DevelopmentHbase) -> None:
    """The separate processes; what happens to data meanwhile is told in test_failover.py."""
    assert set(own_hbase.pids) >= {"zookeeper", "master", "region-1", "region-2", "thrift-1", "thrift-2"}
    pid = own_hbase.pids["thrift-1"]
    own_hbase.kill("thrift-1")
    assert gone(pid) and not Hbase(own_hbase.thrift[1:]).table_exists(b"nobody_made_it")
    with pytest.raises(OperationalError, match="did not answer"):
        Hbase(own_hbase.thrift[:1], patience_ms=0).table_exists(b"nobody_made_it")
    own_hbase.revive("thrift-1")
    assert not Hbase(own_hbase.thrift[:1]).table_exists(b"nobody_made_it")
    assert DevelopmentHbase.attach(own_hbase.directory).pids == own_hbase.pids
    # Somebody else's work, or its own end.
    wait_until(lambda: is_whole(own_hbase) and own_hbase.alive)
    os.kill(own_hbase.pids["region-1"], signal.SIGKILL)
    wait_until(lambda: "region-1" in own_hbase.dead and not own_hbase.alive)
    wait_until(lambda: len(own_hbase.region_servers()) < 2)
    own_hbase.revive("region-1")
    wait_until(lambda: is_whole(own_hbase))


def test_the_bench_of_hbase_measures_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hbase_bench, "SECONDS_QUICK", 0.6)
    monkeypatch.setattr(hbase_bench, "WARM_UP_S", 0.1)
    monkeypatch.setattr(hbase_bench, "CHECKPOINT_CELLS_QUICK", 200)
    run_command(["hbase", "--quick", "--ltms", "1", "--clients", "2", "--json", str(tmp_path / "out.json")])
    result = json.loads((tmp_path / "out.json").read_text())
    measured = [(row["what"], row["writers"]) for row in result["rows"]]
    appends = [(what, writers) for writers in (1, 8) for what in ("conditional put", "append")]
    assert measured == [*appends, ("checkpoint, cells", 1)]
    assert all(row["per_s"] > 0 for row in result["rows"])
    appends_and_cluster = {"append_vs_put_if_1", "append_vs_put_if_8", "ltms_1_vs_put_if_8"}
    assert set(result["ratios"]) == {*appends_and_cluster, "ltms_1_transactions_per_append"}
    assert result["ratios"]["ltms_1_transactions_per_append"] > 0
