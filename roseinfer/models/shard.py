"""The part of a model that a rank has under tensor parallelism (Megatron-LM, Shoeybi et al., 2019)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from roseinfer.config import ConfigError
from roseinfer.models.config import LlamaConfig, ModelConfig

AnyConfig = TypeVar("AnyConfig", bound=ModelConfig)


@dataclass(frozen=True)
class Cut:
    """The part of a tensor: along dimension `dim`, `size` long, the `ranges` (start, end)."""

    dim: int
    size: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `ranks`: a share of the heads, of the MLP and of the vocabulary.

    Linear layers that produce these are split by outputs (column-parallel), those that read them by inputs
    (row-parallel): the sum of all ranks' results is the layer's. Norms and positions are replicated.
    """

    rank: int
    ranks: int
    #: Rank 0 alone looks up embeddings, and has the whole table of them.
    first_embeds: bool = False

    def config(self, whole: AnyConfig) -> AnyConfig:
        """The shape of this shard of the model `whole`; `vocab_size` stays the whole model's.

        With fewer KV heads than ranks, neighbouring ranks have the same one.

        Raises:
            ConfigError: the model does not divide into so many shards.
        """
        ranks, kv = self.ranks, whole.kv_heads
        if whole.heads % ranks or whole.ffn_width % ranks or (kv % ranks and ranks % kv):
            raise ConfigError(
                f"--tensor-parallel-size {ranks} does not divide the model's {whole.heads} heads, {kv} heads "
                f"of keys and values and {whole.ffn_width} elements of the MLP evenly; give another"
            )
        part = replace(
            whole,
            heads=whole.heads // ranks,
            kv_heads=max(1, kv // ranks),
            ffn_width=whole.ffn_width // ranks,
        )
        if not (isinstance(part, LlamaConfig) and part.mixture):
            return part
        if part.mixture.ffn_width % ranks:
            raise ConfigError(
                f"--tensor-parallel-size {ranks} does not divide the {part.mixture.ffn_width} elements of "
                "each expert evenly; give another"
            )
        mixture = replace(part.mixture, ffn_width=part.mixture.ffn_width // ranks)
        return replace(part, mixture=mixture)

    def vocabulary_share(self, size: int) -> int:
        """Number of tokens of the vocabulary that a rank has at most; the last ranks may have fewer."""
        return -(-size // self.ranks)

    def vocabulary(self, size: int) -> tuple[int, int]:
        """This rank's range (start, end) of the vocabulary; those of the last ranks may be shorter."""
        share = self.vocabulary_share(size)
        return min(self.rank * share, size), min((self.rank + 1) * share, size)

    def cuts(self, whole: ModelConfig) -> Mapping[str, Cut]:
        """The cuts by patterns of tensors' names. A tensor that matches none is replicated."""
        dim = whole.head_dim
        heads, ffn = self._share(whole.heads, dim), self._share(whole.ffn_width)
        q, f = whole.heads * dim, whole.ffn_width
        rows = Cut(0, whole.vocab_size, (self.vocabulary(whole.vocab_size),))
        if whole.family == "gpt2":  # weights are [in, out]
            qkv = tuple((part * q + heads[0], part * q + heads[1]) for part in range(3))
            return {
                r"(wte|lm_head)\.weight": rows,
                r"attn\.c_attn\.weight": Cut(1, 3 * q, qkv),
                r"attn\.c_attn\.bias": Cut(0, 3 * q, qkv),
                r"attn\.c_proj\.weight": Cut(0, q, (heads,)),
                r"mlp\.c_fc\.weight": Cut(1, f, (ffn,)),
                r"mlp\.c_fc\.bias": Cut(0, f, (ffn,)),
                r"mlp\.c_proj\.weight": Cut(0, f, (ffn,)),
            }
        kv = Cut(0, whole.kv_heads * dim, (self._share(whole.kv_heads, dim),))
        experts = {}
        if isinstance(whole, LlamaConfig) and whole.mixture is not None:
            e = whole.mixture.ffn_width
            start, end = self._share(e)
            experts = {
                r"experts\.\d+\.(gate|up)_proj\.weight": Cut(0, e, ((start, end),)),
                r"experts\.\d+\.down_proj\.weight": Cut(1, e, ((start, end),)),
                r"experts\.gate_up_proj": Cut(1, 2 * e, ((start, end), (e + start, e + end))),
                r"experts\.down_proj": Cut(2, e, ((start, end),)),
            }
        return {
            **experts,
            **self._table(rows, tied=whole.tied_head),
            r"lm_head\.weight": rows,
            r"q_proj\.(weight|bias)": Cut(0, q, (heads,)),
            r"[kv]_proj\.(weight|bias)": kv,
            r"o_proj\.weight": Cut(1, q, (heads,)),
            r"(gate|up)_proj\.(weight|bias)": Cut(0, f, (ffn,)),
            r"down_proj\.weight": Cut(1, f, (ffn,)),
        }

    def _table(self, rows: Cut, *, tied: bool) -> Mapping[str, Cut]:
        """The cut of the embedding table, which is the LM head's weight too where they are `tied`."""
        if self.first_embeds and self.rank == 0:
            return {}
        if self.first_embeds and not tied:
            rows = replace(rows, ranges=((0, 0),))
        return {r"embed_tokens\.weight": rows}

    def cut(self, name: str, whole: ModelConfig) -> Cut | None:
        """This rank's cut of the tensor `name`; None: all of it."""
        cuts = (cut for pattern, cut in self.cuts(whole).items() if re.search(rf"{pattern}$", name))
        return next(cuts, None)

    def silent(self, name: str) -> bool:
        """Return whether the tensor `name` is a bias that rank 0 alone adds to the sum, and this is another
        rank."""
        return self.rank > 0 and re.search(r"(o_proj|down_proj|c_proj)\.bias$", name) is not None

    def _share(self, parts: int, size: int = 1) -> tuple[int, int]:
        """This rank's range (start, end) of `parts` of `size` elements each; with fewer parts than ranks, one
        part."""
        if parts < self.ranks:
            first = self.rank * parts // self.ranks
            return first * size, (first + 1) * size
        share = parts // self.ranks * size
        return self.rank * share, (self.rank + 1) * share
