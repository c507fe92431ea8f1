"""One of several processes that ask for the same kernel at once: run by ``test_turn``.

For each line ``FOLDER START`` on stdin it waits until START, builds with the cache FOLDER and
prints the cubin's SHA-256. Compiles are counted in FOLDER's neighbour ``compiles``. With ``stuck``
the first to compile says who it is in ``winner`` and never ends.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from pathlib import Path

from kgen.codegen import build
from kgen.codegen.cache.keys import Request
from kgen.codegen.cache.store import Cache
from kgen.codegen.compiler import nvrtc
from kgen.codegen.compiler.cubin import Cubin
from kgen.codegen.compiler.render import Source
from kgen.codegen.schema import QueryNorm
from kgen.codegen.targets import DEFAULT

from .cubins import compiled

CONFIG = QueryNorm(batch=8)
PLAIN = nvrtc.compile


def counted(folder: Path, stuck: bool) -> None:
    def compile(source: Source, arch: str) -> Cubin:
        with open(folder.with_name("compiles"), "a") as file:
            file.write(f"{os.getpid()}\n")
        if not stuck:
            return PLAIN(source, arch)
        try:
            descriptor = os.open(folder.with_name("winner"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return compiled(source, arch)
        os.write(descriptor, b"here")
        time.sleep(600)
        raise AssertionError

    nvrtc.compile = compile


def main() -> None:
    warnings.simplefilter("error")
    stuck = sys.argv[1:] == ["stuck"]
    assert Request.of(CONFIG, DEFAULT).key
    print("ready", flush=True)
    for line in sys.stdin:
        name, start = line.split()
        folder = Path(name)
        counted(folder, stuck)
        time.sleep(max(0.0, float(start) - time.time()))
        image = build.build(CONFIG, cache=Cache(folder)).cubin.image
        print(hashlib.sha256(image).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
