"""The Spark session: the active one if there is one, else a local one. Spark is optional, the extra `spark`."""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import InterfaceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a session needs that is started here. Filters reach Python data sources only if that is enabled; a console of
#: its own would take a port; without the address Spark asks the name service for its own host.
SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}

_starting = threading.Lock()
#: What the last start took, once there was one.
_start_s: float | None = None


def has_spark() -> bool:
    """Whether Spark is installed. It is not imported for that."""
    return find_spec("pyspark") is not None and find_spec("pyarrow") is not None


def require_spark() -> None:
    if not has_spark():
        raise InterfaceError("Spark is not installed", hint="pip install 'viewtide[spark]', and a JDK 17 or newer")


def active_session() -> SparkSession | None:
    """The session that this process has, if any. Nothing is imported to find out that there is none."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    # A session belongs to the thread that made it; the others see the last one.
    found = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # type: ignore[attr-defined,unused-ignore]
    return None if found is None or found._jsc.sc().isStopped() else found  # type: ignore[union-attr,unused-ignore]


def has_session() -> bool:
    """Whether there is a session already."""
    return active_session() is not None


def spark_session(master: str = "local[*]") -> SparkSession:
    """The session of this process, or a new local one."""
    require_spark()
    global _start_s
    with _starting:
        found = active_session()
        if found is not None:
            return found
        from pyspark.sql import SparkSession

        # Workers must find this very package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        began = time.perf_counter()
        builder = SparkSession.builder.master(master).appName("viewtide")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        _start_s = time.perf_counter() - began
        return session


def measured_start_s() -> float | None:
    """What starting the session took in this process; None if it was not started here."""
    return _start_s
