"""The runner of a GPU without one: graphs run by hand, kernels in the interpreter; and two ranks.

A graph is what it records, run again: it reads and writes the same memory. As graphs share theirs, those that
are not run lose what they left.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.qwen3_5_moe import Qwen3_5MoeTextConfig

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.attention import cuda_paged, prefill_backends
from roseinfer.attention.cuda_paged import CudaPagedAttention, Decodes
from roseinfer.batch import Batch, Ints
from roseinfer.config import EngineConfig
from roseinfer.engine import choose, core, cuda, drafts
from roseinfer.engine.core import Engine
from roseinfer.engine.cuda import CudaRunner
from roseinfer.engine.graphs import GraphSizes, MixedSteps
from roseinfer.engine.load import LoadedModel
from roseinfer.engine.ranks.cuda_runner import ParallelCudaRunner
from roseinfer.engine.ranks.group import step_sizes
from roseinfer.engine.ranks.messages import StepLimits
from roseinfer.engine.ranks.step_memory import StepMemory, StepSizes
from roseinfer.info import RunnerInfo
from roseinfer.kernels.triton import rms_norm
from roseinfer.kernels.triton.rotate import rotate_
from roseinfer.kvcache.pool import KVPool
from roseinfer.models import load
from roseinfer.models.cuda_ranks import CudaRanks
from roseinfer.models.hybrid_cuda import CudaHybrid
from roseinfer.models.model import Model
from roseinfer.models.ranks import Ranks
from roseinfer.models.shard import Shard
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.speculation import Account
from tests.roseinfer.conftest import config_of, generate, make_gpt2, runner_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs it on the GPU"),
]

CPU = torch.device("cpu")
#: Of few graphs: small prompts, few requests.
SIZES = GraphSizes((6, 12), (2, 3), {2: 4, 4: 4}, (2, 4), 12, most_prompts=3, decode=lambda most: (1, most))


class Event:
    """An event that has come: what was launched has ended."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Graph:
    """A step that is run by each replay, which takes their logits from the other graphs of `pool`."""

    def __init__(self, step: Callable[[], Tensor], pool: list[Graph]) -> None:
        self._step, self._pool, self.logits = step, pool, torch.empty(0)

    @property
    def graph(self) -> Graph:
        return self

    def replay(self) -> None:
        for other in self._pool:
            other.logits.fill_(torch.nan)
        self.logits = self._step()


class Recorder(list[Graph]):
    def __call__(self, step: Callable[[], Tensor]) -> Graph:
        self.append(Graph(step, self))
        return self[-1]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CudaRunner on a CPU, with few graphs: small prompts, few requests."""
    monkeypatch.setattr(cuda, "fetch", torch.clone)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for name in ("kernels.triton.delta_prompts", "models.hybrid_cuda"):
        monkeypatch.setattr(f"roseinfer.{name}.CHUNK", 16)

    monkeypatch.setattr(cuda, "Recorder", Recorder)


def runner(model: Model, pool: KVPool, config: EngineConfig, limits: StepLimits, group: Any) -> CudaRunner:
    gathered = None  # Triton's kernel stands for one that takes them so
    if config.prefill_backend == "flash-attn-3":
        gathered = torch.full((2, 20, pool.shape.kv_heads, pool.shape.head_dim), torch.nan)
    parts: list[Any] = [model, CudaPagedAttention(pool, prefill_backends.triton_prefill, gathered), pool]
    settings: dict[str, Any] = {
        "capacity": config.max_active_requests,
        "max_blocks": -(-limits.max_model_len // config.block_size),
        "max_batch": limits.max_batch_size,
        "max_prompt_tokens": max(limits.prefill_max_tokens, limits.max_model_len),
        "pinned": False,
        "parts": {},
        "sizes": SIZES,
    }
    kind = CudaRunner if group is None else partial(ParallelCudaRunner, group)
    cuda_runner = kind(*parts, **settings)
    cut = config.chunked_prefill_size is not None
    mixed = MixedSteps(12, cut) if config.mixed_steps else MixedSteps()
    verifies = config.speculate is not None
    cuda_runner.capture(prompts=True, mixed=mixed, verifies=verifies)
    mixed_graphs = 0 if not config.mixed_steps else 4 if cut else 2
    assert len(cuda_runner.mixed_graphs) == mixed_graphs + 2 * (verifies and model.mixes)
    return cuda_runner


def fused(folder: Path, settings: dict[str, Any], shard: Shard | None = None) -> LoadedModel:
    model = load.load(
        str(folder), CPU, torch.float32, packed=False, cpu_kernels=False, fused=True, shard=shard,
        quantization=settings.get("quantization"),
    )  # fmt: skip
    return LoadedModel(model, CPU, torch.float32, torch.float32)


#: What else a step may be is below.
SETTINGS: list[dict[str, Any]] = [
    {"mixed_steps": True, "chunked_prefill_size": 5, "prefix_cache": True},
    {"mixed_steps": True, "chunked_prefill_size": 5, "prefix_cache": True, "prefill_backend": "flash-attn-3"},
]


#: A third of the vocabulary.
ENDS = tuple(range(0, 192, 3))


def answers(engine: Engine) -> list[list[int]]:
    """Answers to prompts that begin alike and come one a step; the second is drawn, the third must not end at
    first."""
    vocab, rng = engine.info.limits.vocab_size, np.random.default_rng(3)
    shared = rng.integers(0, vocab, 5).tolist()
    requests = []
    for index, length in enumerate((2, 1, 7, 3)):
        params = SamplingParams(2 + index % 3, ignore_eos=True, temperature=float(index == 1), seed=7)
        if index == 2:
            params = msgspec.structs.replace(params, min_tokens=3, stop_token_ids=ENDS)
        requests.append(([*shared, *rng.integers(0, vocab, length).tolist()], params))
    generated = generate(engine, requests, interval=1)
    engine.flush_cache()
    engine.check_idle()
    return [answer.tokens for answer in generated]


Load = Callable[[EngineConfig], LoadedModel]


@pytest.fixture
def engine_of(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Open an engine with the runner of a GPU; `load` replaces the model of `folder`."""

    def make(folder: Path, settings: dict[str, Any], load: Load | None = None, ranks: int = 1) -> Engine:
        config = config_of(
            folder, block_size=4, kv_tokens=256, max_model_len=20, max_active_requests=4, max_batch_size=3,
            prefill_max_tokens=12, overlap_schedule=True, threads=1, tensor_parallel_size=ranks, **settings,
        )  # fmt: skip
        with monkeypatch.context() as patch:
            for module in (core, drafts):
                patch.setattr(module, "load_model", load or (lambda config: fused(folder, settings)))
                patch.setattr(module, "choose_runner", choose_runner)
            return Engine(config)

    return make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with biases, of which one rank adds its own alone, a head for logits, and an odd vocabulary."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=203, num_hidden_layers=1, hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
        initializer_range=0.4,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@cache
def plain_answers(folder: Path) -> list[list[int]]:
    """By operators of PyTorch, which other tests hold against transformers."""
    expected = answers(Engine(config_of(folder, cpu_kernels=False, threads=1, kv_tokens=512)))
    assert not {*expected[2][:3]} & {*ENDS}
    return expected


def choose_runner(
    config: Any, model: Any, pool: Any, dtype: Any, limits: Any, group: Any = None
) -> choose.Chosen:
    """Stands for the function of this name, which takes this runner on a GPU alone."""
    return choose.Chosen(runner(model, pool, config, limits, group), RunnerInfo("triton", "triton"))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_are_those_of_the_plain_runner(folder, settings, engine_of):
    assert answers(engine_of(folder, settings)) == plain_answers(folder)


def test_a_model_with_states(tmp_path, engine_of):
    """Only its decode steps have graphs. It is a mixture, too."""
    config = Qwen3_5MoeTextConfig(
        vocab_size=203, num_hidden_layers=2, hidden_size=32, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=24, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False, initializer_range=0.4,
        layer_types=["linear_attention", "full_attention"], linear_num_key_heads=1, linear_num_value_heads=2,
        linear_key_head_dim=16, linear_value_head_dim=12,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    engine = engine_of(tmp_path, {"chunked_prefill_size": 5})
    assert isinstance(runner_of(engine).model, CudaHybrid) and not runner_of(engine).prompt_graphs
    assert answers(engine) == plain_answers(tmp_path)


def test_every_graph_runs(folder, engine_of, monkeypatch):
    """Also those of sizes that no step above has; here of no request, so that what they give is undefined."""
    cuda_runner = runner_of(engine_of(folder, SETTINGS[0]))
    rotations: list[int] = []

    def rotated(qkv: Tensor, *arguments: Any) -> None:
        rotations.append(len(qkv))
        rotate_(qkv, *arguments)

    monkeypatch.setattr(cuda_paged, "rotate_", rotated)
    kinds = cuda_runner.prompt_graphs, cuda_runner.decode_graphs, cuda_runner.mixed_graphs
    graphs = [captured for kind in kinds for captured in kind.values()]
    assert len(graphs) == 8
    with torch.inference_mode():
        for captured in graphs:
            rotations.clear()
            captured.graph.replay()
            assert len(rotations) == 1


def test_steps_with_longer_contexts_have_graphs_of_their_own(folder, engine_of, monkeypatch):
    """The mean of the requests' tokens chooses the graph."""
    launched: list[tuple[int, float]] = []

    def decodes(table: Tensor, rows: Tensor, lengths: Tensor, context: int = 0) -> Decodes:
        if (lengths > 0).all():
            launched.append((context, lengths.double().mean().item()))
        return Decodes(table, rows, lengths, context)

    monkeypatch.setattr(cuda, "Decodes", decodes)
    monkeypatch.setattr(CudaPagedAttention, "contexts", lambda self, rows: (0, 9, 12, 99))
    engine = engine_of(folder, {"mixed_steps": False})
    launched.clear()
    assert answers(engine) == plain_answers(folder)
    assert {context for context, _ in launched} == {0, 9, 12}
    assert all(context == max(c for c in (0, 9, 12) if c <= mean) for context, mean in launched)


def test_prompts_and_decoding_one_after_the_other_in_a_step(engine_of, tmp_path):
    """GPT-2 takes them so: the prompts' logits are used before they are lost."""
    folder = make_gpt2(tmp_path, layers=1, width=32, heads=2, vocab=203)
    settings = {"mixed_steps": True}
    assert not fused(folder, settings).model.mixes
    assert answers(engine_of(folder, settings)) == plain_answers(folder)


@pytest.mark.parametrize("fused_kernels", [True, False])
def test_drafts_are_verified(engine_of, folder, tmp_path, monkeypatch, fused_kernels):
    """Answers of few tokens, which come again: drafts are right and wrong, in graphs and without."""
    monkeypatch.setattr(Account, "allows", lambda self, requests: True)
    monkeypatch.setattr(Account, "pays", lambda self, requests, drafted: drafted > 0)
    path = folder if fused_kernels else make_gpt2(tmp_path, layers=1, width=32, heads=2, vocab=203)
    params = SamplingParams(8, ignore_eos=True, logit_bias=((5, 80), (6, 80)))
    requests = [([5, 6, 5, 5, index], params) for index in (5, 6, 9)]
    expected = generate(Engine(config_of(path, cpu_kernels=False, threads=1, kv_tokens=512)), requests)
    engine = engine_of(path, {"mixed_steps": False, "speculate": "ngram", "speculate_tokens": 2})
    assert generate(engine, requests) == expected
    assert 0 < engine.drafts.accepted_tokens < engine.drafts.tokens


def test_a_model_drafts_in_graphs(engine_of, folder, monkeypatch):
    """A model is right about itself: after prompts, after one new token and after two, for numbers that
    differ."""
    monkeypatch.setattr(Account, "allows", lambda self, requests: True)
    monkeypatch.setattr(Account, "lends", lambda self, requests: True)
    monkeypatch.setattr(Account, "pays", lambda self, requests, drafted: drafted > 0)
    requests = [([5, 6, 7, index], SamplingParams(7 + index, ignore_eos=True)) for index in (1, 2, 4)]
    expected = generate(Engine(config_of(folder, cpu_kernels=False, threads=1, kv_tokens=512)), requests)
    engine = engine_of(folder, {"mixed_steps": False, "speculate": str(folder), "speculate_tokens": 2})
    assert generate(engine, requests) == expected
    assert engine.drafts.accepted_tokens == engine.drafts.tokens > 10


class Meeting:
    """Two ranks, threads of which one runs at a time: they change where they wait for each other."""

    def __init__(self) -> None:
        self.running = threading.Lock()
        self._both = threading.Barrier(2, timeout=60)
        self.parts: list[Any] = [None, None]

    def meet(self) -> None:
        self.running.release()
        try:
            self._both.wait()
        finally:
            self.running.acquire()


class SharedMemory:
    """Stands for PeerMemory: the same places, which are used in the same turns."""

    def __init__(self, meeting: Meeting, rank: int, sizes: tuple[int, int, int, int, int]) -> None:
        tokens, width, rows, share, self._vocabulary = sizes
        self._meeting, self._turn, self._rank = meeting, 0, rank
        self.places = [*torch.full((2, tokens, width), torch.nan), torch.full((rows, share), torch.nan)]
        meeting.parts[rank] = self.places

    def part(self, rows: int) -> Tensor:
        self._turn ^= 1
        return self.places[self._turn][:rows]

    def logits(self, rows: int) -> Tensor:
        return self.places[2][:rows]

    def add_(self, x: Tensor) -> Tensor:
        self._meeting.meet()
        for places in self._meeting.parts:
            x += places[self._turn][: len(x)]
        return x

    def add_norm_(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        return rms_norm.rms_norm(self.add_(x), gain, eps)

    def broadcast(self, rows: int) -> Tensor:
        self._meeting.meet()
        first: Tensor = self._meeting.parts[0][self._turn][:rows]
        return first.clone()

    def gather(self, rows: int) -> Tensor:
        self._meeting.meet()
        if self._rank:
            return torch.full((rows, self._vocabulary), torch.nan)
        return torch.cat([places[2][:rows] for places in self._meeting.parts], 1)[:, : self._vocabulary]


def on_gpus(shard: Shard, shape: Any, device: torch.device, dtype: torch.dtype) -> CudaRanks:
    """Stands for `ranks_of` of models/load.py, which takes other ones on a CPU."""
    return CudaRanks(shard, shape.vocab_size, shape.width, dtype)


class ThreadGroup:
    """Stands for RankGroup: rank 1 is a thread."""

    def __init__(self, config: EngineConfig, part: Callable[[], LoadedModel], meeting: Meeting) -> None:
        self._config, self._part, self._meeting = config, part, meeting
        self._steps: queue.Queue[bool] = queue.Queue()
        self.failure: BaseException | None = None

    def connect(self, own: Ranks, num_blocks: int, limits: StepLimits) -> None:
        sizes = step_sizes(self._config, limits)
        descriptor = StepMemory.create(sizes)
        self._memory, theirs = (StepMemory(descriptor, sizes, self._config.block_size) for _ in range(2))
        own.room(sizes.tokens, sizes.logits)
        own.connect(Path(), 1)
        self._thread = threading.Thread(target=self._follow, args=(num_blocks, limits, sizes, theirs))
        self._thread.start()

    def _follow(self, num_blocks: int, limits: StepLimits, sizes: StepSizes, steps: StepMemory) -> None:
        with self._meeting.running:
            try:
                part = self._part()
                part.model.ranks.room(sizes.tokens, sizes.logits)
                part.model.ranks.connect(Path(), 1)
                pool = KVPool(part.kv_shape, num_blocks, self._config.block_size, CPU)
                follower = runner(part.model, pool, self._config, limits, None)
                while self._next():
                    follower.follow(steps.read().batch)
            except BaseException as error:
                self.failure = error
                self._meeting._both.abort()

    def _next(self) -> bool:
        self._meeting.running.release()
        try:
            return self._steps.get()
        finally:
            self._meeting.running.acquire()

    def announce(self, batch: Batch, decoded: Ints, prompt_rows: Ints) -> None:
        self._memory.write(batch, decoded, prompt_rows)
        self._steps.put(True)

    @contextmanager
    def waited_for(self, limit_s: float | None = None) -> Iterator[None]:
        yield

    def watch_waits(self) -> None:
        pass

    def close(self) -> None:
        self._steps.put(False)
        self._meeting.running.release()
        self._thread.join()
        self._meeting.running.acquire()


def test_two_ranks_give_the_answers_of_one(folder, engine_of, monkeypatch):
    expected, meeting, settings = plain_answers(folder), Meeting(), SETTINGS[1]
    groups: list[ThreadGroup] = []

    def part(rank: int) -> LoadedModel:
        return fused(folder, settings, Shard(rank, 2, first_embeds=True))

    def connect(ranks: CudaRanks, file: Path, timeout_s: float) -> None:
        share = -(-ranks._vocab_size // 2)
        sizes = ranks._tokens, ranks._width, ranks._rows, share, ranks._vocab_size
        ranks._memory = SharedMemory(meeting, ranks._shard.rank, sizes)  # type: ignore[assignment]

    monkeypatch.setattr(CudaRanks, "connect", connect)
    monkeypatch.setattr(load, "ranks_of", on_gpus)

    def group(config: EngineConfig, on_end: object) -> ThreadGroup:
        groups.append(ThreadGroup(config, partial(part, 1), meeting))
        return groups[-1]

    monkeypatch.setattr(core, "RankGroup", group)
    with meeting.running:
        engine = engine_of(folder, settings, lambda config: part(0), ranks=2)
        try:
            assert answers(engine) == expected
        finally:
            engine.close()
    assert groups[0].failure is None


def test_layers_in_8_bit_floats_on_ranks_are_those_of_one_process(folder, engine_of, monkeypatch):
    """On one rank, whose part of a sum is all of it."""
    settings: dict[str, Any] = {"mixed_steps": False, "quantization": "fp8"}
    exact = plain_answers(folder)

    def on_rank(config: EngineConfig) -> LoadedModel:
        part = fused(folder, settings, Shard(0, 1, first_embeds=True))
        ranks: Any = part.model.ranks
        sizes = (96, ranks._width, 16, ranks._vocab_size, ranks._vocab_size)
        nobody: Any = SimpleNamespace(meet=lambda: None, parts=[None])
        ranks._memory = SharedMemory(nobody, 0, sizes)
        return part

    monkeypatch.setattr(load, "ranks_of", on_gpus)
    alone, on_ranks = (answers(engine_of(folder, settings, load)) for load in (None, on_rank))
    assert alone == on_ranks != exact
