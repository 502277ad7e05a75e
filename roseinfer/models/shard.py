"""Which part of a model a rank has, where several processes share each layer (Shoeybi et al., 2019)."""

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
    """What is taken of a tensor: along the dimension `dim`, `size` long, the `ranges` from start to end."""

    dim: int
    size: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `ranks`: a share of the heads, of the MLP and of the vocabulary.

    Products that make these are cut by their outputs, those that read them by their inputs: the sum of all
    ranks' results is the layer's. Norms and positions are whole on every rank.
    """

    rank: int
    ranks: int
    #: Rank 0 alone looks up embeddings, and has the whole table of them.
    first_embeds: bool = False

    def config(self, whole: AnyConfig) -> AnyConfig:
        """The shape of this part of a model; its vocabulary is the whole one's.

        With fewer heads of keys and values than ranks, neighbouring ranks have the same one.

        Raises:
            ConfigError: the model does not divide into so many parts.
        """
        ranks, kv = self.ranks, whole.kv_heads
        if whole.heads % ranks or whole.ffn_width % ranks or (kv % ranks and ranks % kv):
            raise ConfigError(
                f"tensor_parallel_size {ranks} does not divide the model's {whole.heads} heads, {kv} heads "
                f"of keys and values and {whole.ffn_width} elements of the MLP evenly; give another"
            )
        return replace(
            whole,
            heads=whole.heads // ranks,
            kv_heads=max(1, kv // ranks),
            ffn_width=whole.ffn_width // ranks,
        )

    def vocabulary_share(self, size: int) -> int:
        """How many tokens every rank has, but for the last, which may have fewer."""
        return -(-size // self.ranks)

    def vocabulary(self, size: int) -> tuple[int, int]:
        """The tokens that this rank has, from the first to the one after the last; the last rank may have
        fewer."""
        share = self.vocabulary_share(size)
        return min(self.rank * share, size), min((self.rank + 1) * share, size)

    def cuts(self, whole: ModelConfig) -> Mapping[str, Cut]:
        """By patterns of tensors' names. What matches none is not cut."""
        dim = whole.head_dim
        heads, ffn = self._share(whole.heads, dim), self._share(whole.ffn_width)
        q, f = whole.heads * dim, whole.ffn_width
        rows = Cut(0, whole.vocab_size, (self.vocabulary(whole.vocab_size),))
        if whole.family == "gpt2":  # weights are [in, out]
            qkv = tuple((part * q + heads[0], part * q + heads[1]) for part in range(3))
            return {
                r"wte\.weight": rows,
                r"attn\.c_attn\.weight": Cut(1, 3 * q, qkv),
                r"attn\.c_attn\.bias": Cut(0, 3 * q, qkv),
                r"attn\.c_proj\.weight": Cut(0, q, (heads,)),
                r"mlp\.c_fc\.weight": Cut(1, f, (ffn,)),
                r"mlp\.c_fc\.bias": Cut(0, f, (ffn,)),
                r"mlp\.c_proj\.weight": Cut(0, f, (ffn,)),
            }
        kv = Cut(0, whole.kv_heads * dim, (self._share(whole.kv_heads, dim),))
        return {
            **self._table(rows, tied=isinstance(whole, LlamaConfig) and whole.tied_head),
            r"lm_head\.weight": rows,
            r"q_proj\.(weight|bias)": Cut(0, q, (heads,)),
            r"[kv]_proj\.(weight|bias)": kv,
            r"o_proj\.weight": Cut(1, q, (heads,)),
            r"(gate|up)_proj\.(weight|bias)": Cut(0, f, (ffn,)),
            r"down_proj\.weight": Cut(1, f, (ffn,)),
        }

    def _table(self, rows: Cut, *, tied: bool) -> Mapping[str, Cut]:
        """How the embeddings are cut, with which logits are made too where these are `tied`."""
        if self.first_embeds and self.rank == 0:
            return {}
        if self.first_embeds and not tied:
            rows = replace(rows, ranges=((0, 0),))
        return {r"embed_tokens\.weight": rows}

    def cut(self, name: str, whole: ModelConfig) -> Cut | None:
        """What this rank takes of the tensor `name`; None: all of it."""
        found = (cut for pattern, cut in self.cuts(whole).items() if re.search(rf"{pattern}$", name))
        return next(found, None)

    def silent(self, name: str) -> bool:
        """Whether the tensor `name` is added once to the sum of all ranks, and another rank does so."""
        return self.rank > 0 and re.search(r"(o_proj|down_proj|c_proj)\.bias$", name) is not None

    def _share(self, parts: int, size: int = 1) -> tuple[int, int]:
        """Of `parts` of `size` elements each; of fewer parts than ranks one."""
        if parts < self.ranks:
            first = self.rank * parts // self.ranks
            return first * size, (first + 1) * size
        share = parts // self.ranks * size
        return self.rank * share, (self.rank + 1) * share
