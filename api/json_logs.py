"""Log lines for programs: one JSON object a line, on the standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """`process` names the process of the cluster. What a caller gives as `extra` becomes a key of its own."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({key: value for key, value in vars(record).items() if key not in _USUAL and key not in line})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json(process: str, level: str, out: TextIO = sys.stderr) -> None:
    """All that is logged in this process, from `level` on."""
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter(process))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
