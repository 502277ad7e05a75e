// Samples the next token of each request: the softmax of its logits, cut to the top_k most likely tokens and then to
// the smallest set that holds top_p of the mass, is inverted at a uniform random number. Nothing is sorted.
//
// A cluster of CLUSTER blocks has one request. Each thread holds EACH of its logits as weights, exp of the difference
// to the largest logit over temperature; min_p makes the small ones 0. The smallest kept weight is found by binary
// search: with halves among the values that a half can have, 65,536, so at most sixteen sums over all weights find it;
// with FLOATS, logits in single precision, among the floats from 0 to 1, with at most thirty sums. Of tokens as likely
// as the last one that is kept, the first in the vocabulary are kept. All sums have a fixed order, so that a request's
// token does not depend on the other requests.
#include "half.cuh"
#include "cluster.cuh"

#define THREADS (32 * WARPS)
#define SPAN (THREADS * EACH)  // tokens of the vocabulary for each block

// Sampling parameters: `scale` is log2(e) / temperature, `top_k` at least 1; `row`: the request's entry of `last`.
struct How {
    double uniform;
    float scale, top_p, min_p;
    int top_k, row;
};

struct Part {
    float mass;
    int count;
};

__device__ __forceinline__ Part operator+(Part a, Part b) { return {a.mass + b.mass, a.count + b.count}; }
__device__ __forceinline__ Part shuffled(Part x, int by) {
    return {__shfl_xor_sync(~0u, x.mass, by), __shfl_xor_sync(~0u, x.count, by)};
}
__device__ __forceinline__ Part part_of(const Part* at, int rank) {
    return {get(there(&at->mass, rank)), __float_as_int(get(there((const float*)&at->count, rank)))};
}

// What is searched: an integer of the same order as the weights, from LOWEST to `highest`.
#if FLOATS
typedef float logit_t;
#define LOWEST 0
__device__ __forceinline__ float value_of(float x) { return x; }
__device__ __forceinline__ int highest(float) { return 0x3f800000; }  // 1, the largest weight
#else
typedef half_t logit_t;
#define LOWEST (BF16 ? 0x007f : 0x03ff)  // minus infinity
__device__ __forceinline__ float value_of(half_t x) { return widen((unsigned)x).x; }
__device__ __forceinline__ int highest(float top) {
    const half_t x = narrow(top);
    return x & 0x8000 ? ~x & 0xffff : x | 0x8000;
}
__device__ __forceinline__ float logit_at(int place) {
    return value_of((half_t)(place & 0x8000 ? place ^ 0x8000 : ~place & 0xffff));
}
#endif

// What the blocks of a cluster read from each other; arrays of 2 are used alternately.
struct Shared {
    float tops[WARPS], top;
    Part of_warps[2][WARPS], of_block[2];
};

// The sum over the cluster, the same in all its threads; `turn` alternates.
__device__ __forceinline__ Part sum_of_all(Part x, Shared& shared, int turn) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int by = 16; by > 0; by /= 2) x = x + shuffled(x, by);
    if (lane == 0) shared.of_warps[turn][warp] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        Part all{0, 0};
        for (int w = 0; w < WARPS; w++) all = all + shared.of_warps[turn][w];
        shared.of_block[turn] = all;
    }
    __syncwarp();
    arrive();
    await();
    Part all{0, 0};
    for (int rank = 0; rank < CLUSTER; rank++) all = all + part_of(&shared.of_block[turn], rank);
    return all;
}

extern "C" __global__ void __cluster_dims__(1, 1, CLUSTER) __launch_bounds__(THREADS, EACH <= 40 ? 2 : 1) draw(
    const logit_t* logits, int stride, int vocab, const How* hows, long long* last, long long* out
) {
    __shared__ Shared shared;
    pdl_launch();
    pdl_wait();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = cluster_rank();
    const How how = hows[blockIdx.x];
    const logit_t* const row = logits + (size_t)blockIdx.x * stride;
    const int first = rank * SPAN + warp * 32 * EACH + lane;
    float weight[EACH], top = -INFINITY;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int i = first + e * 32;
        weight[e] = i < vocab ? value_of(row[i]) : -INFINITY;
        top = fmaxf(top, weight[e]);
    }
#pragma unroll
    for (int by = 16; by > 0; by /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, by));
    if (lane == 0) shared.tops[warp] = top;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) top = fmaxf(top, shared.tops[w]);
        shared.top = top;
    }
    __syncwarp();
    arrive();
    await();
    for (int other = 0; other < CLUSTER; other++) top = fmaxf(top, get(there(&shared.top, other)));
    auto weight_of = [&](float logit) { return exp2f((logit - top) * how.scale); };
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        weight[e] = weight_of(weight[e]);
        if (weight[e] < how.min_p) weight[e] = 0;
    }
#if FLOATS
    auto weight_at = [&](int place) { return __int_as_float(place); };
#else
    auto weight_at = [&](int place) { return weight_of(logit_at(place)); };
#endif

    int turn = 0;
    // The sum and the number of the weights above `limit`.
    auto above = [&](float limit) {
        Part x{0, 0};
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (weight[e] > limit) x.mass += weight[e], x.count++;
        turn ^= 1;
        return sum_of_all(x, shared, turn);
    };
    // Binary search for the smallest weight above which there are fewer than `most` weights, with a sum below `wanted`.
    auto search = [&](int most, float wanted) {
        int low = LOWEST, high = highest(top);
        while (low < high) {
            const int middle = (low + high) / 2;
            const Part x = above(weight_at(middle));
            if (x.count < most && x.mass < wanted) high = middle;
            else low = middle + 1;
        }
        return weight_at(high);
    };
    float limit = 0;       // weights above it are kept,
    int ties = 0;          // and the first `ties` of those that equal it
    float kept = 0;        // the sum of what top_k keeps
    if (how.top_k == 1) {
        limit = kept = 1, ties = 1;
    } else if (how.top_k < vocab) {
        limit = search(how.top_k, INFINITY);
        const Part x = above(limit);
        ties = how.top_k - x.count;
        kept = x.mass + ties * limit;
    } else if (how.top_p < 1) {
        kept = above(0).mass;
    }
    if (how.top_p < 1) {
        const float wanted = how.top_p * kept, least = limit;
        const float found = search(THREADS * CLUSTER * EACH + 1, wanted);
        if (found >= least) {
            limit = found;
            const float missing = wanted - above(limit).mass;
            const int enough = limit > 0 ? max(1, (int)fminf(ceilf(missing / limit), 1e9f)) : 0;
            ties = found > least || how.top_k >= vocab ? enough : min(ties, enough);
        }
    }

    // The sum of the weights above the limit and the number of those that equal it: of warp, block and cluster.
    Part own{0, 0};
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (weight[e] > limit) own.mass += weight[e];
        if (weight[e] == limit) own.count++;
    }
    turn ^= 1;
    sum_of_all(own, shared, turn);
    auto mass_of = [&](Part x) { return (double)fmaf(limit, (float)min(x.count, ties), x.mass); };
    Part before{0, 0}, all{0, 0};
    for (int other = 0; other < CLUSTER; other++) {
        if (other == rank) before = all;
        all = all + part_of(&shared.of_block[turn], other);
    }
    arrive();  // no block ends before all have read
    await();
    const double total = mass_of(all), mark = fmin(how.uniform, 1 - 1e-9) * total;
    if (!(total > 0)) {  // the logits have NaN
        if (rank == 0 && threadIdx.x == 0) out[blockIdx.x] = last[how.row] = 0;
        return;
    }
    Part in_block{0, 0};
    for (int w = 0; w < warp; w++) in_block = in_block + shared.of_warps[turn][w];
    Part here = before + in_block;
    const Part until = before + (in_block + shared.of_warps[turn][warp]);
    if (mass_of(here) > mark || mass_of(until) <= mark) return;  // another warp has the token
    int token = -1;
    bool found = false;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const bool tied = weight[e] == limit;
        const unsigned tied_lanes = __ballot_sync(~0u, tied);
        float mass = weight[e] > limit ? weight[e] : 0;
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            const float other = __shfl_up_sync(~0u, mass, by);
            if (lane >= by) mass += other;
        }
        const Part through{here.mass + mass, here.count + __popc(tied_lanes & (~0u >> (31 - lane)))};
        const bool stays = weight[e] > 0 && (weight[e] > limit || (tied && through.count <= ties));
        const unsigned candidates = __ballot_sync(~0u, stays);
        const unsigned reached = __ballot_sync(~0u, stays && mass_of(through) > mark);
        if (!found && candidates) token = e * 32 + (reached ? __ffs(reached) - 1 : 31 - __clz(candidates));
        found = found || reached;
        here.mass = __shfl_sync(~0u, through.mass, 31);
        here.count = __shfl_sync(~0u, through.count, 31);
    }
    if (lane == 0) out[blockIdx.x] = last[how.row] = max(first + token, 0);
}
