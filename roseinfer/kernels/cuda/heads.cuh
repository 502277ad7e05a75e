// A head of a query or a key: its RMS norm and RoPE, in the operand layout of the tensor cores.

#define BLOCKS (DIM / 32)  // blocks of 32 elements of a head

// Elements 32 b + 8 t to 32 b + 8 t + 7 of a head for each b, where (g, t) = (lane / 4, lane % 4).
struct Lane {
    uint4 at[BLOCKS];

    __device__ __forceinline__ void load(const half_t* from, int t) {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) at[b] = *(const uint4*)(from + b * 32 + t * 8);
    }
    __device__ __forceinline__ void load_new(const half_t* from, int t) {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) at[b] = load_fresh(from + b * 32 + t * 8);
    }
};

// cos and sin of the position for the elements of a lane; elements d and d + DIM / 2 are rotated together.
struct Turn {
    float4 cos[BLOCKS / 2][2], sin[BLOCKS / 2][2];

    // `turns`: `[2, DIM / 2]`.
    __device__ __forceinline__ void load(const float* turns, int t) {
#pragma unroll
        for (int b = 0; b < BLOCKS / 2; b++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                cos[b][i] = *(const float4*)(turns + b * 32 + t * 8 + i * 4);
                sin[b][i] = *(const float4*)(turns + DIM / 2 + b * 32 + t * 8 + i * 4);
            }
    }
};

// The lane's elements as floats.
struct Head {
    float at[BLOCKS][8];
};

// Normalises (with NORM) and rotates a head, and scales it by `by`.
__device__ __forceinline__ Head prepared(const Lane& raw, const Lane& gain, const Turn& turn, float by) {
    Head out;
    float (&at)[BLOCKS][8] = out.at;
    float sum = 0;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const Eight v(raw.at[b]);
#pragma unroll
        for (int i = 0; i < 8; i++) at[b][i] = v.at[i], sum += v.at[i] * v.at[i];
    }
    if (NORM) {
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        by *= rsqrtf(sum / DIM + EPS);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const Eight v(gain.at[b]);
#pragma unroll
            for (int i = 0; i < 8; i++) at[b][i] *= v.at[i];
        }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS / 2; b++) {
        const float* const cos = (const float*)turn.cos[b];
        const float* const sin = (const float*)turn.sin[b];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float low = at[b][i] * by, high = at[b + BLOCKS / 2][i] * by;
            at[b][i] = low * cos[i] - high * sin[i];
            at[b + BLOCKS / 2][i] = high * cos[i] + low * sin[i];
        }
    }
    return out;
}

// The head rounded to halves; ROUND rounds two floats to a pair.
template <unsigned (*ROUND)(float, float)>
__device__ __forceinline__ Lane packed(const Head& head) {
    Lane out;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const float* const x = head.at[b];
        out.at[b] = make_uint4(ROUND(x[0], x[1]), ROUND(x[2], x[3]), ROUND(x[4], x[5]), ROUND(x[6], x[7]));
    }
    return out;
}
