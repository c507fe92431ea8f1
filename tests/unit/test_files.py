"""Files are there whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import resource
from pathlib import Path

import pytest

from kgen.codegen import files
from kgen.codegen.errors import KgenError

LIMIT = 1 << 16


def _write_much(path: Path, said: str) -> None:
    """Write more than a file of this process may hold."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    try:
        files.replace(path, bytes(2 * LIMIT))
    except KgenError as error:
        Path(said).write_text(str(error))


def test_a_file_is_replaced_with_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    for data in (b"one", b"another"):
        files.replace(path, data)
        assert path.read_bytes() == data and [*tmp_path.iterdir()] == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_no_room_leaves_what_was_there(tmp_path: Path) -> None:
    path, said = tmp_path / "folder" / "kernel.cubin", tmp_path / "said"
    path.parent.mkdir()
    path.write_bytes(b"old")
    child = multiprocessing.get_context("spawn").Process(target=_write_much, args=(path, str(said)))
    child.start()
    child.join()
    assert path.read_bytes() == b"old" and [*path.parent.iterdir()] == [path]
    assert f"{2 * LIMIT:,} bytes cannot be written (File too large)" in said.read_text()
    assert f"make room in {path.parent}" in said.read_text()


def test_a_folder_that_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(KgenError, match="no/such: 1 bytes cannot be written"):
        files.replace(tmp_path / "no" / "such", b"x")
