"""Where kernels would come from: packages, caches, the compiler, or nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kgen.codegen.build import build
from kgen.codegen.cache import installed
from kgen.codegen.cache.store import Cache
from kgen.codegen.compiler import nvrtc
from kgen.codegen.inspection.coverage import survey
from kgen.codegen.schema import Refused, attempt, parse_slug

from ...helpers import packaged

pytestmark = pytest.mark.nvrtc

PATCH = pytest.MonkeyPatch
MATRIX = """
slugs = ["query_norm-b8", "query_norm-b2-no_release", "query_norm-b3-no_release"]

[[query_norm]]
batch = [1, "3-4"]

[[index_front]]
batch = 8
mx = [false, true]
fp4 = [false, true]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coverage")
    return packaged.install(packaged.package(folder / "dist"), folder / "site")


@pytest.fixture
def matrix(site: Path, tmp_path: Path, monkeypatch: PATCH) -> str:
    """A matrix file, beside a package of some of its kernels and a cache of some others."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(installed, "installed", installed.search)
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))
    build(parse_slug("query_norm-b2-no_release"), "sm_90a")

    def refuse(*_args: object) -> None:
        raise AssertionError("coverage must not compile")

    monkeypatch.setattr(nvrtc, "compile", refuse)
    path = tmp_path / "decode.toml"
    path.write_text(MATRIX)
    return str(path)


def test_every_state_is_told_in_matrix_order(matrix: str) -> None:
    result = packaged.kgen("coverage", matrix, "--arch", "sm_90a", "--json")
    rows = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [(row["name"], row["state"]) for row in rows] == [
        ("query_norm-b8", "packaged"),
        ("query_norm-b2-no_release", "cached"),
        ("query_norm-b3-no_release", "cached"),
        ("query_norm-b1", "packaged"),
        ("query_norm-b3", "packaged"),
        ("query_norm-b4", "packaged"),
        ("index_front-b8", "compile"),
        ("index_front-b8-fp4", "compile"),
        ("index_front-b8-mx", "compile"),
        ("index_front batch=8 mx=True fp4=True", "impossible"),
    ]
    found = [row["place"] for row in rows if row["state"] in ("packaged", "cached")]
    assert len(found) == 6 and all(Path(place).is_file() for place in found)
    assert "mx excludes fp4" in rows[-1]["place"]
    counts = "4 packaged, 2 cached, 3 must be compiled, 1 cannot exist"
    assert result.stderr.strip() == counts


def test_text_names_state_kernel_target_and_file(matrix: str, site: Path) -> None:
    result = packaged.kgen("coverage", "query_norm-b8", "--arch", "sm_90a", "--arch", "sm_120a")
    first, second = (line.split() for line in result.stdout.splitlines())
    place = str(site / "kgen_cubins/cubins/query_norm_row1_release_start-sm_90a.cubin")
    assert first == ["packaged", "query_norm-b8", "sm_90a", place]
    assert second == ["must", "be", "compiled", "query_norm-b8", "sm_120a"]
    assert result.exit_code == 1


@pytest.mark.parametrize("jit", ["0", "1"])
def test_it_passes_where_nothing_would_be_compiled(matrix: str, jit: str) -> None:
    slugs = ("query_norm-b8", "query_norm-b2-no_release", "query-h8-b8-scheme.ksplit")
    done = packaged.kgen("coverage", *slugs[:2], "--arch", "sm_90a", "--jit", jit)
    assert done.exit_code == 0
    done = packaged.kgen("coverage", slugs[2], "--arch", "sm_120a", "--jit", jit)
    assert done.exit_code == 0 and done.stdout.startswith("cannot exist")
    assert "bytes of shared memory a block, sm_120a has 101,376" in " ".join(done.stdout.split())


def test_nothing_is_written(matrix: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    survey([parse_slug("query_norm-b8"), parse_slug("query_norm-b9")], ["sm_90a"])
    assert sorted(tmp_path.rglob("*")) == before
    empty = Cache(tmp_path / "none")
    (row,) = survey([parse_slug("query_norm-b2-no_release")], ["sm_90a"], empty)
    assert row.state == "compile" and not empty.root.exists()


def test_a_mistaken_slug_is_the_users_mistake() -> None:
    assert packaged.kgen("coverage", "query_norm-x9").exit_code == 2


def test_what_a_family_cannot_be() -> None:
    refused = attempt("query", {"heads": 0, "batch": 1})
    assert isinstance(refused, Refused) and refused.name == "query heads=0 batch=1"
    assert "heads: got 0" in refused.reason
