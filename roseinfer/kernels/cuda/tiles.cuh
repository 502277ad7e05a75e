// GEMMs of up to 8 rows by the tensor cores, at the cost of one row: a warp has some tiles of 8 outputs and a share of
// the inputs, of which lane (g, t) holds 8 neighbouring ones of output g of the weight, and of row g of x.

// `sums` += a row of `a` `[16, 16]`, whose rows 8 on are zero, times a column of `b` `[16, 8]`.
__device__ __forceinline__ void multiply(float (&sums)[4], unsigned a_low, unsigned a_high, unsigned b_low, unsigned b_high) {
#if BF16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, "
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, "
#endif
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a_low), "r"(0), "r"(a_high), "r"(b_low), "r"(b_high));
}

// A warp's tiles of a weight: COUNT of 8 outputs, BLOCKS of 32 inputs.
template <int COUNT, int BLOCKS>
struct Tiles {
    uint4 weights[COUNT][BLOCKS];

    // `at`: the first of this lane's inputs of its output of tile `i`.
    __device__ __forceinline__ void load(int i, const half_t* at) {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) weights[i][b] = load_once(at + b * 32);
    }

    // Multiplies them with ROWS rows, of which `x` has this warp's inputs: partial sums `found[row][output]`.
    __device__ __forceinline__ void times(float (*found)[COUNT * 8], const half_t* x, int stride) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        float sums[COUNT][4] = {};
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            uint4 a = make_uint4(0, 0, 0, 0);
            if (g < ROWS) a = *(const uint4*)(x + g * stride + b * 32 + t * 8);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                multiply(sums[i], a.x, a.y, weights[i][b].x, weights[i][b].y);
                multiply(sums[i], a.z, a.w, weights[i][b].z, weights[i][b].w);
            }
        }
        if (g < ROWS)
#pragma unroll
            for (int i = 0; i < COUNT; i++) *(float2*)&found[g][i * 8 + t * 2] = make_float2(sums[i][0], sums[i][1]);
    }
};
