// Decode attention over the paged KV cache, and the append of the new token's key and value. A block has one query head
// of one request, and one split of its cached tokens.

#include "half.cuh"
#include "attend.cuh"

#define PASS (WARPS * UNROLL * GROUPS)  // tokens that a block takes at a time

extern "C" __global__ void __launch_bounds__(32 * WARPS) paged_decode(
    const half_t* q, const half_t* k, const half_t* v, int q_stride, int k_stride, int v_stride,
    half_t* keys, half_t* values, const int* table, int table_stride, const int* rows, const int* lengths,
    void* out, float* lse
) {
    __shared__ Shared shared;
    pdl_launch();
    const int index = blockIdx.x, head = blockIdx.y, split = blockIdx.z;
    const int kv_head = head / (HEADS / KV_HEADS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = lane % LANES * 8;
    const Cache cache{keys, values, table + (size_t)rows[index] * table_stride};
    const int cached = max(lengths[index] - 1, 0);
    const int share = ((cached + SPLITS - 1) / SPLITS + PASS - 1) / PASS * PASS;
    const int begin = split * share, end = min(begin + share, cached);
    size_t places[UNROLL];
    Tokens tokens;
    find(places, cache, kv_head, begin + warp * UNROLL * GROUPS, end, lane);
    tokens.load(cache, places, begin + warp * UNROLL * GROUPS, end, lane);

    pdl_wait();
    const Eight query(*(const uint4*)(q + (size_t)index * q_stride + head * DIM + part));
    float scaled[8];
#pragma unroll
    for (int i = 0; i < 8; i++) scaled[i] = query.at[i] * (1.4426950408889634f * rsqrtf((float)DIM));
    Softmax state{-INFINITY, 0, {}};
    if (split == 0 && warp == 0) {
        const uint4 key = *(const uint4*)(k + (size_t)index * k_stride + kv_head * DIM + part);
        const uint4 value = *(const uint4*)(v + (size_t)index * v_stride + kv_head * DIM + part);
        const bool append = head % (HEADS / KV_HEADS) == 0 && lengths[index] > 0;
        accumulate_new(state, scaled, key, value, cache, cached, kv_head, append, lane);
    }
    attend(state, scaled, cache, kv_head, begin + warp * UNROLL * GROUPS, end, PASS, tokens, lane);
    float own_lse;
    const float result = merge(shared, state, warp, lane, own_lse);
    const size_t at = ((size_t)index * HEADS + head) * SPLITS + split;
    if (threadIdx.x < DIM) {
        if (SPLITS == 1) ((half_t*)out)[at * DIM + threadIdx.x] = narrow(result);
        else ((float*)out)[at * DIM + threadIdx.x] = result;
    }
    if (SPLITS > 1 && threadIdx.x == 0) lse[at] = own_lse;
}
