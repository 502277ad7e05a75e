// Attention of one query over cached tokens, computed by all warps of a block.
//
// A group of DIM / 8 lanes holds a token's key and value, 16 bytes a lane, and has its own online softmax over the
// tokens it saw; the groups' results are merged in shared memory. Scores are scaled by log2(e), for exp2.

#define LANES (DIM / 8)
#define GROUPS (32 / LANES)
#define UNROLL 4

static_assert(32 * WARPS >= DIM, "a thread for each element of a result");

struct Cache {
    half_t* keys;  // [slots, KV_HEADS, DIM]
    half_t* values;
    const int* blocks;  // of this request
};

struct Softmax {
    float running_max, running_sum, accumulator[8];  // of a group of lanes; divided by `running_sum` it is the result
};

struct Shared {
    float running_max[WARPS], running_sum[WARPS], accumulator[WARPS][DIM];
};

__device__ __forceinline__ size_t row_of(const Cache& cache, int token, int head) {
    const size_t slot = (size_t)cache.blocks[token / BLOCK_SIZE] * BLOCK_SIZE + token % BLOCK_SIZE;
    return (slot * KV_HEADS + head) * DIM;
}

__device__ __forceinline__ float score(const float (&q)[8], uint4 key) {
    const Eight k(key);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += q[i] * k.at[i];
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

__device__ __forceinline__ void accumulate(Softmax& state, const float (&scores)[UNROLL], const uint4 (&values)[UNROLL]) {
    float running_max = state.running_max;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) running_max = fmaxf(running_max, scores[u]);
    const float base = running_max == -INFINITY ? 0 : running_max;  // no token yet: all weights are 0
    const float rescale = exp2f(state.running_max - base);
    state.running_max = running_max;
    state.running_sum *= rescale;
#pragma unroll
    for (int i = 0; i < 8; i++) state.accumulator[i] *= rescale;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const float weight = exp2f(scores[u] - base);
        const Eight v(values[u]);
        state.running_sum += weight;
#pragma unroll
        for (int i = 0; i < 8; i++) state.accumulator[i] += weight * v.at[i];
    }
}

// The new token, which follows `cached` ones. A whole warp calls this; each lane of its first group has 16 bytes of the
// key and of the value. With `append` they are stored in the cache.
__device__ __forceinline__ void accumulate_new(
    Softmax& state, const float (&q)[8], uint4 key, uint4 value, const Cache& cache, int cached, int head, bool append,
    int lane
) {
    const float scores[UNROLL] = {score(q, key), -INFINITY, -INFINITY, -INFINITY};
    const uint4 values[UNROLL] = {value};
    if (lane < LANES) accumulate(state, scores, values);
    if (lane < LANES && append) {
        const size_t at = row_of(cache, cached, head) + lane * 8;
        *(uint4*)(cache.keys + at) = key;
        *(uint4*)(cache.values + at) = value;
    }
    __syncwarp();
}

// Offsets in the cache of the keys, and of the values, of UNROLL tokens for each group, from `start` on.
__device__ __forceinline__ void find(
    size_t (&places)[UNROLL], const Cache& cache, int head, int start, int end, int lane
) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const int token = start + u * GROUPS + lane / LANES;
        if (token < end) places[u] = row_of(cache, token, head) + lane % LANES * 8;
    }
}

// The keys and values at these offsets.
struct Tokens {
    uint4 keys[UNROLL], values[UNROLL];
    __device__ __forceinline__ void load(
        const Cache& cache, const size_t (&places)[UNROLL], int start, int end, int lane
    ) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            keys[u] = values[u] = make_uint4(0, 0, 0, 0);
            if (start + u * GROUPS + lane / LANES < end) {
                keys[u] = load_once(cache.keys + places[u]);
                values[u] = load_once(cache.values + places[u]);
            }
        }
    }
};

// Attends to UNROLL tokens for each group from `start` on, then to those `stride` further, and so on to `end`; `tokens`
// holds the first.
__device__ __forceinline__ void attend(
    Softmax& state, const float (&q)[8], const Cache& cache, int head, int start, int end, int stride,
    Tokens& tokens, int lane
) {
    for (; start < end; start += stride) {
        float scores[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const float found = score(q, tokens.keys[u]);
            scores[u] = start + u * GROUPS + lane / LANES < end ? found : -INFINITY;
        }
        accumulate(state, scores, tokens.values);
        if (start + stride < end) {
            size_t places[UNROLL];
            find(places, cache, head, start + stride, end, lane);
            tokens.load(cache, places, start + stride, end, lane);
        }
    }
}

// Merges the softmax of all groups of the warp.
__device__ __forceinline__ void merge_groups(Softmax& state) {
#pragma unroll
    for (int step = LANES; step < 32; step *= 2) {
        const float running_max = fmaxf(state.running_max, __shfl_xor_sync(~0u, state.running_max, step));
        const float rescale = running_max == -INFINITY ? 0 : exp2f(state.running_max - running_max);
        state.running_max = running_max;
        state.running_sum *= rescale;
        state.running_sum += __shfl_xor_sync(~0u, state.running_sum, step);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            state.accumulator[i] *= rescale;
            state.accumulator[i] += __shfl_xor_sync(~0u, state.accumulator[i], step);
        }
    }
}

// Merges the softmax of all warps of the block. Thread d < DIM returns element d of the result, and in `lse` the
// logarithm to base 2 of the sum of exponentials, -infinity where there was no token.
__device__ __forceinline__ float merge(Shared& shared, Softmax& state, int warp, int lane, float& lse) {
    merge_groups(state);
    if (lane == 0) {
        shared.running_max[warp] = state.running_max;
        shared.running_sum[warp] = state.running_sum;
    }
    if (lane < LANES)
#pragma unroll
        for (int i = 0; i < 8; i++) shared.accumulator[warp][lane * 8 + i] = state.accumulator[i];
    __syncthreads();
    lse = -INFINITY;
    if (threadIdx.x >= DIM) return 0;
    float running_max = -INFINITY, running_sum = 0, accumulator = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) running_max = fmaxf(running_max, shared.running_max[i]);
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const float rescale = running_max == -INFINITY ? 0 : exp2f(shared.running_max[i] - running_max);
        running_sum += shared.running_sum[i] * rescale;
        accumulator += shared.accumulator[i][threadIdx.x] * rescale;
    }
    if (running_sum > 0) lse = running_max + log2f(running_sum);
    return running_sum > 0 ? accumulator / running_sum : 0;
}
