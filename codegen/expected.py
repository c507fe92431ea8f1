"""What the outputs of each kernel family must hold for a sample, by the reference.

A family joins with an entry of :data:`FAMILIES`: what makes its inputs, and what its outputs must
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import judge, reference, samples
from .judge import Verdict
from .samples import KEY_PAGE, Sample
from .schema import Gate, IndexFront, Query, QueryNorm, Value

Bits: TypeAlias = NDArray[Any]
Rule: TypeAlias = Callable[[Bits, Bits], Verdict]
Parts: TypeAlias = Callable[[Bits], list[Bits]]


def whole(bits: Bits) -> list[Bits]:
    """An output of one type."""
    return [bits]


def as_held(bits: Bits) -> Bits:
    """An array as it is."""
    return bits


@dataclass(frozen=True)
class Expected:
    """The output ``array``, seen through ``view``, must hold ``want`` at the index ``where``, by
    ``rule``; each of its ``parts`` is judged by itself. A row (the last axis of a part) may be
    that of one of ``others`` as well."""

    name: str
    array: str
    where: tuple[Any, ...]
    want: Bits
    rule: Rule
    parts: Parts = whole
    view: Callable[[Bits], Bits] = as_held
    others: tuple[Bits, ...] = ()

    @property
    def index(self) -> tuple[Any, ...]:
        """The index of what is judged, in the view."""
        return (*self.where, *(slice(extent) for extent in self.want.shape[1:]))

    def verdicts(self, held: Bits) -> list[Verdict]:
        """What ``rule`` says of each part of the array as it is held."""
        got = self.parts(np.ascontiguousarray(self.view(held)[self.index]))
        wants = zip(*map(self.parts, (self.want, *self.others)), strict=True)
        pairs = zip(got, wants, strict=True)
        return [self.rule(part, nearest(part, allowed)) for part, allowed in pairs]


def nearest(got: Bits, wants: tuple[Bits, ...]) -> Bits:
    """For each row the one of ``wants`` that fewest values of ``got`` differ from."""
    if len(wants) == 1:
        return wants[0]
    apart = np.stack([(got != want).sum(axis=-1) for want in wants])
    return np.asarray(np.choose(apart.argmin(axis=0)[..., None], wants))


@dataclass(frozen=True)
class Family:
    """How the kernels of a family are checked."""

    sample: Callable[..., Sample]  # of a configuration, a generator and about how many rows
    expect: Callable[[Any, Sample], Iterable[Expected]]


def _query(config: Query, sample: Sample) -> Iterable[Expected]:
    given, live = sample.arrays, sample.live
    want = reference.query(
        given["qkv"][live],
        **{name: given[name] for name in ("w_qa", "w_kva", "w_qb", "w_uk")},
        q_scale_inv=float(given["q_scale_inv"][0]),
        k_scale=float(given["k_scale" if config.dsa else "k_scale_inv"][0]),
        eps=sample.scalars["eps"],
        dsa=config.dsa,
        fp8=config.fp8,
        nvfp4=config.nvfp4,
    )
    yield Expected("query", "out", (live,), want.query, judge.close)
    taken, where = _cells(sample, sample.extents["cache"][1])
    yield Expected("cache rows", "cache", where, want.rows[taken], judge.nearly_exact, kv_parts)
    if config.dsa and config.store_qc:
        yield Expected("q_c", "q_c", (live,), want.q_c, judge.nearly_exact)


def _cells(sample: Sample, page: int) -> tuple[NDArray[np.bool_], tuple[Bits, Bits]]:
    """Which of the live rows have a slot, and the page and the place in it of those."""
    slots = sample.arrays["slots"][sample.live]
    taken = slots >= 0
    return taken, (slots[taken] // page, slots[taken] % page)


def _query_norm(config: QueryNorm, sample: Sample) -> Iterable[Expected]:
    qkv, w_qa = sample.arrays["qkv"][sample.live], sample.arrays["w_qa"]
    want = reference.query_norm(qkv, w_qa=w_qa, eps=sample.scalars["eps"])
    yield Expected("q_c", "q_c", (sample.live,), want, judge.nearly_exact)


def _gated(config: Value | Gate, sample: Sample, name: str, rule: Rule) -> Iterable[Expected]:
    """Rows by ``rule``, but those of empty requests exactly zero."""
    live, q = sample.live, config.q
    lengths, gates = sample.arrays["lengths"][live[::q] // q], sample.view("gate")[live]
    if isinstance(config, Value):
        latent, w_uv = sample.arrays["latent"][live], sample.arrays["w_uv"]
        want = reference.value(latent, w_uv, gates, lengths, q=q)
    else:
        want = reference.gate(sample.arrays["values"][:, live], gates, lengths, q=q)
    empty = np.repeat(lengths <= 0, q)
    yield Expected(name, "out", (live[~empty],), want[~empty], rule)
    yield Expected("empty requests", "out", (live[empty],), want[empty], judge.exact)


def _value(config: Value, sample: Sample) -> Iterable[Expected]:
    return _gated(config, sample, "value", judge.close)


def _gate(config: Gate, sample: Sample) -> Iterable[Expected]:
    return _gated(config, sample, "gate", judge.nearly_exact)


def _index_front(config: IndexFront, sample: Sample) -> Iterable[Expected]:
    """Another order of additions may move a largest magnitude by a step of BF16, and across the
    power of two that its scale depends on: then all that has this scale is another."""
    live = sample.live
    names = ("w_qa", "wq_b", "norm_w", "norm_b")
    given: dict[str, Any] = {**{n: sample.arrays[n] for n in names}, **sample.scalars}
    values = reference.front_values(sample.arrays["projected"][live], **given)
    wants = [
        reference.front_outputs(values, mx=config.mx, fp4=config.fp4, nudge=nudge)
        for nudge in (0, 1, -1)
    ]
    taken, cells = _cells(sample, KEY_PAGE)
    width = wants[0].keys.shape[-1]
    tokens, slotted = ((live,), slice(None), as_held), (cells, taken)
    keys, scales = key_bytes(0, width), key_bytes(KEY_PAGE * width, 4)
    codes = mxfp4_blocks if config.fp4 else whole
    single = singles if config.fp4 else whole
    listed: tuple[tuple[str, str, str, Rule, Parts, tuple[Any, ...]], ...] = (
        ("queries", "q_out", "q_out", judge.close, codes, tokens),
        ("head weights", "w_out", "w_out", judge.exact, singles, tokens),
        ("keys", "cache", "keys", judge.close, codes, (*slotted, keys)),
        ("key scales", "cache", "scales", judge.exact, single, (*slotted, scales)),
    )
    if config.fp4:
        listed += (("query scales", "q_scale", "q_scale", judge.exact, singles, tokens),)
    for name, array, field, rule, parts, (where, rows, view) in listed:
        want, *others = (getattr(each, field)[rows] for each in wants)
        yield Expected(name, array, where, want, rule, parts, view, tuple(others))


def key_bytes(start: int, width: int) -> Callable[[Bits], Bits]:
    """The view [pages, 64, width] of cache pages: ``width`` bytes a token, from ``start`` on."""

    def view(pages: Bits) -> Bits:
        flat = pages.reshape(len(pages), -1)[:, start : start + KEY_PAGE * width]
        return flat.reshape(len(pages), KEY_PAGE, width)

    return view


FAMILIES: dict[str, Family] = {
    "query": Family(samples.query, _query),
    "query_norm": Family(samples.query_norm, _query_norm),
    "value": Family(samples.value, _value),
    "gate": Family(samples.gate, _gate),
    "index_front": Family(samples.index_front, _index_front),
}


def kv_parts(rows: Bits) -> list[Bits]:
    """The parts of KV rows, each in a type of its own whose steps count."""
    rows = np.ascontiguousarray(rows)
    if rows.shape[-1] == 656:
        tail = np.ascontiguousarray(rows[:, 512:]).view(np.uint16)
        return [rows[:, :512], tail[:, 1:8:2], tail[:, 0:8:2], tail[:, 8:]]
    if rows.shape[-1] == 352:
        codes = np.concatenate((rows[:, :256] & 15, rows[:, :256] >> 4), axis=-1)
        return [_as_e4m3(codes), rows[:, 256:]]
    return [rows]


def mxfp4_blocks(packed: Bits) -> list[Bits]:
    """MXFP4 codes as rows of 32 that share a scale."""
    codes = np.stack((packed & 15, packed >> 4), axis=-1)
    return [_as_e4m3(codes.reshape(*packed.shape[:-1], packed.shape[-1] // 16, 32))]


def _as_e4m3(codes: Bits) -> Bits:
    """E2M1 codes as E4M3 bits in which neighbours stay neighbours."""
    return codes & 7 | (codes & 8) << 4


def singles(bits: Bits) -> list[Bits]:
    """Every value a row of its own."""
    return [bits[..., None]]
