"""Kernels for C and C++ programs: a header with a launch table, and a C file with the cubins."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..cache import installed
from .wheel import Label, cubins

if TYPE_CHECKING:
    from ..build import Artifact
    from ..plan import ParamTable

_TABLE = """
typedef struct {
    const char* config;     // query-h8-b64
    const char* arch;       // sm_90a
    int major, minor;       // compute capability of that target: the GPU's must be the same
    const char* entry;      // for cuModuleGetFunction
    const uint64_t* cubin;  // for cuModuleLoadData
    size_t cubin_size;      // bytes
    unsigned grid[3];       // blocks
    unsigned block[3];      // threads
    unsigned cluster;       // blocks along x; in the cubin too, so that a launch need not name it.
                            // Above 8: CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    unsigned smem_dynamic;  // bytes: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES and launch
    unsigned smem_static;   // bytes
    unsigned registers;     // a thread
    unsigned params_size;   // bytes of the one parameter, <entry>_params below
    const char* params;     // name of that struct
} kgen_kernel;
"""


def files(artifacts: Iterable[Artifact], label: Label) -> dict[str, str]:
    """The header's and the C file's text by file name: the same for the same kernels."""
    made = sorted(artifacts, key=lambda each: (each.plan.config.slug, each.plan.target.name))
    name = label.module
    return {
        f"{name}.h": "\n".join(_header(made, name)) + "\n",
        f"{name}.c": "\n".join(_source(made, name)) + "\n",
    }


def _header(made: list[Artifact], name: str) -> Iterator[str]:
    yield f"// {len(made)} kernels that kgen built; cubins are in {name}.c. C11 or C++11, 64 bits."
    yield "#pragma once\n#include <assert.h>\n#include <stddef.h>\n#include <stdint.h>\n"
    yield f'#ifdef __cplusplus\nextern "C" {{\n#endif\n{_GUARDED}'
    layouts: dict[str, ParamTable] = {}
    for artifact in made:
        layouts.setdefault(_struct(artifact), artifact.plan.params)
    for struct_name, params in layouts.items():
        yield from _layout(struct_name, params)
    structs = {artifact.cubin.entry: _struct(artifact) for artifact in made}
    yield from (f"typedef struct {struct} {entry}_params;" for entry, struct in structs.items())
    yield f"\nextern const kgen_kernel {name}[];  // in the order of config, then arch"
    yield f"extern const size_t {name}_count;\n"
    yield "// The kernel of a configuration for a GPU's compute capability, or NULL."
    yield f"const kgen_kernel* {name}_find(const char* config, int major, int minor);"
    yield "\n#ifdef __cplusplus\n}\n#endif"


_GUARDED = f"\n#ifndef KGEN_KERNEL\n#define KGEN_KERNEL{_TABLE}#endif\n"


def _struct(artifact: Artifact) -> str:
    plan = artifact.plan
    return (
        f"kgen_{plan.config.kernel}_params_{installed.layout_hash(installed.layout(plan.params))}"
    )


def _layout(name: str, params: ParamTable) -> Iterator[str]:
    """The struct ``name``: pointers are to device memory, their element types in the comments."""
    data = installed.layout(params)
    yield f"#ifndef KGEN_HAS_{name}\n#define KGEN_HAS_{name}\nstruct {name} {{"
    for field in params.fields:
        comment = f"  // {field.comment}" if field.comment else ""
        if field.ctype.endswith("*"):
            const = "const " if field.ctype.startswith("const ") else ""
            element = field.ctype.removeprefix("const ").removesuffix("*")
            yield f"    {const}void* {field.name};  // {element} {field.comment}"
        else:
            yield f"    {field.ctype} {field.name};{comment}"
    yield "};"
    yield f'static_assert(sizeof(struct {name}) == {data["size"]}, "size");'
    for member in data["members"]:
        where = f"offsetof(struct {name}, {member['name']})"
        yield f'static_assert({where} == {member["offset"]}, "{member["name"]}");'
    yield "#endif\n"


def _source(made: list[Artifact], name: str) -> Iterator[str]:
    yield f'#include "{name}.h"\n\n#include <string.h>\n'
    yield "// Cubins, as little-endian words; several kernels may share one."
    for cubin, artifact in cubins(made).items():
        yield f"static const uint64_t {_variable(cubin)}[] = {{"
        yield from _words(artifact.cubin.image)
        yield "};"
    yield f"\nconst kgen_kernel {name}[] = {{"
    yield from map(_row, made)
    yield f"}};\nconst size_t {name}_count = {len(made)};\n"
    yield f"""const kgen_kernel* {name}_find(const char* config, int major, int minor) {{
    for (size_t i = 0; i < {name}_count; ++i) {{
        const kgen_kernel* k = &{name}[i];
        if (!strcmp(k->config, config) && k->major == major && k->minor == minor) return k;
    }}
    return NULL;
}}"""


def _variable(cubin: str) -> str:
    return f"cubin_{cubin.replace('-', '_')}"


def _row(artifact: Artifact) -> str:
    plan, cubin = artifact.plan, artifact.cubin
    image = _variable(f"{plan.code}-{plan.target.name}")
    facts = (
        f'"{plan.config.slug}", "{plan.target.name}", {plan.target.major}, {plan.target.minor}',
        f'"{cubin.entry}", {image}, {len(cubin.image)}',
        f"{{{', '.join(map(str, plan.grid))}}}, {{{plan.threads}, 1, 1}}, {plan.cluster}",
        f"{plan.smem_bytes}, {cubin.resources.smem_static}, {cubin.resources.registers}",
        f'sizeof({cubin.entry}_params), "{_struct(artifact)}"',
    )
    return f"    {{{', '.join(facts)}}},"


def _words(image: bytes) -> Iterator[str]:
    padded = image + bytes(-len(image) % 8)
    words = [f"0x{word:x}," for (word,) in struct.iter_unpack("<Q", padded)]
    return (" ".join(words[i : i + 4]) for i in range(0, len(words), 4))
