"""Packages as they are built: the wheel's bytes, its manifest, names, and what is refused."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kgen.codegen.aot.wheel import Label
from kgen.codegen.build import build
from kgen.codegen.cache import installed
from kgen.codegen.compiler import nvrtc
from kgen.codegen.errors import ConfigError
from kgen.codegen.plan import plan
from kgen.codegen.schema import parse_slug

from ...helpers import packaged

MODULE, INFO = "kgen_cubins", "kgen_cubins-0.1.0.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packaged.package(tmp_path_factory.mktemp("built") / "dist")


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.nvrtc
def test_two_cold_builds_are_byte_identical(wheel: Path, tmp_path: Path) -> None:
    slugs = tuple(reversed(packaged.SLUGS))
    again = packaged.package(tmp_path / "again", "--jobs", "1", slugs=slugs)
    assert again.name == wheel.name == "kgen_cubins-0.1.0-py3-none-any.whl"
    assert again.read_bytes() == wheel.read_bytes()
    other = packaged.package(tmp_path / "other", slugs=slugs[:1])
    assert other.read_bytes() != wheel.read_bytes()


@pytest.mark.nvrtc
def test_an_installed_package_does_not_flow_into_the_next(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = packaged.install(wheel, tmp_path / "site")
    packaged.edit(site, lambda m: [each.update(log="from the old one") for each in m["cubins"]])
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(installed, "installed", installed.search)
    assert build(parse_slug(packaged.SLUGS[0])).cubin.log == "from the old one"
    assert packaged.package(tmp_path / "dist").read_bytes() == wheel.read_bytes()


@pytest.mark.nvrtc
def test_the_wheel_holds_what_it_records(wheel: Path) -> None:
    files = members(wheel)
    rows = list(csv.reader(files[f"{INFO}/RECORD"].decode().splitlines()))
    assert [name for name, _, _ in rows] == list(files)
    assert rows.pop() == [f"{INFO}/RECORD", "", ""]
    for name, digest, size in rows:
        found = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode()
        assert (digest, size) == (f"sha256={found.rstrip('=')}", str(len(files[name])))
    assert files[f"{INFO}/entry_points.txt"] == b"[kgen.cubins]\nkgen-cubins = kgen_cubins\n"
    assert b"\nRequires-Dist: kgen-mla==0.1.0\n" in files[f"{INFO}/METADATA"]
    with zipfile.ZipFile(wheel) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.nvrtc
def test_the_manifest_says_all_of_each_kernel(wheel: Path) -> None:
    files = members(wheel)
    manifest = json.loads(files[f"{MODULE}/manifest.json"])
    assert (manifest["kgen"], manifest["nvrtc"]) == ("0.1.0", nvrtc.nvrtc_build())
    names = [(each["config"], each["arch"]) for each in manifest["kernels"]]
    assert names == sorted((slug, arch) for slug in packaged.SLUGS for arch in packaged.ARCHS)
    cubins = {each["code"]: each for each in manifest["cubins"]}
    assert len(cubins) == len(manifest["cubins"]) == 2 * len(packaged.ARCHS)
    for kernel in manifest["kernels"]:
        planned, each = plan(parse_slug(kernel["config"]), kernel["arch"]), cubins[kernel["code"]]
        built = build(planned.config, planned.target, packaged=False)
        image = files[f"{MODULE}/{each['file']}"]
        assert image == built.cubin.image and len(image) == each["bytes"]
        assert each["checksum"] == hashlib.sha256(image).hexdigest()
        assert (each["key"], each["entry"]) == (built.key, planned.entry)
        assert each["resources"]["registers"] == built.cubin.resources.registers > 0
        assert each["resources"]["spill_stores"] == 0
        assert tuple(kernel["grid"]) == planned.grid and each["threads"] == planned.threads
        assert each["smem_dynamic"] == planned.smem_bytes and each["cluster"] == planned.cluster
        layout = manifest["layouts"][each["params"]]
        assert layout["size"] == planned.params.size
        assert [m["name"] for m in layout["members"]] == [f.name for f in planned.params.fields]


@pytest.mark.nvrtc
def test_json_lists_files_and_kernels(tmp_path: Path) -> None:
    result = packaged.kgen("package", "query_norm-b4", "-o", tmp_path, "--json", "--arch", "sm_90a")
    data = json.loads(result.stdout)
    assert [Path(name).is_file() for name in data["files"]] == [True]
    assert [each["config"] for each in data["manifest"]["kernels"]] == ["query_norm-b4"]


@pytest.mark.nvrtc
@pytest.mark.parametrize("form", ["wheel", "header"])
def test_one_kernel_that_cannot_be_leaves_nothing(tmp_path: Path, form: str) -> None:
    args = ("query_norm-b4", "query-h8-b8-scheme.ksplit", "--arch", "sm_120a", "--format", form)
    result = packaged.kgen("package", *args, "-o", tmp_path)
    assert result.exit_code == 1 and "nothing was written" in result.stderr
    assert "query-h8-b8-scheme.ksplit sm_120a" in result.stderr and not result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "kgen", "-a", "a-", "a b", "a/b", "../a", "a\n", "1a"])
def test_names_that_a_wheel_cannot_have(name: str) -> None:
    with pytest.raises(ConfigError, match="--name: got"):
        Label(name, "1.0")


@pytest.mark.parametrize("version", ["", "v1", "1.", "1-2", "1.0/..", "latest"])
def test_versions_that_a_wheel_cannot_have(version: str) -> None:
    with pytest.raises(ConfigError, match="--package-version: got"):
        Label("kgen-cubins", version)


@pytest.mark.parametrize("version", ["1", "1.2.3", "1.0rc1", "1.0.post2.dev3", "1.0+cu13.1"])
def test_names_are_normalised(version: str) -> None:
    assert Label("My.Own--Cubins", version).file == f"my_own_cubins-{version}-py3-none-any.whl"


def test_layouts_are_told_apart() -> None:
    layouts: dict[str, Any] = {}
    for slug in ("query-h8-b8", "query-h8-b8-dsa", "query-h6-b1", "value-h8-b8", "gate-h8-b8"):
        data = installed.layout(plan(parse_slug(slug)).params)
        layouts.setdefault(installed.layout_hash(data), []).append(slug)
    assert next(iter(layouts.values())) == ["query-h8-b8", "query-h6-b1"]
    assert len(layouts) == 4
