"""What the shapes of Kimi K3's kind have in common: dimensions, and the words that mean "empty"."""

from __future__ import annotations

Q_LORA = 1536  # columns of q_a, the depth of Q_B
KV_LORA = 512  # columns of kv_a: the latent
NOPE, ROPE = 128, 64  # of a query head
HEAD_ROWS = NOPE + ROPE  # of Q_B, a head's
QUERY = KV_LORA + ROPE  # columns of an absorbed query, and of a KV row
PACKED = Q_LORA + KV_LORA + ROPE  # columns of a packed projection row that every model has
V = 128  # outputs of a head

INDEX_HEADS, INDEX_DIM = 32, 128  # of the DSA indexer
INDEX_PAGE = 64  # tokens of a page of its cache

QUERY_SENTINEL = 0xFFFFFFFF  # of a 32-bit word of a query mailbox or an LSE that has not come
PARTIAL_SENTINEL = 0x80000000  # of a row of partial attention
NO_SOURCE = -3.0e38  # LSE of a source without keys
