"""Skip logic of the ``gpu`` and ``cpu`` markers, and settings of their own for every test."""

from __future__ import annotations

import os
from functools import cache as memo
from pathlib import Path

import hypothesis
import pytest

from kgen.codegen import api
from kgen.codegen.cache import installed, lookup
from kgen.codegen.emulator import toolchain
from kgen.codegen.errors import DeviceError
from kgen.codegen.runtime import nvml

# A loaded machine fails no test by its clock, and a failure comes back in the next run.
hypothesis.settings.register_profile("kgen", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("kgen")


@memo
def missing_gpu() -> str | None:
    """The capability that GPU tests lack here, or None."""
    try:
        nvml.require()
    except DeviceError as error:
        return str(error)
    return None


@memo
def missing_compiler() -> str | None:
    """What CPU runs of kernels lack here, or None."""
    try:
        toolchain.host()
    except DeviceError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, missing in (("gpu", missing_gpu), ("cpu", missing_compiler)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := missing()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that the tests of one session share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, session_cache: Path) -> None:
    """No ``KGEN_*`` setting of the caller, no installed package and no kernel of another test
    reaches a test; the user's cache is never touched."""
    for name in [name for name in os.environ if name.startswith("KGEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KGEN_CACHE_DIR", str(session_cache))
    monkeypatch.setattr(lookup, "_told", set())
    monkeypatch.setattr(installed, "installed", tuple)
    monkeypatch.setattr(installed, "_said", set())
    monkeypatch.setattr(api, "_kernels", {})
    nvml.gpus.cache_clear()
