"""Names as engines and libraries really give them."""

from __future__ import annotations

import pytest

from harness.profiling.reading.rules import categorize, component, step_range

KERNELS = {
    "void cutlass::Kernel2<cutlass_80_tensorop_h16816gemm_relu>(Params)": "matmul",
    "nvjet_hsh_64x8_64x16_4x1_v_bz_TNN": "matmul",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half>(cublasLt::cublasSplitKParams<float>)": (
        "matmul"
    ),
    "aten::addmm": "matmul",
    "mkldnn::_linear_pointwise": "matmul",
    "triton_tem_fused_mm_3": "matmul",
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64>>": "attention",
    "BatchPrefillWithPagedKVCacheKernel": "attention",
    "_C::cpu_attn_reshape_and_cache": "attention",
    "void at::native::elementwise_kernel<direct_copy_kernel_cuda>": "memory copies",
    "Memcpy DtoH (Device -> Pinned)": "memory copies",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "norm and elementwise",
    "aten::native_layer_norm": "norm and elementwise",
    "aten::add_": "norm and elementwise",
    "void at::native::reduce_kernel<512, 1, ReduceOp<float, ArgMaxOps<float>>>": "sampling",
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL": "communication",
    "collective": "communication",
    "join_ranks": "communication",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
    "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmma<3>>>>": "matmul",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)": "communication",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals)": (
        "communication"
    ),
    "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 2>(c10::BFloat16**, c10::BFloat16*)": "communication",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2>": "communication",
    "tensorrt_llm::kernels::oneShotAllReduceKernel": "communication",
    "gloo:all_reduce": "communication",
    "roseinfer.ranks.gather": "communication",
    "Memcpy PtoP (Device -> Device)": "communication",
    "aten::as_strided": "other",
    "roseinfer::linear_bf16": "matmul",
    "roseinfer::paged_decode_bf16": "attention",
    "roseinfer::paged_prefill_bf16": "attention",
    "roseinfer::rms_norm_bf16": "norm and elementwise",
    "roseinfer::rotate_bf16": "norm and elementwise",
    "roseinfer::swiglu_fp32": "norm and elementwise",
    "roseinfer.prefill_batch.model_forward": "other",
    "## Call CompiledFxGraph None ##": "norm and elementwise",
    "fused_moe_kernel": "experts",
    "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16, (vllm::moe::ScoringFunc)0>": "experts",
    "void vllm::moe::moe_align_block_size_kernel<int>(int const*)": "experts",
    "void vllm::moe::count_and_sort_expert_tokens_kernel<int>(int const*)": "experts",
    "void moe_sum_reduce_warp_per_token_vec_kernel<8>(c10::BFloat16 const*, c10::BFloat16*)": "experts",
    "triton_red_fused_fused_add_rms_norm_moe_forward_0": "norm and elementwise",
    "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at_": (
        "norm and elementwise"
    ),
    "fused_recurrent_gated_delta_rule_fwd_kernel": "attention",
    "experts": "experts",
    "_grouped": "experts",
    "_place": "experts",
    "gqa_decode": "attention",
    "stream": "matmul",
    "_rms_norm": "norm and elementwise",
    "draw": "sampling",
}


@pytest.mark.parametrize(("name", "category"), KERNELS.items())
def test_categories(name: str, category: str) -> None:
    assert categorize(name) == category


def test_steps_of_every_engine() -> None:
    vllm = step_range("execute_context_1(128)_generation_3(3)")
    assert vllm is not None and (vllm.kind, vllm.batch) == ("prefill", 4)
    detailed = step_range("execute_131_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq3sk90sqsq3sqsk90)")
    assert detailed is not None and (detailed.kind, detailed.batch) == ("decode", 3)
    sglang = step_range("step[EXTEND bs=2 toks=64]")
    assert sglang is not None and (sglang.kind, sglang.batch) == ("prefill", 2)
    rose = step_range("roseinfer.model.forward.cuda_graph_replay")
    assert rose is not None and rose.kind == "decode"
    assert step_range("roseinfer.sampler") is None


def test_parts_of_the_server() -> None:
    assert component("roseinfer.ipc.send") == "IPC"
    assert component("schedule: allocate_slots") == "scheduling"
    assert component("roseinfer.detokenize") == "detokenize"
    assert component("roseinfer.tokenize") == "tokenize"
    assert component("gpu_model_runner: forward") is None
