"""Rendering: what templates use, what a kernel's source says, and errors of templates."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import jinja2
import jinja2.meta
import pytest

from kgen.codegen.compiler import nvrtc
from kgen.codegen.compiler import render as rendering
from kgen.codegen.compiler.render import TEMPLATES, Source, environment, headers, render
from kgen.codegen.errors import CompileError, RenderError
from kgen.codegen.plan import Field, Plan, plan
from kgen.codegen.schema import Query

from ...helpers.configs import forms

Change = Callable[[tuple[Field, ...]], tuple[Field, ...]]
ROWS = plan(Query(heads=8, batch=8))


def parts(template: str) -> Iterator[jinja2.nodes.Template]:
    """The template and what it includes, parsed."""
    tree = environment().parse((TEMPLATES / template).read_text(encoding="utf-8"))
    yield tree
    for name in jinja2.meta.find_referenced_templates(tree):
        assert name, "a template is included by a name that can be read"
        yield from parts(name)


def test_a_template_uses_what_its_plans_expose_and_nothing_else() -> None:
    exposed: dict[str, set[str]] = {}
    for made in forms():
        exposed.setdefault(made.template, set()).update(made.context)
    for template, names in exposed.items():
        used = set().union(*map(jinja2.meta.find_undeclared_variables, parts(template)))
        assert used == names, template


def test_every_template_and_header_is_used_by_some_kernel() -> None:
    templates, names = set(), set()
    for made in forms():
        templates |= {made.template, *_included(made.template)}
        names |= {name for name, _ in render(made).headers}
    assert templates == set(_files("*.cu.j2"))
    assert names == set(_files("*.cuh"))


def _files(pattern: str) -> Iterator[str]:
    """The templates' files, but for what runs on a CPU."""
    for path in TEMPLATES.rglob(pattern):
        name = path.relative_to(TEMPLATES).as_posix()
        if not name.startswith("emulator/"):
            yield name


def _included(template: str) -> set[str]:
    found = map(jinja2.meta.find_referenced_templates, parts(template))
    return {name for names in found for name in names if name}


def test_no_tag_is_left_and_no_value_is_pythons() -> None:
    for made in forms():
        text = render(made).text
        assert not re.search(r"//%|\$\{|\bTrue\b|\bFalse\b|\bNone\b", text)
        assert text.endswith("}\n")


def test_constants_are_the_plans() -> None:
    made = plan(Query(heads=12, batch=64, release="end"))
    text = render(made).text
    for name, value in (("kNumTokens", made.tokens), ("kSplits", made.k_splits)):
        assert f"constexpr int {name} = {value};" in text
    assert "constexpr Release kRelease = Release::end;" in text
    for region in made.smem:
        name = "kSmem" + region.name.title().replace("_", "")
        assert re.search(rf"constexpr int {name} = {region.offset};", text, re.IGNORECASE)
    assert f"void {made.entry}(const __grid_constant__ Params params)" in text


def test_a_source_carries_all_its_headers_and_only_kgens() -> None:
    for made in forms():
        source = render(made)
        known = dict(source.headers)
        for text in (source.text, *known.values()):
            included = re.findall(r"^\s*#\s*include\s*(\S+)", text, re.MULTILINE)
            assert {name.strip('"') for name in included} <= set(known)
            assert not any(name.startswith("<") for name in included)


def test_headers_follow_includes(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a.cuh": '#include "b.cuh"\nA', "b.cuh": '#include "a.cuh"\nB', "c.cuh": "C"}
    monkeypatch.setattr(rendering, "_header", files.__getitem__)
    assert headers('x\n#include "a.cuh"\n') == (
        ("a.cuh", files["a.cuh"]),
        ("b.cuh", files["b.cuh"]),
    )
    assert headers("nothing") == ()


def test_a_missing_header_is_named() -> None:
    with pytest.raises(RenderError, match=r'#include "absent\.cuh": kgen has no such header'):
        headers('#include "absent.cuh"\n')


def _struct(source: Source) -> str:
    found = re.search(r"^struct Params \{\n.*?^\};\n", source.text, re.MULTILINE | re.DOTALL)
    assert found
    return found[0]


def _layout(made: Plan, fields: tuple[Field, ...], size: int) -> Source:
    """A source that compiles where the struct of ``made`` has these fields and this size."""
    source = render(made)
    code, lines = "<", []
    for field in fields:
        offset = struct.calcsize(code)
        lines.append(f"static_assert(__builtin_offsetof(Params, {field.name}) == {offset});")
        lines.append(f"static_assert(sizeof(Params::{field.name}) == {field.size});")
        code += field.code
    for array in made.params.arrays:
        lines.append(f"static_assert(sizeof(*Params{{}}.{array.name}) == {array.itemsize});")
    lines.append(f"static_assert(sizeof(Params) == {size});")
    types = dict(source.headers)["ptx/types.cuh"].replace("#pragma once", "")
    kernel = 'extern "C" __global__ void k(const __grid_constant__ Params params) {}\n'
    text = "\n".join((types, _struct(source), *lines, kernel))
    return Source("layout.cu", made.template, "k", text, ())


@pytest.mark.nvrtc
def test_the_struct_lies_in_memory_as_the_host_packs_it() -> None:
    planned = {_struct(render(made)): made for made in forms()}
    for made in planned.values():
        nvrtc.compile(_layout(made, made.params.fields, made.params.size), "sm_90a")


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields[:3] + fields[4:],
        lambda fields: (*fields[:-1], dataclasses.replace(fields[-1], size=8)),
        lambda fields: (fields[1], fields[0], *fields[2:]),
    ],
)
def test_another_layout_is_noticed(change: Change) -> None:
    with pytest.raises(CompileError, match="static assertion failed"):
        nvrtc.compile(_layout(ROWS, change(ROWS.params.fields), ROWS.params.size), "sm_90a")


def test_packing_puts_every_value_in_its_place() -> None:
    params = ROWS.params
    values = {field.name: number for number, field in enumerate(params.fields, 1)}
    packed = params.pack(values)
    assert len(packed) == params.size and params.size % 8 == 0
    assert struct.unpack(params.format, packed) == tuple(values.values())


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in the place of kgen's templates."""
    monkeypatch.setattr(rendering, "TEMPLATES", tmp_path)
    environment.cache_clear()
    yield tmp_path
    environment.cache_clear()


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("ok\n${num_token}\n", 2, "'num_token' is undefined"),
        ("ok\n\n//% if release\nx\n", 4, "Unexpected end of template"),
        ("//% for x y\n//% endfor\n", 1, "expected token 'in'"),
        ("a\nb\nc ${nothing}\n", 3, "a value is None"),
        ("a\n${release.up}\n", 2, "has no attribute 'up'"),
        ('a\n//% include "absent.j2"\n', 2, "absent.j2"),
        ("a\n${1 // 0}\n", 2, "division"),
    ],
)
def test_an_error_names_template_and_line(templates: Path, text: str, line: int, what: str) -> None:
    (templates / "broken.cu.j2").write_text(text)
    made = dataclasses.replace(
        ROWS,
        template="broken.cu.j2",
        constants={"release": True, "nothing": None},  # type: ignore[dict-item]
    )
    with pytest.raises(RenderError, match=rf"template broken\.cu\.j2, line {line}: .*{what}"):
        render(made)


def test_an_error_in_an_included_template_names_that_one(templates: Path) -> None:
    (templates / "part.cu.j2").write_text("fine\n\n${missing}\n")
    (templates / "whole.cu.j2").write_text('//% include "part.cu.j2"\n')
    with pytest.raises(RenderError, match=r"template part\.cu\.j2, line 3: 'missing' is undefined"):
        render(dataclasses.replace(ROWS, template="whole.cu.j2"))


def test_a_missing_template_is_named(templates: Path) -> None:
    with pytest.raises(RenderError, match=r"absent\.cu\.j2"):
        render(dataclasses.replace(ROWS, template="absent.cu.j2"))


def test_syntax_of_templates(templates: Path) -> None:
    (templates / "x.cu.j2").write_text(
        "//%# a note\n//% for field in fields\n{{ %0 }} { ${field.name} }\n//% endfor\n"
        "${release} // said\n"
    )
    text = render(dataclasses.replace(ROWS, template="x.cu.j2")).text
    rows = [f"{{{{ %0 }}}} {{ {field.name} }}" for field in ROWS.params.fields]
    assert text.splitlines() == ["", *rows, "wait // said"]
