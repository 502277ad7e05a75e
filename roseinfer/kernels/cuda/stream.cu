// A matrix product of up to 8 rows, as fast as memory gives the weights: y = f(x W^T), W [outputs, INPUTS].
//
// A block makes tiles of 8 x TILES outputs, one after the other. One warp of it asks the copy engine for CHUNK inputs of
// a tile at a time, DEPTH of which are in flight, from before the kernel ahead has ended; each of the others has a share
// of every chunk. The matrix units take x as 16 rows of which 8 are used; which 8 of the 32 neighbouring inputs a lane
// holds is the same for x and W, so their order does not matter.
//
// NORM: x is first RMS-normalised with `gain`. The norm's factor is one a row, and is applied to the sums.
// GATED: W holds OUTPUTS gates, then what they multiply: y = silu(x G^T) (x U^T). ADD: y += residual. BIAS: y += bias.
// HELD: x stays in shared memory, else it is read for every tile.
#include "half.cuh"
#include "copy.cuh"
#include "bulk.cuh"
#include "mma.cuh"

#define THREADS (32 * WARPS)    // that multiply
#define CHUNKS (INPUTS / CHUNK)
#define STEPS (CHUNK / THREADS) // of 32 inputs, of a warp in a chunk
#define COLUMNS (8 * TILES)     // of a tile's sums
#define MADE (GATED ? COLUMNS / 2 : COLUMNS)  // of its outputs
#define STRIDE (TILES % 2 ? COLUMNS : COLUMNS + 8)  // lanes that write neighbouring rows hit different banks
#define EACH ((8 * MADE + THREADS - 1) / THREADS)   // outputs a thread finishes
#define PITCH (CHUNK + 32)      // of a row in shared memory: lanes that read neighbouring rows hit different banks
#if BF16
#define SHRINK 1.0f
#else
#define SHRINK 0.0625f  // a gain may carry an element of a row beyond the range of IEEE halves
#endif

static_assert(INPUTS % CHUNK == 0 && CHUNK % THREADS == 0 && CHUNK % 64 == 0 && (HELD || !NORM), "as the work is dealt");
static_assert(COLUMNS <= 32, "a lane asks for a row");

__device__ __forceinline__ unsigned scale(unsigned two, unsigned gains) {
    const float2 x = widen(two), by = widen(gains);
    return pair(x.x * by.x * SHRINK, x.y * by.y * SHRINK);
}
__device__ __forceinline__ float squares_of(unsigned two) {
    const float2 x = widen(two);
    return x.x * x.x + x.y * x.y;
}
// All warps but the one that asks.
__device__ __forceinline__ void sync_threads() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS + 32, 2) stream(
    const half_t* x, const half_t* gain, const half_t* weight, const half_t* bias, const half_t* residual, half_t* out,
    int rows
) {
    extern __shared__ __align__(128) half_t ring[];  // [DEPTH, COLUMNS, PITCH], then what is held of x
    __shared__ __align__(16) float found[2][WARPS][8 * STRIDE];
    __shared__ float squares[WARPS][8];
    __shared__ barrier_t full[DEPTH], empty[DEPTH];
    pdl_launch();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int tiles = ((int)(OUTPUTS / MADE) - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < DEPTH; slot++) prepare(&full[slot], 1), prepare(&empty[slot], WARPS);
        prepared();
    }
    __syncthreads();

    if (warp == WARPS) {
        const int row = GATED && lane >= MADE ? OUTPUTS + lane - MADE : lane;
        for (int turn = 0, slot = 0, phase = 1; turn < tiles; turn++) {
            const half_t* from = weight + ((blockIdx.x + (size_t)turn * gridDim.x) * MADE + row) * INPUTS;
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                await(&empty[slot], phase);
                if (lane == 0) expect(&full[slot], COLUMNS * CHUNK * sizeof(half_t));
                __syncwarp();
                if (lane < COLUMNS)
                    copy_bulk(ring + (slot * COLUMNS + lane) * PITCH, from + chunk * CHUNK, CHUNK * sizeof(half_t), &full[slot]);
                if (++slot == DEPTH) slot = 0, phase ^= 1;
            }
        }
        return;
    }

    // Of the 32 inputs of a step of this warp in a chunk, lane (g, t) holds 8 t to 8 t + 7 of row, or output, g.
    const int share = warp * STEPS * 32 + t * 8;
    const half_t* const x_at = x + (size_t)g * INPUTS + share;
    const bool mine = g < rows;
    pdl_wait();
    uint4* const held = (uint4*)(ring + DEPTH * COLUMNS * PITCH) + warp * rows * 4 + lane;
    if (HELD && mine) {
        float sum = 0;
#pragma unroll 8
        for (int s = 0; s < CHUNKS * STEPS; s++) {
            const int at = s / STEPS * CHUNK + s % STEPS * 32;
            uint4 v = load_fresh(x_at + at);
            if (NORM) {
                const uint4 by = *(const uint4*)(gain + share + at);
                sum += squares_of(v.x) + squares_of(v.y) + squares_of(v.z) + squares_of(v.w);
                v = make_uint4(scale(v.x, by.x), scale(v.y, by.y), scale(v.z, by.z), scale(v.w, by.w));
            }
            held[s * WARPS * rows * 4] = v;
        }
        if (NORM) {
            const unsigned four = 15u << lane / 4 * 4;
            sum += __shfl_xor_sync(four, sum, 1);
            sum += __shfl_xor_sync(four, sum, 2);
            if (t == 0) squares[warp][g] = sum;
        }
    }
    __syncwarp();

    int slot = 0, phase = 0;
    for (int turn = 0; turn < tiles; turn++) {
        const size_t tile = blockIdx.x + (size_t)turn * gridDim.x;
        float before[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = threadIdx.x + i * THREADS, row = at / MADE;
            before[i] = 0;
            if (ADD && row < rows) before[i] = read_fresh(residual + (size_t)row * OUTPUTS + tile * MADE + at % MADE);
        }
        float sums[TILES][4] = {};
        uint4 next[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) next[s] = !HELD && mine ? load_fresh(x_at + s * 32) : make_uint4(0, 0, 0, 0);
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            uint4 a[STEPS];
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                a[s] = next[s];
                if (HELD && mine) a[s] = held[(chunk * STEPS + s) * WARPS * rows * 4];
            }
            if (!HELD && chunk + 1 < CHUNKS)
#pragma unroll
                for (int s = 0; s < STEPS; s++)
                    if (mine) next[s] = load_fresh(x_at + (chunk + 1) * CHUNK + s * 32);
            await(&full[slot], phase);
            const half_t* const at = ring + (slot * COLUMNS + g) * PITCH + share;
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    const uint4 w = *(const uint4*)(at + i * 8 * PITCH + s * 32);
                    multiply(sums[i], a[s].x, a[s].y, w.x, w.y);
                    multiply(sums[i], a[s].z, a[s].w, w.z, w.w);
                }
            __syncwarp();
            if (lane == 0) arrive(&empty[slot]);
            if (++slot == DEPTH) slot = 0, phase ^= 1;
        }
        float* const own = found[turn % 2][warp];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            *(float2*)&own[g * STRIDE + i * 8 + t * 2] = make_float2(sums[i][0], sums[i][1]);
        sync_threads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = threadIdx.x + i * THREADS, row = at / MADE, column = at % MADE;
            if (row >= rows || at >= 8 * MADE) continue;
            float y = 0, up = 0, square = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                y += found[turn % 2][w][row * STRIDE + column];
                if (GATED) up += found[turn % 2][w][row * STRIDE + column + MADE];
                if (NORM) square += squares[w][row];
            }
            if (NORM) {
                const float by = rsqrtf(square / INPUTS + EPS) / SHRINK;
                y *= by, up *= by;
            }
            if (BIAS) {
                y += widen(bias[tile * MADE + column]).x;
                if (GATED) up += widen(bias[OUTPUTS + tile * MADE + column]).x;
            }
            if (GATED) y = y / (1 + __expf(-y)) * up;
            out[(size_t)row * OUTPUTS + tile * MADE + column] = narrow(y + before[i]);
        }
    }
}
