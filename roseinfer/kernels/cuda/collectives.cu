// Collectives of a tensor-parallel model, by reading peer memory over NVLink.
//
// Every rank has written its partial result to memory that its peers can read, and runs this kernel. A block first
// signals to the same block of every peer that its rank's part is there, and waits for their signals (a barrier between
// the ranks). Then it reads all parts in the order of the ranks, so that every rank has bitwise the same sums. That
// memory is written again only after the next barrier, which is for the other buffer: see collectives.py. Where the
// host has set `alone`, because a peer is missing, no block waits, and results are invalid.
//
// SUM: out += the sum of all parts. BROADCAST: out = rank 0's part. GATHER: on rank 0, out = all parts side by side.
// NORM: after SUM also `normed`, the RMS norm of a row with `gain`.
#include "half.cuh"
#include "copy.cuh"

#define SUM (MODE == 0)
#define BROADCAST (MODE == 1)
#define GATHER (MODE == 2)
#define EIGHTS (WIDTH / 8)

// Load from a peer's memory, not from a cache that may be stale.
__device__ __forceinline__ uint4 load_peer(const half_t* at) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}

// The barrier: this rank's part is written; returns when all peers' parts are. `signals[r]`: memory of rank r, [blocks,
// RANKS]; `meetings`: this rank's count of barriers for each block; `alone`: set by the host to stop waiting.
__device__ __forceinline__ void meet(unsigned* const* signals, unsigned* meetings, const volatile int* alone) {
    __shared__ unsigned number;
    if (threadIdx.x == 0) number = ++meetings[blockIdx.x];
    __syncthreads();
    const int peer = threadIdx.x;
    if (peer < RANKS && peer != RANK) {
        unsigned* const theirs = signals[peer] + blockIdx.x * RANKS + RANK;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(number) : "memory");
        const unsigned* const mine = signals[RANK] + blockIdx.x * RANKS + peer;
        for (unsigned looks = 1;; looks++) {
            unsigned seen;
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine) : "memory");
            if ((int)(seen - number) >= 0 || (looks % 4096 == 0 && *alone)) break;
        }
    }
    __syncthreads();
}

__device__ __forceinline__ uint4 sum_of(const half_t* const* parts, size_t at, uint4 before) {
    const Eight old(before);
    float sum[8];
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = old.at[i];
    uint4 part[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; r++) part[r] = load_peer(parts[r] + at);
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
        const Eight more(part[r]);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += more.at[i];
    }
    return make_uint4(pair(sum[0], sum[1]), pair(sum[2], sum[3]), pair(sum[4], sum[5]), pair(sum[6], sum[7]));
}

extern "C" __global__ void __launch_bounds__(THREADS) collective(
    const half_t* const* parts, unsigned* const* signals, unsigned* meetings, half_t* out, const half_t* gain,
    half_t* normed, const int* alone, int rows
) {
    pdl_launch();
    pdl_wait();
    meet(signals, meetings, alone);
#if GATHER
    // A row of `out` has VOCABULARY elements. A row of a part has WIDTH, of which SHARE are used, fewer in the last
    // part.
    const size_t threads = (size_t)gridDim.x * THREADS, first = blockIdx.x * THREADS + threadIdx.x;
    constexpr int each = SHARE % 8 == 0 && VOCABULARY % 8 == 0 ? 8 : 1, of_part = SHARE / each;
    for (size_t i = first; RANK == 0 && i < (size_t)rows * RANKS * of_part; i += threads) {
        const int row = i / (RANKS * of_part), rank = i / of_part % RANKS, column = i % of_part * each;
        if (rank * SHARE + column >= VOCABULARY) continue;
        const half_t* const from = parts[rank] + (size_t)row * WIDTH + column;
        half_t* const to = out + (size_t)row * VOCABULARY + rank * SHARE + column;
        if (each == 8) *(uint4*)to = load_peer(from);
        else *to = *(const volatile half_t*)from;
    }
#elif NORM
    __shared__ float squares[THREADS / 32];
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        uint4 found[(EIGHTS + THREADS - 1) / THREADS];
        float square = 0;
#pragma unroll
        for (int i = 0; i < (EIGHTS + THREADS - 1) / THREADS; i++) {
            const int column = threadIdx.x + i * THREADS;
            if (column >= EIGHTS) continue;
            const size_t at = (size_t)row * WIDTH + column * 8;
            found[i] = sum_of(parts, at, load_fresh(out + at));
            *(uint4*)(out + at) = found[i];
            const Eight x(found[i]);
#pragma unroll
            for (int j = 0; j < 8; j++) square += x.at[j] * x.at[j];
        }
#pragma unroll
        for (int step = 16; step; step /= 2) square += __shfl_xor_sync(~0u, square, step);
        if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
        __syncthreads();
        square = 0;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) square += squares[w];
        const float by = rsqrtf(square / WIDTH + EPS);
#pragma unroll
        for (int i = 0; i < (EIGHTS + THREADS - 1) / THREADS; i++) {
            const int column = threadIdx.x + i * THREADS;
            if (column >= EIGHTS) continue;
            const Eight x(found[i]), gains(*(const uint4*)(gain + column * 8));
            float y[8];
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = x.at[j] * by * gains.at[j];
            *(uint4*)(normed + (size_t)row * WIDTH + column * 8) =
                make_uint4(pair(y[0], y[1]), pair(y[2], y[3]), pair(y[4], y[5]), pair(y[6], y[7]));
        }
        __syncthreads();
    }
#else
    const size_t count = (size_t)rows * EIGHTS;
    for (size_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS)
        *(uint4*)(out + i * 8) = BROADCAST ? load_peer(parts[0] + i * 8) : sum_of(parts, i * 8, load_fresh(out + i * 8));
#endif
}
