"""Matrix files: what they name, and how mistakes in them are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgen.codegen.errors import ConfigError
from kgen.codegen.schema import Config, select

from ...helpers import packaged
from ...helpers.places import ROOT

EXAMPLE = ROOT / "examples" / "decode.toml"


def read(folder: Path, text: str) -> tuple[Config, ...]:
    path = folder / "matrix.toml"
    path.write_text(text)
    found: tuple[Config, ...] = select((str(path),), None, {})
    return found


def slugs(folder: Path, text: str) -> list[str]:
    return [config.slug for config in read(folder, text)]


def test_tables_name_every_combination_once(tmp_path: Path) -> None:
    text = """
    slugs = ["query-h8-b2", "value-h8-b1"]
    [[query]]
    heads = "6,8"
    batch = [1, "2-3", 2]
    [[query]]
    heads = 8
    batch = 1
    release = [true, false]
    scheme = "rows,ksplit"
    """
    heads = [f"query-h{h}-b{b}" for h in (6, 8) for b in (1, 2, 3)]
    heads.remove("query-h8-b2")
    schemes = [f"query-h8-b1-scheme.{scheme}" for scheme in ("rows", "ksplit")]
    schemes += [f"{slug}-no_release" for slug in schemes]
    assert slugs(tmp_path, text) == ["query-h8-b2", "value-h8-b1", *heads, *schemes]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[query]]\nheads = 8", "batch: .* query requires it"),
        ("[[query]]\nheads = 0\nbatch = 1", r"heads: got 0; allowed is an integer from 1 to 128"),
        ("[[query]]\nheads = 1.0\nbatch = 1", r"heads: got 1\.0; allowed is an integer"),
        ("[[query]]\nheads = true\nbatch = 1", "heads: got True; allowed is an integer"),
        ("[[query]]\nheads = '9-1'\nbatch = 1", "heads: got '9-1'; a range runs upwards"),
        ("[[query]]\nheads = []\nbatch = 1", r"heads: got \[\]; a list has at least one value"),
        ("[[query]]\nhaeds = 8\nbatch = 1", "haeds: got 8; query has the fields heads"),
        ("[[query]]\nheads = 8\nbatch = 1\ndsa = 'true'", "dsa: got 'true'; allowed is true or"),
        ("[[query]]\nheads = 8\nbatch = 1\nfp8 = true", "fp8: got True; fp8 needs dsa"),
        ("[[qurey]]\nheads = 8", "kernel: got 'qurey'; allowed are query, "),
        ("[query]\nheads = 8", r"query: got .*; allowed is tables, \[\[query\]\]"),
        ("query = 8", r"query: got 8; allowed is tables, \[\[query\]\]"),
        ("slugs = 'query-h8-b8'", r"slugs: got 'query-h8-b8'; allowed is a list of slugs"),
        ("slugs = [8]", r"slugs: got \[8\]; allowed is a list of slugs"),
        ("slugs = ['query-h8']", "batch: .* query requires it"),
        ("[[query]\n", r"matrix file: got '.*matrix\.toml'; cannot be read: .*line 1"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    for command in ("plan", "package", "coverage", "build"):
        result = packaged.kgen(command, tmp_path / "none.toml")
        assert result.exit_code == 2
        assert "none.toml'; cannot be read: No such file or directory" in result.stderr


def test_every_command_takes_a_file_beside_slugs(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("[[query_norm]]\nbatch = '1-2'\n")
    result = packaged.kgen("plan", tmp_path / "m.toml", "query_norm-b8", "--arch", "sm_90a")
    heads = [line for line in result.stdout.splitlines() if line.endswith(" for sm_90a")]
    assert heads == [f"query_norm-b{batch} for sm_90a" for batch in (1, 2, 8)]


def test_the_example_can_be_planned() -> None:
    assert packaged.kgen("plan", EXAMPLE, "--arch", "sm_90a", "--arch", "sm_100a").exit_code == 0
