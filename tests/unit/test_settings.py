from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgen.codegen import settings
from kgen.codegen.errors import ConfigError


def test_unset_settings_have_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGEN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert settings.CACHE_DIR.value() == Path("/somewhere/kgen")
    assert settings.CACHE_PATH.value() == ()
    assert settings.ARCH.value() is None
    assert settings.JIT.value() is True
    assert settings.DUMP_DIR.value() is None
    assert settings.LOG.value() == 0


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.CACHE_DIR, "/a/b", Path("/a/b")),
        (settings.CACHE_DIR, "~/b", Path.home() / "b"),
        (settings.CACHE_TRUST, "any", "any"),
        (settings.DUMP_DIR, "b", Path.cwd() / "b"),
        (settings.CACHE_PATH, os.pathsep.join(("/a", "", "/b")), (Path("/a"), Path("/b"))),
        (settings.ARCH, " sm_100a ", "sm_100a"),
        (settings.ARCH, "", None),
        (settings.JIT, "0", False),
        (settings.JIT, "1", True),
        (settings.JIT, "", True),
        (settings.DUMP_DIR, "/d", Path("/d")),
        (settings.LOG, "info", 1),
        (settings.LOG, "debug", 2),
    ],
)
def test_values_are_typed_and_read_at_use(
    monkeypatch: pytest.MonkeyPatch, setting: settings.Setting[object], text: str, value: object
) -> None:
    monkeypatch.setenv(setting.name, text)
    assert setting.value() == value


@pytest.mark.parametrize(
    ("setting", "allowed"), [(settings.JIT, "0, 1"), (settings.LOG, "off, info, debug")]
)
def test_a_wrong_value_names_setting_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, setting: settings.Setting[object], allowed: str
) -> None:
    monkeypatch.setenv(setting.name, "maybe")
    with pytest.raises(ConfigError) as caught:
        setting.value()
    assert str(caught.value) == f"{setting.name}: got 'maybe'; allowed are {allowed}"


def test_every_setting_is_listed_once() -> None:
    declared = [item for item in vars(settings).values() if isinstance(item, settings.Setting)]
    assert list(settings.SETTINGS) == declared
    assert all(setting.name.startswith("KGEN_") and setting.doc for setting in declared)


@pytest.mark.parametrize("setting", [settings.CACHE_DIR, settings.CACHE_PATH])
@pytest.mark.parametrize("text", ["cache", "./cache", "~nobody-of-that-name/cache"])
def test_a_cache_is_never_relative(
    monkeypatch: pytest.MonkeyPatch, setting: settings.Setting[object], text: str
) -> None:
    monkeypatch.setenv(setting.name, text)
    with pytest.raises(ConfigError, match=f"{setting.name}: got '{text}'; an absolute path"):
        setting.value()


@pytest.mark.parametrize(("name", "value"), [("XDG_CACHE_HOME", "here"), ("HOME", ".")])
def test_the_users_cache_folder_is_absolute(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.delenv("KGEN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(name, value)
    assert settings.CACHE_DIR.value().is_absolute()


def test_without_a_home_the_cache_is_in_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGEN_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_a, **_k: Path("~/.cache/kgen"))
    assert settings.CACHE_DIR.value() == Path("/tmp", f"kgen-{os.getuid()}")
