"""A worker for the supervisor's tests, honest or hostile as each cell says.

It travels in the place of `sandbox_kernel.guest.worker`.  A cell's code is Python that runs
with `say(event)`, `put(text, name)`, `cell`, `sock` and the modules below in reach; nothing is
captured.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from sandbox_kernel import wire
from sandbox_kernel.guest import ring


def main(sock, settings, _dock, outlet):
    """Serve cells until the supervisor is gone."""
    if settings.get("stillborn"):
        os._exit(9)
    time.sleep(settings.get("start_seconds", 0))
    connection = wire.Connection(wire.Role.WORKER, wire.Role.HOST)
    lock = threading.Lock()
    behind_pipes = False

    def knock():
        os.write(outlet.bell, ring.BEHIND_PIPES if behind_pipes else ring.BEHIND_NOTHING)

    def wait():
        knock()
        time.sleep(0.001)

    writer = ring.Writer(outlet.memory, knock, wait)

    def say(event):
        with lock:
            sock.sendall(connection.send(event))
            writer.events += 1

    def put(text, name="stdout", *, behind=False):
        nonlocal behind_pipes
        behind_pipes = behind
        writer.write(scope["cell"], name, text.encode())

    def hear():
        while True:
            event = connection.next_event()
            if event is not None:
                return event
            data = sock.recv(65536)
            if not data:
                os._exit(0)
            connection.receive_data(data)

    scope = {
        "os": os, "signal": signal, "sys": sys, "threading": threading, "time": time,
        "wire": wire, "sock": sock, "outlet": outlet, "say": say, "hear": hear,
        "put": put, "writer": writer, "header": memoryview(outlet.memory)[ring.SIZE :].cast("Q"),
    }  # fmt: skip
    say(wire.Ready("python"))
    while True:
        event = hear()
        if isinstance(event, wire.Execute):
            scope["cell"] = event.cell
            say(wire.ExecuteReply(event.cell, _run(event, scope, say), 0, 0))
        elif isinstance(event, wire.Complete):
            say(wire.CompleteReply(event.request, [f"{event.code}!"], [""], 0, event.cursor))


def _run(event, scope, say):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exec(event.code, scope)
    except BaseException as error:  # noqa: BLE001 - as a notebook's cell
        say(wire.Error(event.cell, type(error).__name__, str(error), []))
        return "error"
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return "ok"
