// Attention of one query over cached tokens, by all warps of a block.
//
// A group of DIM / 8 lanes holds a token's key and value, 16 bytes a lane, and a softmax of its own over the
// tokens it saw; the groups' results are joined in shared memory. Scores are to base 2.

#define LANES (DIM / 8)
#define GROUPS (32 / LANES)
#define UNROLL 4

struct Cache {
    half_t* keys;  // [slots, KV_HEADS, DIM]
    half_t* values;
    const int* blocks;  // of this request
};

struct Softmax {
    float top, total, mean[8];  // of a group of lanes; `mean` is yet to be divided by `total`
};

struct Shared {
    float top[WARPS], total[WARPS], mean[WARPS][DIM];
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

__device__ __forceinline__ void take(Softmax& state, const float (&scores)[UNROLL], const uint4 (&values)[UNROLL]) {
    float top = state.top;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) top = fmaxf(top, scores[u]);
    const float base = top == -INFINITY ? 0 : top;  // no token yet: all weights are 0
    const float keep = exp2f(state.top - base);
    state.top = top;
    state.total *= keep;
#pragma unroll
    for (int i = 0; i < 8; i++) state.mean[i] *= keep;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const float weight = exp2f(scores[u] - base);
        const Eight v(values[u]);
        state.total += weight;
#pragma unroll
        for (int i = 0; i < 8; i++) state.mean[i] += weight * v.at[i];
    }
}

// The new token, behind `cached` ones: 16 bytes of its key and value a lane of the first group, by a whole warp. It
// counts, and with `append` goes to the cache.
__device__ __forceinline__ void take_new(
    Softmax& state, const float (&q)[8], uint4 key, uint4 value, const Cache& cache, int cached, int head, bool append,
    int lane
) {
    const float scores[UNROLL] = {score(q, key), -INFINITY, -INFINITY, -INFINITY};
    const uint4 taken[UNROLL] = {value};
    if (lane < LANES) take(state, scores, taken);
    if (lane < LANES && append) {
        const size_t at = row_of(cache, cached, head) + lane * 8;
        *(uint4*)(cache.keys + at) = key;
        *(uint4*)(cache.values + at) = value;
    }
    __syncwarp();
}

// Where the keys, and the values, of UNROLL tokens a group are, `start` on.
__device__ __forceinline__ void find(
    size_t (&places)[UNROLL], const Cache& cache, int head, int start, int end, int lane
) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const int token = start + u * GROUPS + lane / LANES;
        if (token < end) places[u] = row_of(cache, token, head) + lane % LANES * 8;
    }
}

// What is there.
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

// UNROLL tokens a group from `start` on, as many `stride` further on, and so on to `end`; `tokens` holds the first.
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
        take(state, scores, tokens.values);
        if (start + stride < end) {
            size_t places[UNROLL];
            find(places, cache, head, start + stride, end, lane);
            tokens.load(cache, places, start + stride, end, lane);
        }
    }
}

// One softmax for all groups of the warp.
__device__ __forceinline__ void join_groups(Softmax& state) {
#pragma unroll
    for (int step = LANES; step < 32; step *= 2) {
        const float top = fmaxf(state.top, __shfl_xor_sync(~0u, state.top, step));
        const float keep = top == -INFINITY ? 0 : exp2f(state.top - top);
        state.top = top;
        state.total *= keep;
        state.total += __shfl_xor_sync(~0u, state.total, step);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            state.mean[i] *= keep;
            state.mean[i] += __shfl_xor_sync(~0u, state.mean[i], step);
        }
    }
}

// Joins what all warps of the block found; thread d < DIM returns element d of the mean, and in
// `weight` the logarithm to base 2 of its weight, -infinity where there was no token.
__device__ __forceinline__ float join(Shared& shared, Softmax& state, int warp, int lane, float& weight) {
    join_groups(state);
    if (lane == 0) {
        shared.top[warp] = state.top;
        shared.total[warp] = state.total;
    }
    if (lane < LANES)
#pragma unroll
        for (int i = 0; i < 8; i++) shared.mean[warp][lane * 8 + i] = state.mean[i];
    __syncthreads();
    weight = -INFINITY;
    if (threadIdx.x >= DIM) return 0;
    float top = -INFINITY, total = 0, mean = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) top = fmaxf(top, shared.top[i]);
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const float keep = top == -INFINITY ? 0 : exp2f(shared.top[i] - top);
        total += shared.total[i] * keep;
        mean += shared.mean[i][threadIdx.x] * keep;
    }
    if (total > 0) weight = top + log2f(total);
    return total > 0 ? mean / total : 0;
}
