"""Command lines that surprise no one: who owns an option, which number a rule means, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kgen import cli


def run(*line: str) -> Result:
    return CliRunner().invoke(cli.kgen, line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plan --kernel value --heads 8 --batch 9 --q 2", "q: got 2; q divides batch, here 9"),
        ("plan --kernel query_wait --heads 8 --batch 9 --dcp 2 --q-heads 3", "here 16"),
        ("plan --kernel value --heads 8 --batch 9 --dsa", "an option of query, not of value"),
        ("plan query-h8-b8 --kernel value", "query-h8-b8 says its family"),
        ("plan --kernel query --heads 8 --bach 9", "--bach"),
        ("generate query-h8-b8", "name a folder"),
        (
            "plan --kernel value --heads 8 --batch 9 --q 2 --skip-illegal",
            "not one of them is legal",
        ),
    ],
)
def test_misuse_is_told_by_name(line: str, said: str) -> None:
    found = run(*line.split())
    assert found.exit_code == 2 and said in found.output


def test_an_illegal_point_does_not_refuse_the_others() -> None:
    line = "plan --kernel value --heads 8 --batch 4,9,12 --q 4 --skip-illegal --json"
    found = run(*line.split())
    assert found.exit_code == 0 and "skipped value heads=8 batch=9 q=4: q" in found.stderr
    assert [plan["config"]["batch"] for plan in json.loads(found.stdout)] == [4, 12]


@pytest.mark.parametrize("text", ["", "slugs = []", "query = []", "slugs = []\nvalue = []"])
def test_a_matrix_of_nothing_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text(text)
    for command in ("plan", "coverage", "package", "build"):
        found = run(command, str(path))
        assert (
            found.exit_code == 2 and f"{path}" in found.output and "names no kernel" in found.output
        )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('slugs = ["query-h8-x"]', "slugs: slug"),
        ("[[query]]\nheads = 8\nbatch = 8\n[[query]]\nheads = 0\nbatch = 8", "[[query]] number 2"),
        ("[[query]]\nhaeds = 8\nbatch = 8", "[[query]] number 1: haeds"),
        ("[[quary]]\nheads = 8", "quary"),
    ],
)
def test_an_error_of_a_matrix_names_file_and_table(text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(text)
    found = run("plan", str(path))
    assert found.exit_code == 2 and f"{path}: {place}" in found.output


def test_quiet_silences_narration_only() -> None:
    loud, quiet = run("generate", "--check"), run("generate", "--check", "-q")
    assert loud.exit_code == quiet.exit_code == 0
    assert "current" in loud.stderr and quiet.output == ""
    assert (
        "allowed" in run("plan", "--kernel", "query", "--heads", "0", "--batch", "1", "-q").stderr
    )


def test_unknown_and_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGEN_JITT", "1")
    monkeypatch.setenv("KGEN_LOG", "loud")
    found = run("env")
    assert found.exit_code == 2
    assert "KGEN_JITT: got '1'; did you mean KGEN_JIT?" in found.stderr
    assert "KGEN_LOG: got 'loud'; allowed are off, info, debug" in found.stderr
    doctor = run("doctor")
    assert doctor.exit_code == 1 and "settings: failed" in doctor.stdout


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    from kgen.codegen.plan import model

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "find_target", stop)
    found = run("plan", "query-h8-b8")
    assert found.exit_code == 130 and "Traceback" not in found.output


def test_the_schema_validates_matrix_files() -> None:
    import jsonschema

    schema = json.loads(run("schema").stdout)
    check = jsonschema.Draft202012Validator(schema)
    good = {
        "slugs": ["query-h8-b64"],
        "query": [{"heads": [6, 8], "batch": "1-16,32", "dsa": True}],
    }
    assert check.is_valid(good)
    wrong: tuple[dict[str, Any], ...] = (
        {},
        {"query": []},
        {"query": [{"heads": 8}]},
        {"query": [{"heads": 129, "batch": 8}]},
        {"query": [{"heads": True, "batch": 8}]},
        {"query": [{"heads": 8, "batch": "8-"}]},
        {"query": [{"heads": 8, "batch": 8, "transport": "pigeon"}]},
        {"quary": [{"heads": 8, "batch": 8}]},
    )
    for bad in wrong:
        assert not check.is_valid(bad), bad
