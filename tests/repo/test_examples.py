"""The PyTorch example on a CPU: its layer with the reference in the place of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kgen
from kgen.codegen.reference.query import query as reference_query
from kgen.codegen.reference.value import value as reference_value

from .test_scripts import load

torch = pytest.importorskip("torch")

HEADS, BATCH = 3, 5
Kernels = dict[str, Callable[..., Any]]


def bits(tensor: Any) -> np.ndarray:
    kinds = {torch.bfloat16: (torch.int16, np.uint16), torch.float8_e4m3fn: (torch.uint8, np.uint8)}
    view, kind = kinds[tensor.dtype]
    return np.asarray(tensor.contiguous().view(view).numpy().view(kind))


def bf16(values: np.ndarray) -> Any:
    return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)


def query(packed: Any, *, cache: Any, slots: Any, **given: Any) -> Any:
    weights: dict[str, Any] = {
        name: bits(given[name]) for name in ("w_qa", "w_kva", "w_qb", "w_uk")
    }
    scales: dict[str, Any] = {
        "q_scale_inv": float(given["q_scale_inv"]),
        "k_scale": float(given["k_scale_inv"]),
    }
    made = reference_query(bits(packed), **weights, **scales, eps=given["eps"])
    taken = slots >= 0
    lines = cache.view(torch.uint8).view(-1, 576)
    lines[slots[taken]] = torch.from_numpy(made.rows)[taken]
    return torch.from_numpy(made.query).view(torch.float8_e4m3fn)


def value(latent: Any, *, w_uv: Any, gate: Any, lengths: Any) -> Any:
    return bf16(reference_value(bits(latent), bits(w_uv), bits(gate), lengths.numpy()))


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(kgen, "query", lambda **_: query, raising=False)
    monkeypatch.setattr(kgen, "value", lambda **_: value, raising=False)
    torch.manual_seed(0)
    return load("examples/decode_layer.py")


def error(example: ModuleType) -> float:
    weights = example.random_weights(HEADS, "cpu")
    state = example.random_state(BATCH, "cpu")
    want = example.unfused(weights, state)
    got = example.fused(weights, BATCH)(weights, state)
    assert state.lengths[-1] == 0 and (want[-1] == 0).all() and (got[-1] == 0).all()
    assert (want[:-1] != 0).any(dim=1).all()
    return float(example.relative_error(got, want))


def test_the_layers_agree(example: ModuleType) -> None:
    assert error(example) < 0.7 * example.TOLERANCE


WRONG: dict[str, Kernels] = {
    "query": {"query": lambda *a, **g: -query(*a, **g).float()},
    "slots": {"query": lambda *a, slots, **g: query(*a, slots=slots * 0 - 1, **g)},
    "gate": {"value": lambda *a, gate, **g: value(*a, gate=gate * 0, **g)},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layer_is_noticed(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for family, kernel in WRONG[name].items():
        monkeypatch.setattr(kgen, family, lambda kernel=kernel, **_: kernel)
    assert error(example) > example.TOLERANCE


def test_lengths_are_ragged_over_several_pages(example: ModuleType) -> None:
    state = example.random_state(BATCH, "cpu")
    lengths = state.lengths.tolist()
    assert len(set(lengths)) > 2 and lengths[0] > 2 * example.PAGE and lengths[-1] == 0
    assert len(set(state.pages.flatten().tolist())) == state.pages.numel() == len(state.cache)
    slots = state.slots.tolist()
    assert slots[-1] == -1 and len(set(slots)) == BATCH
    assert slots[0] == int(state.pages[0, -1]) * example.PAGE + (lengths[0] - 1) % example.PAGE
