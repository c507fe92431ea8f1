"""A process is not forked in the middle of a compile."""

from __future__ import annotations

import os
import threading
import time

from kgen.codegen.compiler.gate import Gate


def _fork() -> float:
    """Seconds that a fork takes; the child ends at once."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return time.monotonic() - start


def test_a_fork_waits_for_a_compile() -> None:
    gate, entered = Gate(), threading.Event()

    def compile() -> None:
        with gate.inside():
            entered.set()
            time.sleep(0.5)

    thread = threading.Thread(target=compile)
    thread.start()
    entered.wait()
    assert _fork() > 0.3
    thread.join()
    assert _fork() < 0.3


def test_the_child_can_compile() -> None:
    gate = Gate()
    child = os.fork()
    if child == 0:
        with gate.inside():
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with gate.inside():
        pass
