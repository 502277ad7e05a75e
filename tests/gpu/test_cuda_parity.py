"""roseinfer on a GPU against transformers in float32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from roseinfer.config import Dtype, EngineConfig, PrefillBackend
from roseinfer.llm import LLM
from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import SamplingParams

from .conftest import VOCAB, greedy, make_gpt2, reference
from .schedules import MARGINS, check_greedy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gpt2(tmp_path_factory.mktemp("gpt2"), layers=3, width=128, heads=4)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    lengths = [1, 2, 15, 16, 17, 900, *rng.integers(1, 900, 50)]
    return [rng.integers(0, VOCAB, length).tolist() for length in lengths]


@pytest.mark.parametrize(
    ("dtype", "backend"),
    [
        ("fp32", None),
        ("fp16", None),
        ("bf16", None),
        ("fp16", "flash-attn"),
        ("bf16", "auto"),
        ("fp32", "sdpa"),
    ],
)
def test_greedy_tokens(folder: Path, dtype: Dtype, backend: PrefillBackend | None) -> None:
    """The same tokens, or one that is nearly as likely where they first differ.

    Nearly: see `check_greedy`, by 0.01 % (fp32), 2 % (fp16) or 8 % (bf16).
    """
    llm = LLM(EngineConfig(str(folder), device="cuda", dtype=dtype, prefill_backend=backend))
    cases = prompts()
    outputs = llm.generate(cases, SamplingParams(max_tokens=16, ignore_eos=True))
    llm.engine.check_idle()
    for prompt, tokens in zip(cases, outputs, strict=True):
        assert len(tokens) == 16
        check_greedy(tokens, *greedy(folder, prompt, 16), MARGINS[dtype])


@pytest.mark.parametrize("cuda_graph", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_penalties(folder: Path, cuda_graph: bool, overlap: bool) -> None:
    """Two of three requests have some: each of their tokens is the likeliest after the penalties, up to the
    margin above, also where the host has not seen the token before; the others' tokens are as without."""
    llm = LLM(
        EngineConfig(
            str(folder), device="cuda", dtype="fp32", cuda_graph=cuda_graph, overlap_schedule=overlap
        )
    )
    cases = prompts()
    plain = [SamplingParams(16, ignore_eos=True) for _ in cases]
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 1.5, "frequency_penalty": 0.7}
    asked = [
        msgspec.structs.replace(params, **penalties, logit_bias=((7, 5.0),)) if i % 3 else params
        for i, params in enumerate(plain)
    ]
    outputs, without = llm.generate(cases, asked), llm.generate(cases, plain)
    llm.engine.check_idle()
    assert outputs[::3] == without[::3] and outputs != without
    model = reference(folder)
    for case, params, made in zip(cases, asked, outputs, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([case + made])).logits[0, len(case) - 1 : -1].float()
        for place, token in enumerate(made if params.adjusts else ()):
            row, seen = logits[place].clone(), torch.tensor(sorted({*case, *made[:place]}))
            row[7] += 5
            row[seen] = torch.where(row[seen] > 0, row[seen] / 1.3, row[seen] * 1.3)
            counts = torch.bincount(torch.tensor(made[:place], dtype=torch.int64), minlength=len(row))
            row -= 0.7 * counts + 1.5 * (counts > 0)
            assert row.max() - row[token] <= 4 * MARGINS["fp32"] * (row.max() - row.min())


@pytest.mark.parametrize(("dtype", "cuda_graph"), [("fp32", True), ("fp32", False), ("fp16", True)])
def test_logprobs(folder: Path, dtype: Dtype, cuda_graph: bool) -> None:
    """The log-softmax of the reference's logits, each of which may be off by the margin above; two of three
    requests ask, half of them are sampled, and the batch shrinks to one. Who asks changes no token."""
    llm = LLM(EngineConfig(str(folder), device="cuda", dtype=dtype, cuda_graph=cuda_graph))
    cases, engine = prompts(), llm.engine
    silent = [
        SamplingParams(2 + i % 15, temperature=0.8 * (i % 2), seed=i, ignore_eos=True)
        for i in range(len(cases))
    ]
    expected = llm.generate(cases, silent)
    tokens: list[list[int]] = [[] for _ in cases]
    reported: list[list[TokenLogprobs]] = [[] for _ in cases]
    for i, (case, params) in enumerate(zip(cases, silent, strict=True)):
        asking = msgspec.structs.replace(params, logprobs=(None, 0, 5)[i % 3])
        engine.add(i, np.array(case, dtype=np.int32), asking)
    while (step := engine.step()) is not None:
        for i, token in zip(step.ids.tolist(), step.tokens.tolist(), strict=True):
            tokens[i].append(token)
        for i, logprobs in step.logprobs.of_requests() if step.logprobs is not None else ():
            reported[i].append(logprobs)
    assert tokens == expected
    model = reference(folder)
    for i, (case, taken) in enumerate(zip(cases, tokens, strict=True)):
        assert [logprobs.tokens[0] for logprobs in reported[i]] == (taken if i % 3 else [])
        if i % 3:
            with torch.inference_mode():
                logits = model(torch.tensor([case + taken])).logits[0, len(case) - 1 : -1].double()
            bound = 2 * MARGINS[dtype] * (logits.max(-1).values - logits.min(-1).values).max()
            wanted = logits.log_softmax(-1)
            for row, logprobs in zip(wanted, reported[i], strict=True):
                values = torch.tensor(logprobs.values, dtype=torch.float64)
                right = torch.cat((row[logprobs.tokens], row.topk(len(values) - 1).values))
                assert (torch.cat((values, values[1:])) - right).abs().max() <= bound
