"""One suite for the places where logs are that others read and seal: a shared directory, and HBase."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from viewtide.changetables.errors import Error
from viewtide.ltm.commit_log.elsewhere import LogsElsewhere
from viewtide.ltm.commit_log.hbase import HbaseLogs
from viewtide.ltm.commit_log.shared import SharedDirectory

#: Longer than one call to HBase may take until it is given up and made again.
WAIT_S_MAX = 150


@pytest.fixture(params=["shared directory", pytest.param("hbase", marks=pytest.mark.slow)])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> LogsElsewhere:
    if request.param == "hbase":
        namespace = request.getfixturevalue("hbase_namespace")
        return HbaseLogs(request.getfixturevalue("hbase_client"), namespace)
    return SharedDirectory(tmp_path / "logs")


def payloads(logs: LogsElsewhere, log: str) -> list[bytes]:
    found = logs.read(log, 1)
    assert found is not None
    return [record.payload for record in found[0]]


def test_what_was_appended_is_read_by_others(logs: LogsElsewhere) -> None:
    mine, other = logs.create("ltm-1/1"), logs.create("ltm-1/11")
    assert [mine.append(b"one"), mine.append(b"two"), other.append(b"three")] == [1, 2, 1]
    assert payloads(logs, "ltm-1/1") == [b"one", b"two"] and payloads(logs, "ltm-1/11") == [b"three"]
    found = logs.read("ltm-1/1", 2)
    assert found is not None and [record.lsn for record in found[0]] == [2] and not found[1]
    assert logs.read("ltm-1/2", 1) is None
    mine.close()
    other.close()


def test_a_sealed_log_takes_nothing_more(logs: LogsElsewhere) -> None:
    mine = logs.create("ltm-1/1")
    mine.append(b"one")
    assert [record.payload for record in logs.seal("ltm-1/1")] == [b"one"]
    for _ in range(2):
        with pytest.raises(Error):
            mine.append(b"two")
    assert [record.payload for record in logs.seal("ltm-1/1")] == [b"one"]
    found = logs.read("ltm-1/1", 1)
    assert found is not None and found[1]
    assert payloads(logs, "ltm-1/1") == [b"one"]


def test_a_log_that_was_sealed_before_it_began_is_never_written(logs: LogsElsewhere) -> None:
    assert logs.seal("ltm-1/7") == []
    with pytest.raises(Error):
        logs.create("ltm-1/7").append(b"one")
    assert logs.seal("ltm-1/7") == []


def test_what_was_trimmed_need_not_be_there(logs: LogsElsewhere) -> None:
    mine = logs.create("ltm-1/1")
    for number in range(1, 6):
        mine.append(b"%d" % number)
    mine.trim(4)
    sealed = logs.seal("ltm-1/1")
    assert sealed[-1].lsn == 5 and sealed[0].lsn <= 4
    assert [record.payload for record in sealed] == [b"%d" % record.lsn for record in sealed]


def test_a_writer_and_several_who_seal_agree(logs: LogsElsewhere) -> None:
    """Whatever was acknowledged is read by all of them, and all of them read the same."""
    for number in range(1, 6):
        log = f"ltm-1/{number}"
        mine = logs.create(log)
        acknowledged = mine.append(b"first")
        read: list[int] = []

        def seal(log: str = log, read: list[int] = read) -> None:
            read.append(len(logs.seal(log)))

        threads = [threading.Thread(target=seal, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            while True:
                acknowledged = mine.append(b"more")
        except Error:
            pass
        for thread in threads:
            thread.join(WAIT_S_MAX)
        assert len(read) == 3 and len(set(read)) == 1 and acknowledged <= read[0] <= acknowledged + 1
