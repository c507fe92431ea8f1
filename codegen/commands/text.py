"""Plans, builds and tables as people and programs read them: text, JSON-ready dicts, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..tables import markdown

if TYPE_CHECKING:
    from ..build import Artifact
    from ..cache.store import Entry
    from ..inspection.doctor import Finding
    from ..plan import Plan


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as JSON says it: sizes in bytes, times in seconds."""
    return {
        "slug": plan.config.slug,
        "config": plan.config.model_dump(),
        "arch": plan.target.name,
        "scheme": plan.scheme,
        "template": plan.template,
        "code": plan.code,
        "entry": plan.entry,
        "grid": list(plan.grid),
        "cluster": plan.cluster,
        "threads": plan.threads,
        "tokens": plan.tokens,
        "k_splits": plan.k_splits,
        "ctas_per_sm": plan.ctas_per_sm,
        "smem": [asdict(region) for region in plan.smem],
        "smem_bytes": plan.smem_bytes,
        "smem_limit": plan.target.smem_per_block,
        "polling": plan.polling,
        "work": asdict(plan.work),
    }


def plan_text(plan: Plan) -> str:
    """A plan for people."""
    rows = [
        ("scheme", f"{plan.scheme}, K split {plan.k_splits} ways ({plan.template})"),
        ("entry", plan.entry),
        ("grid", f"{' x '.join(map(str, plan.grid))} CTAs of {plan.threads} threads"),
        ("cluster", f"{plan.cluster} CTAs"),
        ("tokens", f"{plan.tokens} a CTA"),
        ("CTAs per SM", str(plan.ctas_per_sm)),
        ("must move", f"{plan.work.bytes:,} bytes, {plan.work.flops:,} FLOPs"),
        ("floor", f"{_floor(plan):.2f} µs"),
    ]
    if plan.polling:
        rows.append(("polls", _polls(plan)))
    head = f"{plan.config.slug} for {plan.target.name}"
    body = [f"  {label:<12} {text}" for label, text in rows]
    return "\n".join((head, *body, "  shared memory", *_smem_lines(plan)))


def _polls(plan: Plan) -> str:
    """What a polling kernel asks of a GPU."""
    shared = plan.polling * plan.grid[2]
    limit = getattr(plan.config, "watchdog", 0)
    never = f"it traps after {limit} ms" if limit else "it polls for ever"
    return (
        f"{plan.polling} clusters must run at once; {shared} a rank where ranks share a GPU, which"
        f" KGEN_RANKS_PER_GPU tells; loading decides. A rank that never comes: {never}"
    )


def step_lines(plans: Iterable[Plan]) -> Iterator[str]:
    """What each decode step whose kernels are among ``plans`` must move, and its floor."""
    listed = list(plans)
    for query in (plan for plan in listed if plan.config.kernel == "query"):
        step = [query, *(plan for plan in listed if _beside(plan, query))]
        kernels = [plan.config.kernel for plan in step]
        if len(set(kernels)) == len(kernels) > 1:
            names = " + ".join(plan.config.slug for plan in step)
            moved, floor = sum(plan.work.bytes for plan in step), _floor(*step)
            yield f"{names} for {query.target.name}: {moved:,} bytes, floor {floor:.2f} µs"


def _beside(plan: Plan, query: Plan) -> bool:
    """Whether ``plan`` is another kernel of the step that ``query`` is of."""
    if plan.config.kernel in ("query", "query_norm") or plan.target != query.target:
        return False
    theirs, ours = plan.config.model_dump(), query.config.model_dump()
    return all(theirs.get(name, ours[name]) == ours[name] for name in ("heads", "batch"))


def _floor(*plans: Plan) -> float:
    """Microseconds of all together."""
    return sum(plan.work.seconds for plan in plans) * 1e6


def _smem_lines(plan: Plan) -> Iterator[str]:
    width = max((len(region.name) for region in plan.smem), default=3)
    for region in plan.smem:
        line = f"{region.offset:>7,} {region.name:<{width}} {region.size:>8,}  {region.doc}"
        yield f"    {line}".rstrip()
    limit = plan.target.smem_per_block
    yield f"    {'sum':>7} {'':<{width}} {plan.smem_bytes:>8,}  of {limit:,} bytes a block"


def artifact_data(artifact: Artifact, path: Path | None) -> dict[str, Any]:
    """A built kernel as JSON says it."""
    return {
        "slug": artifact.plan.config.slug,
        "arch": artifact.plan.target.name,
        "code": artifact.plan.code,
        "origin": artifact.origin,
        "path": str(path) if path else None,
        "bytes": len(artifact.cubin.image),
        "seconds": round(artifact.seconds, 4),
        "key": artifact.key,
        "resources": asdict(artifact.cubin.resources),
    }


def artifact_line(data: Mapping[str, Any]) -> str:
    """A built kernel as one line: name, path, size, seconds."""
    path = data["path"] or "(in memory only)"
    name = f"{data['slug']} {data['arch']}"
    return f"{name}  {path}  {data['bytes']:,} bytes  {data['seconds']:.3f} s"


def entry_data(entry: Entry) -> dict[str, Any]:
    """A kernel of the cache as JSON says it."""
    return dict(entry.meta) | {"path": str(entry.path)}


def entry_row(entry: Entry) -> tuple[str, ...]:
    """A kernel of the cache as a row: name, target, size, path."""
    meta = entry.meta
    return str(meta["name"]), str(meta["arch"]), f"{len(entry.image):,} bytes", str(entry.path)


def findings_text(findings: Iterable[Finding]) -> str:
    """The doctor's findings for people."""
    return "\n".join(line for finding in findings for line in _finding_lines(finding))


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.name}: {finding.state}{': ' if finding.error else ''}{finding.error}"
    for label, value in finding.details.items():
        shown = (
            ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        yield f"  {label:<20} {shown}"


def schema_tables() -> str:
    """Options and legal combinations of every kernel family, in Markdown."""
    from .. import schema
    from ..schema import combinations

    header = ("Option", "Allowed", "Default", "Meaning")
    parts: list[str] = []
    for kernel, model in schema.KERNELS.items():
        rows = ((f"`{flag}`", *rest) for flag, *rest in schema.table(model))
        parts += [f"**{kernel}**", markdown(header, rows), *combinations.summaries(model)]
    return "\n\n".join(parts)
