// Tensor core instructions (mma.sync m16n8), with 8 of their 16 rows in use but for `multiply_16`. Lane (g, t) =
// (lane / 4, lane % 4) holds row g of `a`, column g of `b`, and columns 2t and 2t + 1 of row g of the sums.

// sums += a [8, 16] b [16, 8]: the lane's inputs are 2t, 2t + 1 (low) and 2t + 8, 2t + 9 (high), in halves; IEEE's
// with FP8.
__device__ __forceinline__ void multiply(float* sums, unsigned a_low, unsigned a_high, unsigned b_low, unsigned b_high) {
    float unused_1, unused_2;
#if BF16 && !FP8
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %8, %5, %8}, {%6, %7}, "
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %8, %5, %8}, {%6, %7}, "
#endif
        "{%0, %1, %9, %9};"
        : "+f"(sums[0]), "+f"(sums[1]), "=f"(unused_1), "=f"(unused_2)
        : "r"(a_low), "r"(a_high), "r"(b_low), "r"(b_high), "r"(0), "f"(0.0f));
}

// As `multiply`, for a [16, 16]: the lane also holds row g + 8 of `a` (below), and of the sums as the last two of four.
__device__ __forceinline__ void multiply_16(
    float* sums, unsigned a_low, unsigned below_low, unsigned a_high, unsigned below_high, unsigned b_low, unsigned b_high
) {
#if BF16 && !FP8
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a_low), "r"(below_low), "r"(a_high), "r"(below_high), "r"(b_low), "r"(b_high));
}

// sums += a [8, 8] b [8, 8] in tf32, which holds halves of either kind exactly: the lane's inputs are t and t + 4.
__device__ __forceinline__ void multiply_tf32(float* sums, float a_low, float a_high, float b_low, float b_high) {
    float unused_1, unused_2;
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %8, %5, %8}, {%6, %7}, "
        "{%0, %1, %9, %9};"
        : "+f"(sums[0]), "+f"(sums[1]), "=f"(unused_1), "=f"(unused_2)
        : "r"(__float_as_uint(a_low)), "r"(__float_as_uint(a_high)), "r"(__float_as_uint(b_low)),
          "r"(__float_as_uint(b_high)), "r"(0), "f"(0.0f));
}
// `x` rounded as tf32.
__device__ __forceinline__ float rounded(float x) {
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return __uint_as_float(y);
}
