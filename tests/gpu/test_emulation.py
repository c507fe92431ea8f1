"""A GPU and the CPU run of the same kernels agree, on the same fresh inputs, in every schedule."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from kgen.codegen import schema
from kgen.codegen.bench import uncached
from kgen.codegen.emulator.kernel import Emulation
from kgen.codegen.errors import PlanError
from kgen.codegen.plan import Plan, Schedule, plan
from kgen.codegen.plan.index_front import VARIANTS, schedule_of
from kgen.codegen.plan.schedules import KPAIR, KSPLIT, ROWS
from kgen.codegen.runtime import nvml
from kgen.codegen.verify import cpu, families, gpu, outcome
from kgen.codegen.verify.expected import Expected
from kgen.codegen.verify.samples import Arrays

pytestmark = [pytest.mark.gpu, pytest.mark.cpu]

FORMS = ("", "-dsa", "-dsa-fp8", "-dsa-fp8-nvfp4", "-dsa-late")
QUERIES = (("query-h2-b11", ROWS), ("query-h1-b19", KPAIR), ("query-h1-b35", KSPLIT))
FRONTS = [f"index_front-b{batch}{form}" for batch in (9, 18) for form in ("", "-mx", "-fp4")]
OTHERS = (
    *(
        "query-h3-b1-scheme.rows",
        "query-h1-b6-q_b_cp_async",
        "query-h2-b11-scheme.rows-dsa-q_b_cp_async",
    ),
    *("query-h1-b40-dsa-no_store_qc-no_release", "query_norm-b5", "query_norm-b17-no_release"),
    *("query-h3-b5-scheme.folded", "query-h2-b3-scheme.folded-dsa-fp8"),
    *("query-h1-b16-scheme.wgmma", "query-h2-b35-scheme.wgmma"),
    *("value-h1-b1", "value-h3-b18-q3", "gate-h3-b5", "gate-h2-b20-q4"),
)

Case = tuple[str, Schedule | None]


def cases() -> Iterator[Case]:
    """Slugs, each with a schedule or None for the plan's."""
    for shape, schedule in QUERIES:
        yield from ((shape + form, schedule) for form in FORMS)
    for slug in FRONTS:
        batch = int(slug.split("-")[1][1:])
        yield from ((slug, schedule_of(scheme, batch)) for scheme in VARIANTS)
    yield from ((slug, None) for slug in OTHERS)


CASES = {f"{slug} {uncached.name(s) if s else ''}".strip(): (slug, s) for slug, s in cases()}


def planned(slug: str, schedule: Schedule | None) -> Plan:
    try:
        return plan(schema.parse_slug(slug), nvml.default_arch(), schedule)
    except PlanError as error:
        pytest.skip(str(error))


def of_the_cpu(expectations: Iterable[Expected], held: Arrays) -> Iterator[Expected]:
    """The same with what the CPU gave in the place of the reference. Where other roundings lead to
    other rows (``others``), the reference's remain allowed."""
    for each in expectations:
        want = np.ascontiguousarray(each.view(held[each.array])[each.index])
        yield replace(each, want=want, others=(each.want, *each.others) if each.others else ())


@pytest.mark.parametrize("name", CASES)
def test_gpu_and_cpu_agree(name: str) -> None:
    """By the rules that judge either; neither writes anything else."""
    made, seed = planned(*CASES[name]), zlib.crc32(name.encode())
    family = families.of(made.config.kernel)
    sample = family.sample(made.config, np.random.default_rng(seed), cpu.ROWS)
    on_gpu = gpu.run(uncached.kernel(made), sample)
    on_cpu = cpu.run(Emulation(made), sample, seed)
    expectations = list(family.expect(made, sample))
    for verdicts in (
        outcome.check(made, expectations, on_cpu),
        outcome.check(made, of_the_cpu(expectations, on_cpu), on_gpu),
    ):
        print(name, *(f"\n  {output}: {verdict}" for output, verdict in verdicts.items()))
        assert all(verdict.right for verdict in verdicts.values()), verdicts


def test_every_family_form_and_schedule_is_here() -> None:
    plans = [plan(schema.parse_slug(slug), schedule=schedule) for slug, schedule in CASES.values()]
    assert {made.config.kernel for made in plans} == {*schema.KERNELS}
    for kernel, schedules, forms in (("query", 3, 6), ("index_front", 2, 3)):
        mine = [made for made in plans if made.config.kernel == kernel]
        switches = ("dsa", "fp8", "nvfp4", "late", "mx", "fp4")
        found = {
            (made.scheme, made.k_splits, *(getattr(made.config, name, False) for name in switches))
            for made in mine
        }
        assert len(found) == schedules * forms
