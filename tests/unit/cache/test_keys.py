"""The key: content only, each field by its label."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import jinja2.meta
import pytest

from kgen.codegen import build
from kgen.codegen.cache import keys
from kgen.codegen.cache.keys import Request, combine
from kgen.codegen.cache.store import Cache
from kgen.codegen.compiler import nvrtc, render
from kgen.codegen.compiler.render import TEMPLATES, Source
from kgen.codegen.plan import Plan, plan
from kgen.codegen.schema import VERSION, QueryNorm, parse_slug

from ...helpers.configs import forms
from ...helpers.places import ROOT

SOURCE = Source("norm.cu", "norm.cu.j2", "norm", "text", (("a.cuh", "A"), ("b.cuh", "B")))
PLAN = plan(QueryNorm(batch=8))
OPTIONS = ("--one", "--two")


def request(source: Source = SOURCE, arch: str = "sm_90a") -> Request:
    return Request(
        dataclasses.replace(PLAN, target=dataclasses.replace(PLAN.target, name=arch)), source
    )


def key(
    source: Source = SOURCE,
    arch: str = "sm_90a",
    options: tuple[str, ...] = OPTIONS,
    build: str = "13.5",
) -> str:
    """The key of ``source`` compiled for ``arch`` with ``options`` by the NVRTC ``build``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "options", lambda arch: options)
        patch.setattr(nvrtc, "nvrtc_build", lambda: build)
        return request(source, arch).key


KEY = key()


def _changed(**fields: object) -> str:
    return key(dataclasses.replace(SOURCE, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        lambda: _changed(text="Text"),
        lambda: _changed(headers=(("a.cuh", "A"),)),
        lambda: _changed(headers=(("a.cuh", "A"), ("b.cuh", "C"))),
        lambda: _changed(headers=(("a.cuh", "A"), ("c.cuh", "B"))),
        lambda: _changed(headers=(("a.cuh", "B"), ("b.cuh", "A"))),
        lambda: _changed(headers=(("a.cuh", "Ab.cuh"), ("", "B"))),
        lambda: _changed(text="tex", headers=(("ta.cuh", "A"), ("b.cuh", "B"))),
        lambda: key(SOURCE, "sm_90b", OPTIONS, "13.5"),
        lambda: key(SOURCE, "sm_90a", ("--two", "--one"), "13.5"),
        lambda: key(SOURCE, "sm_90a", ("--one--two",), "13.5"),
        lambda: key(SOURCE, "sm_90a", ("--one5:--two",), "13.5"),
        lambda: key(SOURCE, "sm_90a", ("--one",), "13.5"),
        lambda: key(SOURCE, "sm_90a", OPTIONS, "13.6"),
        lambda: key(SOURCE, "sm_90a1", OPTIONS, "3.5"),
        lambda: key(SOURCE, "sm_90a", (*OPTIONS, "arch"), "13.5"),
    ],
)
def test_every_part_of_the_content_changes_the_key(other: Callable[[], str]) -> None:
    assert other() != KEY


@pytest.mark.parametrize(("name", "value"), [("VERSION", VERSION + 1), ("FORMAT", 99)])
def test_versions_change_the_key(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    monkeypatch.setattr(keys, name, value)
    assert key() != KEY


def test_names_that_reach_no_cubin_do_not_change_the_key() -> None:
    assert _changed(name="other.cu", template="other.cu.j2") == KEY


def test_the_key_follows_from_the_fields_in_any_order() -> None:
    found = request()
    fields = found.fields
    assert list(fields) == [
        *("format", "schema", "text", "header a.cuh", "header b.cuh", "options", "arch", "nvrtc")
    ]
    assert combine({label: fields[label] for label in reversed(list(fields))}) == found.key
    assert combine({**fields, "arch": fields["nvrtc"]}) != found.key
    assert found.content == {name: fields[name] for name in fields if name != "nvrtc"}
    assert found.code == combine(found.content) != found.key


def _template_files(name: str) -> Iterator[str]:
    """``name`` and every template that it includes or imports."""
    yield name
    environment = render.environment()
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    for found in jinja2.meta.find_referenced_templates(environment.parse(text)):
        if found:
            yield from _template_files(found)


def _users() -> dict[str, list[Plan]]:
    """For each file of the templates the kernels that may use it."""
    users: dict[str, list[Plan]] = {}
    for planned in forms():
        headers = (name for name, _ in render.render(planned).headers)
        for name in (*_template_files(planned.template), *headers):
            users.setdefault(name, []).append(planned)
    return users


def _edited(text: str) -> str:
    """``text`` with a space made a tab in each line that may be rendered."""
    lines = text.splitlines(keepends=True)
    kept = (line.lstrip().startswith("//%") for line in lines)
    return "".join(
        line if keep else line.replace(" ", "\t", 1) for line, keep in zip(lines, kept, strict=True)
    )


def _read_anew() -> None:
    render.environment.cache_clear()
    render._header.cache_clear()
    render._rendered.cache_clear()


@pytest.fixture
def anew() -> Iterator[None]:
    """Other tests read the real templates."""
    yield
    _read_anew()


@pytest.mark.usefixtures("anew")
def test_editing_any_template_or_header_changes_a_key_and_touching_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = _users()  # of every file, as test_render says
    folder = tmp_path / "templates"
    shutil.copytree(TEMPLATES, folder)
    monkeypatch.setattr(render, "TEMPLATES", folder)

    def current(planned: Plan) -> str:
        return Request(planned, render.render(planned)).code

    untouched = {planned.entry: current(planned) for planned in forms()}
    for name, kernels in users.items():
        path, times = folder / name, (folder / name).stat()
        text = path.read_text(encoding="utf-8")
        path.touch()
        _read_anew()
        assert current(kernels[0]) == untouched[kernels[0].entry]
        path.write_text(_edited(text), encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert path.stat().st_size == times.st_size
        _read_anew()
        assert any(current(each) != untouched[each.entry] for each in kernels), name
        path.write_text(text, encoding="utf-8")


@pytest.mark.nvrtc
def test_cuobjdump_reads_an_entry(tmp_path: Path) -> None:
    files = metadata.files("nvidia-cuda-cuobjdump") or ()
    (program,) = (str(file.locate()) for file in files if file.name == "cuobjdump")
    built = build.build(parse_slug("query_norm-b8"), cache=Cache(tmp_path / "cache"))
    command = (program, "--dump-resource-usage", str(built.path))
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"Function {built.cubin.entry}:" in text
    assert f"REG:{built.cubin.resources.registers} " in text


BUILD = """
from kgen.codegen import build
from kgen.codegen.compiler import render
from kgen.codegen.schema import QueryNorm
built = build.build(QueryNorm(batch=8))
print(built.origin, built.key, render.TEMPLATES)
"""


@pytest.mark.nvrtc
def test_a_tree_elsewhere_or_through_a_symlink_hits_and_an_edit_rebuilds(tmp_path: Path) -> None:
    def tree(name: str) -> Path:
        for part in ("codegen", "templates"):
            shutil.copytree(ROOT / part, tmp_path / name / "kgen" / part)
        shutil.copy(ROOT / "__init__.py", tmp_path / name / "kgen")
        return tmp_path / name

    def built(place: Path) -> list[str]:
        env = {**os.environ, "PYTHONPATH": str(place), "KGEN_CACHE_DIR": str(tmp_path / "cache")}
        command = (sys.executable, "-c", BUILD)
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        *words, folder = done.stdout.split()
        assert folder.startswith(str(tmp_path)), "it is this tree that was run"
        return words

    first, second = tree("first"), tree("second")
    (tmp_path / "link").symlink_to(second)
    origin, name = built(first)
    assert origin == "compiled"
    assert built(second) == built(tmp_path / "link") == ["cache", name]
    header = second / "kgen" / "templates" / "ptx/types.cuh"
    facts, text = header.stat(), header.read_text(encoding="utf-8")
    header.write_text(text[:-1] + " ", encoding="utf-8")
    os.utime(header, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    origin, other = built(second)
    assert origin == "compiled" and other != name
    assert built(first) == ["cache", name]
