// Decode attention with grouped queries (GQA), from the output of the QKV projection: QK norm, RoPE, the append to the
// cache, attention, and the merge of the splits (flash decoding).
//
// A block has one request, one KV head with all of its query heads, and a share of the cached tokens; the SPLITS blocks
// of a request and a KV head are a cluster. A warp takes 16 tokens at a time, which arrive in a ring buffer of its own
// in shared memory. Q K^T is computed by the tensor cores in half precision, P V in tf32: values are exact in tf32, and
// the accumulators of Q K^T have the layout of the P operand of P V, so no data moves between lanes. Scores are scaled
// by log2(e), for exp2.
//
// With FP8 the cache is E4M3. IEEE halves represent it exactly, so both multiplications use IEEE halves, in which P has
// as many mantissa bits as in tf32.
#include "half.cuh"
#include "copy.cuh"
#include "mma.cuh"
#include "e4m3.cuh"
#include "heads.cuh"
#if SPLITS > 1
#define CLUSTER SPLITS
#include "cluster.cuh"
#endif

#define THREADS (32 * WARPS)
#define QUERIES (HEADS / KV_HEADS)
#define WIDE (WARPS * (DIM > 128 ? DIM / 128 : 1))
#define RESIDENT (WIDE > 4 ? 1 : 12 / WIDE)  // blocks on an SM
#define GROUP 16            // tokens that a warp takes at a time
#define HALVES (DIM / 64)   // runs of 64 elements of a value
#define ROW (KV_HEADS * DIM)
#if FP8
typedef unsigned char cached_t;
#define VALUE_PITCH (DIM + 16)
#else
typedef half_t cached_t;
#define VALUE_PITCH (DIM + 8)
#endif
#define KEY_PITCH (DIM + 32)  // elements from token to token in shared memory, as VALUE_PITCH; padded so that lanes that
                              // read at once hit different banks
#define PART (16 / (int)sizeof(cached_t))  // elements that a lane copies at once
#define SLOT (GROUP * (KEY_PITCH + VALUE_PITCH))

static_assert(QUERIES <= 8 && DIM % 64 == 0 && BLOCK_SIZE % GROUP == 0 && SPLITS <= 8, "the tiling");
static_assert(QUERIES * DIM * sizeof(float) <= DEPTH * SLOT * sizeof(cached_t), "a warp's sums fit its ring buffer");

// Start the copy of a group of tokens, of which the first `there` exist; the first one is at `place` of the cache.
__device__ __forceinline__ void ask(
    cached_t* to, const cached_t* keys, const cached_t* values, size_t place, int there, int lane
) {
    const int each = 32 * PART / DIM;  // tokens that the warp asks for at once
    const int token = lane / (DIM / PART), part = lane % (DIM / PART) * PART;
    const size_t from = place + token * ROW + part;
#pragma unroll
    for (int i = 0; i < GROUP; i += each)
        copy_if(to + (i + token) * KEY_PITCH + part, keys + from + i * ROW, i + token < there);
#pragma unroll
    for (int i = 0; i < GROUP; i += each)
        copy_if(to + GROUP * KEY_PITCH + (i + token) * VALUE_PITCH + part, values + from + i * ROW, i + token < there);
}

// Eight elements of the cache as halves, for the tensor cores.
__device__ __forceinline__ uint4 halves_of(const cached_t* at) {
#if FP8
    return expanded(*(const uint2*)at);
#else
    return *(const uint4*)at;
#endif
}

// Eight elements of a query, in the halves that the tensor cores take, as floats.
__device__ __forceinline__ void floats_of(float (&to)[8], uint4 halves) {
#if FP8
    expand_to(to, halves);
#else
    const Eight from(halves);
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = from.at[i];
#endif
}

// Eight halves as the cache represents them, as floats; with `append` they are stored in the cache.
__device__ __forceinline__ void cache_new(float (&as)[8], uint4 halves, cached_t* to, bool append) {
#if FP8
    const uint2 raw = rounded_e4m3(halves);
    if (append) *(uint2*)to = raw;
    expand_to(as, expanded(raw));
#else
    if (append) *(uint4*)to = halves;
    floats_of(as, halves);
#endif
}

// Online softmax of query g: the running max, the sum of the weights, and elements 64 h + 8 (2t + i) + e of the
// weighted sum of values.
struct Softmax {
    float top, total, sum[HALVES][8][2];

    __device__ __forceinline__ void take(const cached_t* from, const Lane& q, int there, int g, int t) {
        const cached_t* const key = from + g * KEY_PITCH + t * 8;
        const cached_t* const value = from + GROUP * KEY_PITCH + 2 * t * VALUE_PITCH + g * 8;
        float found[2][2][2] = {};
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 k = halves_of(key + i * 8 * KEY_PITCH + b * 32);
                multiply(found[i][0], q.at[b].x, q.at[b].y, k.x, k.y);
                multiply(found[i][1], q.at[b].z, q.at[b].w, k.z, k.w);
            }
        float score[4], best = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            score[i] = 2 * t + i / 2 * 8 + i % 2 < there ? found[i / 2][0][i % 2] + found[i / 2][1][i % 2] : -INFINITY;
            best = fmaxf(best, score[i]);
        }
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
        if (__any_sync(~0u, best > top)) {
            const float higher = fmaxf(top, best), keep = exp2f(top - higher);
            top = higher;
            total *= keep;
#pragma unroll
            for (int h = 0; h < HALVES; h++)
#pragma unroll
                for (int e = 0; e < 8; e++) sum[h][e][0] *= keep, sum[h][e][1] *= keep;
        }
#if FP8
        const unsigned low = ieee_pair(exp2f(score[0] - top), exp2f(score[1] - top));
        const unsigned high = ieee_pair(exp2f(score[2] - top), exp2f(score[3] - top));
        const float2 first = widen_ieee(low), second = widen_ieee(high);
        total += first.x + first.y + second.x + second.y;  // of this lane's tokens alone
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            uint2 v[4];  // of tokens 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = *(const uint2*)(value + (i / 2 * 8 + i % 2) * VALUE_PITCH + h * 64);
#pragma unroll
            for (int e = 0; e < 8; e += 2) {
                const unsigned which = e % 4 ? 0x7362 : 0x5140;  // elements e, e + 1 of both tokens
                const unsigned near = __byte_perm(e < 4 ? v[0].x : v[0].y, e < 4 ? v[1].x : v[1].y, which);
                const unsigned far = __byte_perm(e < 4 ? v[2].x : v[2].y, e < 4 ? v[3].x : v[3].y, which);
                multiply(sum[h][e], low, high, expand_low(near), expand_low(far));
                multiply(sum[h][e + 1], low, high, expand_high(near), expand_high(far));
            }
        }
#else
        float weight[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            weight[i] = rounded(exp2f(score[i] - top));
            total += weight[i];  // of this lane's tokens alone
        }
#pragma unroll
        for (int i = 0; i < 4; i += 2)
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                const half_t* const at = value + i / 2 * 8 * VALUE_PITCH + h * 64;
                const Eight v(*(const uint4*)at), w(*(const uint4*)(at + VALUE_PITCH));
#pragma unroll
                for (int e = 0; e < 8; e++) multiply_tf32(sum[h][e], weight[i], weight[i + 1], v.at[e], w.at[e]);
            }
#endif
    }
};

// What the blocks of a cluster read from each other.
struct Found {
    float top[8], total[8], sum[QUERIES * DIM];
};

#if SPLITS > 1
#define BLOCKS_OF_REQUEST __cluster_dims__(1, 1, SPLITS)
#else
#define BLOCKS_OF_REQUEST
#endif

extern "C" __global__ void BLOCKS_OF_REQUEST __launch_bounds__(THREADS, RESIDENT) gqa_decode(
    const half_t* qkv, int qkv_stride, const half_t* q_gain, const half_t* k_gain, const float* turns, cached_t* keys,
    cached_t* values, const int* table, int table_stride, const int* rows, const int* lengths, half_t* out
) {
    extern __shared__ __align__(128) cached_t ring[];  // [WARPS, DEPTH, SLOT]
    __shared__ float tops[WARPS][8], totals[WARPS][8];
#if SPLITS > 1
    __shared__ Found found;
#endif
    pdl_launch();
    const int index = blockIdx.x, head = blockIdx.y, split = blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int length = lengths[index], cached = max(length - 1, 0);
    const int* const blocks = table + (size_t)rows[index] * table_stride;
    const int share = ((cached + GROUP * SPLITS - 1) / (GROUP * SPLITS)) * GROUP;
    const int end = min((split + 1) * share, cached), begin = min(split * share + warp * GROUP, end);
    const bool newest = split == SPLITS - 1 && warp == WARPS - 1;  // this warp has the new token, too
    cached_t* const own = ring + warp * DEPTH * SLOT;
    const int last = max(end - 1, 0);

    int block[DEPTH + 1];
#pragma unroll
    for (int i = 0; i <= DEPTH; i++) block[i] = blocks[min(begin + i * THREADS / 2, last) / BLOCK_SIZE];
    const int new_block = blocks[cached / BLOCK_SIZE];
    auto place_of = [&](int block, int token) {
        return ((size_t)block * BLOCK_SIZE + token % BLOCK_SIZE) * ROW + head * DIM;
    };
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        const int start = begin + i * THREADS / 2;
        if (start < end) ask(own + i * SLOT, keys, values, place_of(block[i], start), end - start, lane);
        commit();
    }
    Turn turn;
    Lane q_by, k_by;
    turn.load(turns + (size_t)cached * DIM, t);
    if (NORM) q_by.load(q_gain, t), k_by.load(k_gain, t);

    pdl_wait();
    const half_t* const token = qkv + (size_t)index * qkv_stride;
    Lane query, key;
    uint4 value[HALVES][2];
    query.load_new(token + (head * QUERIES + min(g, QUERIES - 1)) * DIM, t);
    if (newest) {
        key.load_new(token + (HEADS + head) * DIM, t);
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                value[h][i] = load_fresh(token + (HEADS + KV_HEADS + head) * DIM + h * 64 + (2 * t + i) * 8);
    }
    const Head scaled = prepared(query, q_by, turn, 1.4426950408889634f * rsqrtf((float)DIM));
    Lane q = packed<FP8 ? ieee_pair : pair>(scaled);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
        if (g >= QUERIES) q.at[b] = make_uint4(0, 0, 0, 0);
    Softmax state{-INFINITY, 0, {}};
    if (newest) {
        const Lane k = packed<pair>(prepared(key, k_by, turn, 1));
        const size_t place = place_of(new_block, cached);
        const bool append = g == 0 && length > 0;
        float score = 0;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            float x[8], y[8];
            cache_new(y, k.at[b], keys + place + b * 32 + t * 8, append);
            floats_of(x, q.at[b]);
#pragma unroll
            for (int i = 0; i < 8; i++) score += x[i] * y[i];
        }
        score += __shfl_xor_sync(~0u, score, 1);
        score += __shfl_xor_sync(~0u, score, 2);
        state.top = score;
        state.total = t == 0;
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float x[8];
                cache_new(x, value[h][i], values + place + h * 64 + (2 * t + i) * 8, append);
#pragma unroll
                for (int e = 0; e < 8; e++) state.sum[h][e][i] = x[e];
            }
    }
    int slot = 0, next_block = block[DEPTH];
    for (int start = begin; start < end; start += THREADS / 2) {
        arrived<DEPTH - 1>();
        __syncwarp();
        state.take(own + slot * SLOT, q, end - start, g, t);
        __syncwarp();
        const int next = start + DEPTH * (THREADS / 2);
        if (next < end) {
            ask(own + slot * SLOT, keys, values, place_of(next_block, next), end - next, lane);
            next_block = blocks[min(next + THREADS / 2, last) / BLOCK_SIZE];
        }
        commit();
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
    }

    // Merge the softmax of the warps, whose sums take the place of their tokens, then, with SPLITS > 1, of the blocks.
    auto sums_of = [&](int warp) { return (float(*)[DIM])(ring + warp * DEPTH * SLOT); };
    state.total += __shfl_xor_sync(~0u, state.total, 1);
    state.total += __shfl_xor_sync(~0u, state.total, 2);
    if (t == 0) tops[warp][g] = state.top, totals[warp][g] = state.total;
    if (g < QUERIES)
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float4* const to = (float4*)&sums_of(warp)[g][h * 64 + (2 * t + i) * 8];
                to[0] = make_float4(state.sum[h][0][i], state.sum[h][1][i], state.sum[h][2][i], state.sum[h][3][i]);
                to[1] = make_float4(state.sum[h][4][i], state.sum[h][5][i], state.sum[h][6][i], state.sum[h][7][i]);
            }
    __syncthreads();
    half_t* const to = out + ((size_t)index * KV_HEADS + head) * QUERIES * DIM;
    for (int i = threadIdx.x; i < QUERIES * DIM; i += THREADS) {
        const int query = i / DIM, d = i % DIM;
        float top = -INFINITY, total = 0, sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w][query]);
        const float base = top == -INFINITY ? 0 : top;  // no token
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float keep = exp2f(tops[w][query] - base);
            total += totals[w][query] * keep;
            sum += sums_of(w)[query][d] * keep;
        }
#if SPLITS > 1
        found.sum[i] = sum, found.top[query] = top, found.total[query] = total;
#else
        to[i] = narrow(sum / total);
#endif
    }
#if SPLITS > 1
    arrive();
    await();
    for (int i = split * THREADS + threadIdx.x; i < QUERIES * DIM; i += SPLITS * THREADS) {
        const int query = i / DIM;
        float tops_of[SPLITS], totals_of[SPLITS], sums_of[SPLITS], top = -INFINITY, total = 0, sum = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            tops_of[s] = get(there(&found.top[query], s));
            totals_of[s] = get(there(&found.total[query], s));
            sums_of[s] = get(there(&found.sum[i], s));
        }
#pragma unroll
        for (int s = 0; s < SPLITS; s++) top = fmaxf(top, tops_of[s]);
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            const float keep = exp2f(tops_of[s] - top);
            total += totals_of[s] * keep;
            sum += sums_of[s] * keep;
        }
        to[i] = narrow(sum / total);
    }
    arrive();  // no block ends before all have read
    await();
#endif
}
