"""A process with a hub that answers every message with the same one, for tests that attack it from outside.

    python -m tests.echo_server [key file, allow-list]

It prints its address, then serves until its standard input ends. `Draw` is answered with figures, as `Timestamps`.
"""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

from viewtide.changetables.errors import RemoteProtocolError
from viewtide.coordinator import registered
from viewtide.ltm.keys import AllowList, Keys
from viewtide.ltm.transport import Hub
from viewtide.ltm.two_phase.messages import Draw, Timestamps
from viewtide.ltm.wire import decode, encode

assert registered.MESSAGES


def answer(hub: Hub, payload: bytes) -> bytes | None:
    try:
        message = decode(payload)
    except RemoteProtocolError:
        hub.counts.malformed += 1
        return None
    if isinstance(message, Draw):
        memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return encode(Timestamps(message.number, memory_kb, hub.counts.refused, hub.counts.malformed))
    return encode(message)


def serve(hub: Hub, ended: threading.Event) -> None:
    while not ended.is_set():
        for batch in hub.poll(-1):
            for payload in batch.payloads:
                answered = answer(hub, payload)
                if answered is not None:
                    hub.reply(batch.route, answered)
        hub.flush()


def main() -> None:
    keys = Keys.load(Path(sys.argv[1])) if len(sys.argv) > 1 else None
    allowed = AllowList(Path(sys.argv[2])) if keys is not None else None
    hub = Hub("server", listen="tcp://127.0.0.1:0", keys=keys, allowed=allowed)
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()
        hub.wake()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print(hub.address, flush=True)
    serve(hub, ended)
    hub.close()


if __name__ == "__main__":
    main()
