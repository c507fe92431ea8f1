"""One MLA decode layer with kgen's kernels in PyTorch, compared with an unfused float32 layer.

    python examples/decode_layer.py [--heads 8] [--batch 6]

The steps: a packed projection of the hidden state, ``kgen.query`` (which also writes this token's
row to the paged FP8 cache), attention over the cache in plain PyTorch, ``kgen.value`` with the
sigmoid gate, and the output projection. Requests have ragged lengths, over several pages in any
order; one is empty. Prints the error and both times.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

try:
    import torch
except ImportError:  # --help works all the same
    torch = None

HIDDEN, PAGE, LONGEST = 1024, 64, 200
LORA, LATENT, NOPE, ROPE, OUT = 1536, 512, 128, 64, 128
EPS = 1e-6
K_SCALE = 1 / 16  # a value of the cache is its E4M3 times this
Q_SCALE = 1 / 8
TOLERANCE = 0.08  # of the outputs' root mean square: what FP8 and BF16 cost

Tensor = Any
Layer = Callable[["Weights", "State"], Tensor]


@dataclass(frozen=True)
class Weights:
    """Weights of the layer, BF16: ``w_in`` makes the packed row [q_a, kv_a, k_pe, gate]."""

    w_in: Tensor  # [2112 + H*128, hidden]
    w_qa: Tensor  # [1536]
    w_kva: Tensor  # [512]
    w_qb: Tensor  # [H*192, 1536]
    w_uk: Tensor  # [H, 128, 512]
    w_uv: Tensor  # [H, 128, 512]
    w_out: Tensor  # [hidden, H*128]

    @property
    def heads(self) -> int:
        return int(self.w_uk.shape[0])


@dataclass(frozen=True)
class State:
    """A step's inputs: ``hidden`` [B, hidden]; the cache [pages, 64, 576] E4M3; the pages of each
    request [B, pages a request]; the tokens of each, this one included, 0 where it is empty."""

    hidden: Tensor
    cache: Tensor
    pages: Tensor
    lengths: Tensor

    @property
    def slots(self) -> Tensor:
        """The cache row of each request's newest token; -1 where it is empty."""
        last = (self.lengths.long() - 1).clamp(min=0)
        page = self.pages.gather(1, (last // PAGE)[:, None])[:, 0]
        return torch.where(self.lengths > 0, page * PAGE + last % PAGE, -1)


def random_weights(heads: int, device: str) -> Weights:
    """Weights that keep values near 1."""

    def noise(*shape: int, mean: float = 0.0, scale: float | None = None) -> Tensor:
        values = torch.randn(*shape, device=device) * (scale or shape[-1] ** -0.5) + mean
        return values.bfloat16()

    return Weights(
        w_in=noise(LORA + LATENT + ROPE + heads * OUT, HIDDEN),
        w_qa=noise(LORA, mean=1, scale=0.1),
        w_kva=noise(LATENT, mean=1, scale=0.1),
        w_qb=noise(heads * (NOPE + ROPE), LORA),
        w_uk=noise(heads, NOPE, LATENT, scale=NOPE**-0.5),
        w_uv=noise(heads, OUT, LATENT),
        w_out=noise(HIDDEN, heads * OUT),
    )


def random_state(batch: int, device: str) -> State:
    """Ragged requests whose pages are dealt in random order; the last one is empty."""
    lengths = torch.randint(1, LONGEST + 1, (batch,), device=device, dtype=torch.int32)
    lengths[0], lengths[1] = LONGEST, 1  # several pages; nothing but the newest token
    lengths[-1] = 0
    each = math.ceil(LONGEST / PAGE)
    pages = torch.randperm(batch * each, device=device).view(batch, each)
    old = torch.randn(batch * each, PAGE, LATENT + ROPE, device=device) / K_SCALE
    cache = old.clamp(-448, 448).to(torch.float8_e4m3fn)
    return State(torch.randn(batch, HIDDEN, device=device).bfloat16(), cache, pages, lengths)


def attention(query: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
    """The latent [B, H, 512] float32 of ``query`` [B, H, 576] over ``rows`` [B, tokens, 576]; zero
    where a request is empty."""
    scores = torch.einsum("bhd,btd->bht", query, rows) / math.sqrt(NOPE + ROPE)
    seen = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
    scores = scores.masked_fill(~seen[:, None], -math.inf)
    weights = scores.softmax(-1).nan_to_num()  # an empty request has no largest score
    return torch.einsum("bht,btd->bhd", weights, rows[..., :LATENT])


def cached_rows(state: State) -> Tensor:
    """Every request's cache rows in order, [B, tokens, 576] float32."""
    return state.cache[state.pages].flatten(1, 2).float() * K_SCALE


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def unfused(weights: Weights, state: State) -> Tensor:
    """The layer in float32, step by step; the older tokens come from the same FP8 cache."""
    w = Weights(**{name: value.float() for name, value in vars(weights).items()})
    heads = w.heads
    row = state.hidden.float() @ w.w_in.T
    q_a, kv_a, k_pe, gate = row.split([LORA, LATENT, ROPE, heads * OUT], dim=-1)
    q = (rms_norm(q_a, w.w_qa) @ w.w_qb.T).view(-1, heads, NOPE + ROPE)
    latent = torch.einsum("bhn,hnc->bhc", q[..., :NOPE], w.w_uk)
    query = torch.cat((latent, q[..., NOPE:]), dim=-1)
    rows, live = cached_rows(state), state.lengths > 0
    newest = torch.cat((rms_norm(kv_a, w.w_kva), k_pe), dim=-1)
    rows[live, state.lengths[live].long() - 1] = newest[live]
    value = torch.einsum("bhc,hvc->bhv", attention(query, rows, state.lengths), w.w_uv)
    gated = value.flatten(1) * torch.sigmoid(gate) * live[:, None]
    return gated @ w.w_out.T


def fused(weights: Weights, batch: int) -> Layer:
    """The layer with kgen's kernels, which are built here."""
    import kgen

    heads = weights.heads
    query_kernel = kgen.query(heads=heads, batch=batch)
    value_kernel = kgen.value(heads=heads, batch=batch)
    device = weights.w_in.device
    q_scale_inv = torch.tensor([1 / Q_SCALE], device=device)
    k_scale_inv = torch.tensor([1 / K_SCALE], device=device)

    def layer(w: Weights, state: State) -> Tensor:
        packed = state.hidden @ w.w_in.T
        query = query_kernel(
            packed,
            **{name: getattr(w, name) for name in ("w_qa", "w_kva", "w_qb", "w_uk")},
            cache=state.cache,
            slots=state.slots,
            q_scale_inv=q_scale_inv,
            k_scale_inv=k_scale_inv,
            eps=EPS,
        )
        latent = attention(query.float() * Q_SCALE, cached_rows(state), state.lengths)
        value = value_kernel(
            latent.bfloat16(),
            w_uv=w.w_uv,
            gate=packed[:, LORA + LATENT + ROPE :],
            lengths=state.lengths,
        )
        return value @ w.w_out.T

    return layer


def microseconds(layer: Layer, weights: Weights, state: State, rounds: int = 20) -> float:
    """The median wall time of a layer that is waited for."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        layer(weights, state)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[rounds // 4 :]) * 1e6


def relative_error(got: Tensor, want: Tensor) -> float:
    """The root mean square of the difference, in that of what is wanted."""
    return float((got.float() - want).square().mean().sqrt() / want.square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=6, help="requests, one token each; 2 or more")
    args = parser.parse_args()
    if args.batch < 2:
        parser.error("--batch: one request is empty, so there are 2 or more")
    if torch is None:
        sys.exit("this example needs PyTorch: pip install 'kgen-mla[torch]'")
    if not torch.cuda.is_available():
        sys.exit("this example needs a GPU: PyTorch sees none")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    weights, state = random_weights(args.heads, "cuda"), random_state(args.batch, "cuda")
    layer = fused(weights, args.batch)
    want = unfused(weights, replace(state, cache=state.cache.clone()))
    got = layer(weights, state)
    error, empty = relative_error(got, want), state.lengths == 0
    print(f"{args.heads} heads, {args.batch} requests of {state.lengths.tolist()} tokens")
    print(f"error     {error:.4f} of the root mean square (allowed: {TOLERANCE})")
    print(f"fused     {microseconds(layer, weights, state):8.1f} µs a layer, attention included")
    print(f"unfused   {microseconds(unfused, weights, state):8.1f} µs a layer, float32")
    if not error <= TOLERANCE or got[empty].any():
        sys.exit("the layers differ")


if __name__ == "__main__":
    main()
