// A memory-bound GEMM of up to HEIGHT rows of x, 8 or 16, which streams the weights once: y = f(x W^T), W [outputs,
// INPUTS].
//
// A block computes tiles of 8 x TILES outputs, one after the other. One producer warp issues bulk copies of CHUNK
// inputs of a tile at a time into a ring buffer of DEPTH stages; it starts before the previous kernel has ended. The
// WARPS consumer warps each multiply a share of every chunk. The tensor cores take x as 16 rows, of which HEIGHT are used.
// Which 8 of 32 neighbouring inputs a lane holds is the same for x and W, so the order of the inputs does not matter.
//
// NORM: x is first RMS-normalised with `gain`. The norm's factor, one for each row, is applied to the sums.
// GATED: W holds OUTPUTS rows of gate, then as many of up: y = silu(x G^T) (x U^T).
// ADD: y += residual. BIAS: y += bias.
// HELD: x stays in shared memory (1) or in registers (2), else it is read for every tile (0).
// EIGHT: W is E4M3 with a scale for each row, and is multiplied as bfloat16.
#include "half.cuh"
#include "copy.cuh"
#include "bulk.cuh"
#include "mma.cuh"
#include "rows.cuh"

#define THREADS (32 * WARPS)    // of the consumer warps
#define CHUNKS (INPUTS / CHUNK)
#define PARTS (1 + EIGHT)       // runs of 8 inputs that a lane holds in a step: 16 bytes of the weight
#define STEP (32 * PARTS)       // inputs that a warp multiplies at once
#define STEPS (CHUNK / (WARPS * STEP))  // steps of a warp in a chunk
#define COLUMNS (8 * TILES)     // sums of a tile, for each row of x
#define MADE (GATED ? COLUMNS / 2 : COLUMNS)  // outputs of a tile, for each row of x
#define STRIDE (TILES % 2 ? COLUMNS : COLUMNS + 8)  // padded: lanes that write neighbouring rows hit different banks
#define EACH ((HEIGHT * MADE + THREADS - 1) / THREADS)  // outputs that a thread writes
#define PITCH (CHUNK + 32 * PARTS)  // of a row in shared memory, padded as STRIDE for lanes that read
#define SHARED (HELD == 1)
#define KEPT (HELD == 2)
#define RUNS (KEPT ? CHUNKS * STEPS * PARTS : 1)  // of 8 inputs that a lane keeps, of each of its rows
#define BLOCKS ((EIGHT || HEIGHT > 8) && !SHARED ? 1 : 2)  // blocks on an SM, as far as registers allow

static_assert(INPUTS % CHUNK == 0 && CHUNK % (WARPS * STEP) == 0 && CHUNK % 64 == 0 && (HELD || !NORM), "the tiling");
static_assert(HEIGHT > 8 || !KEPT, "registers hold 16 rows");
static_assert(COLUMNS <= 32, "a lane asks for a row");
static_assert(HEIGHT == 8 || HEIGHT == 16, "what a tensor core instruction takes");
static_assert(BF16 || !EIGHT, "E4M3 has the range of bfloat16 here");

#if EIGHT
typedef unsigned char weight_t;
#else
typedef half_t weight_t;
#endif

// The diagonals of x x^T, whose products are squares: of rows 0 to 7 in `upper`, of rows 8 to 15 in `lower`.
__device__ __forceinline__ void square_eight(float* upper, float* lower, uint4 x, uint4 below) {
    multiply_16(upper, x.x, below.x, x.y, below.y, x.x, x.y);
    multiply_16(lower, x.x, below.x, x.y, below.y, below.x, below.y);
    multiply_16(upper, x.z, below.z, x.w, below.w, x.z, x.w);
    multiply_16(lower, x.z, below.z, x.w, below.w, below.z, below.w);
}
// The first input of a lane's run `s` of 8, from its first of all.
__device__ __forceinline__ int run_at(int s) {
    return s / (STEPS * PARTS) * CHUNK + s / PARTS % STEPS * STEP + s % PARTS * 8;
}
// A barrier of the consumer warps.
__device__ __forceinline__ void sync_threads() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS + 32, BLOCKS) stream(
    const half_t* x, const half_t* gain, const weight_t* weight, const float* scales, const half_t* bias,
    const half_t* residual, half_t* out, int rows
) {
    extern __shared__ __align__(128) weight_t ring[];  // [DEPTH, COLUMNS, PITCH], then x or the gains
    __shared__ __align__(16) float found[2][WARPS][HEIGHT * STRIDE];
    __shared__ float squares[WARPS][HEIGHT];
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
            const weight_t* from = weight + ((blockIdx.x + (size_t)turn * gridDim.x) * MADE + row) * INPUTS;
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                await(&empty[slot], phase);
                if (lane == 0) expect(&full[slot], COLUMNS * CHUNK * sizeof(weight_t));
                __syncwarp();
                if (lane < COLUMNS)
                    copy_bulk(ring + (slot * COLUMNS + lane) * PITCH, from + chunk * CHUNK, CHUNK * sizeof(weight_t), &full[slot]);
                if (++slot == DEPTH) slot = 0, phase ^= 1;
            }
        }
        return;
    }

    // Of this warp's inputs in a step, lane (g, t) holds the t-th quarter, of rows g and g + 8 of x and of output g.
    const int share = warp * STEPS * STEP + t * 8 * PARTS;
    const half_t* const x_at = x + (size_t)g * INPUTS + share;
    uint4* const gains = (uint4*)(ring + DEPTH * COLUMNS * PITCH);
    if (KEPT && NORM) {
        for (int i = threadIdx.x; i < INPUTS / 8; i += THREADS) gains[i] = ((const uint4*)gain)[i];
        sync_threads();
    }
    pdl_wait();
    uint4* const held = gains + warp * rows * 4 + lane;
    uint4 kept[RUNS][HALVES] = {};
#pragma unroll
    for (int i = 0; i < RUNS * HALVES; i++) {
        const int s = i / HALVES, h = i % HALVES;
        if (KEPT && g + 8 * h < rows) kept[s][h] = load_fresh(x_at + h * 8 * INPUTS + run_at(s));
    }
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        if (!SHARED || g + 8 * h >= rows) continue;
        float sum = 0;
#pragma unroll 8
        for (int s = 0; s < CHUNKS * STEPS * PARTS; s++) {
            const int at = run_at(s);
            uint4 v = load_fresh(x_at + h * 8 * INPUTS + at);
            if (NORM) {
                const uint4 by = *(const uint4*)(gain + share + at);
                sum += squares_of(v.x) + squares_of(v.y) + squares_of(v.z) + squares_of(v.w);
                v = scale_eight(v, by);
            }
            held[s * WARPS * rows * 4 + h * 32] = ordered(v);
        }
        if (NORM) {
            const unsigned four = 15u << lane / 4 * 4;
            sum += __shfl_xor_sync(four, sum, 1);
            sum += __shfl_xor_sync(four, sum, 2);
            if (t == 0) squares[warp][g + 8 * h] = sum;
        }
    }
    __syncwarp();

    int slot = 0, phase = 0;
    float upper[4] = {}, lower[4] = {};
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
        uint4 next[STEPS * PARTS][HALVES];
#pragma unroll
        for (int i = 0; i < STEPS * PARTS * HALVES; i++) {
            const int s = i / HALVES, h = i % HALVES;
            const half_t* const at = x_at + h * 8 * INPUTS + run_at(s);
            next[s][h] = !HELD && g + 8 * h < rows ? load_fresh(at) : make_uint4(0, 0, 0, 0);
        }
#if KEPT
#pragma unroll
#endif
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            uint4 a[STEPS * PARTS][HALVES];
            if (KEPT && (NORM || EIGHT) && turn == 0)
#pragma unroll
                for (int i = 0; i < STEPS * PARTS; i++) {
                    const int s = (chunk * STEPS * PARTS + i) % RUNS;
                    uint4 x = kept[s][0], below = kept[s][HALVES - 1];
                    if (NORM) {
                        const uint4 by = gains[(share + run_at(s)) / 8];
                        square_eight(upper, lower, x, below);
                        x = scale_eight(x, by), below = scale_eight(below, by);
                    }
                    kept[s][0] = ordered(x), kept[s][HALVES - 1] = ordered(below);
                }
#pragma unroll
            for (int i = 0; i < STEPS * PARTS * HALVES; i++) {
                const int s = i / HALVES, h = i % HALVES;
                const half_t* const at = x_at + h * 8 * INPUTS + run_at(s);
                const bool mine = g + 8 * h < rows;
                a[s][h] = HELD ? next[s][h] : ordered(next[s][h]);
                if (KEPT) a[s][h] = kept[(chunk * STEPS * PARTS + s) % RUNS][h];
                if (SHARED && mine) a[s][h] = held[(chunk * STEPS * PARTS + s) * WARPS * rows * 4 + h * 32];
                if (!HELD && mine && chunk + 1 < CHUNKS) next[s][h] = load_fresh(at + (chunk + 1) * CHUNK);
            }
            await(&full[slot], phase);
            const weight_t* const at = ring + (slot * COLUMNS + g) * PITCH + share;
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    const uint4 w = *(const uint4*)(at + i * 8 * PITCH + s * STEP);
#pragma unroll
                    for (int part = 0; part < PARTS; part++) multiply_eight(sums[i], a[s * PARTS + part], w, part);
                }
            __syncwarp();
            if (lane == 0) arrive(&empty[slot]);
            if (++slot == DEPTH) slot = 0, phase ^= 1;
        }
        if (KEPT && NORM && turn == 0 && g / 2 == t) {
            squares[warp][g] = g % 2 ? upper[1] : upper[0];
            squares[warp][HEIGHT - 8 + g] = g % 2 ? lower[3] : lower[2];
        }
        float* const own = found[turn % 2][warp];
#pragma unroll
        for (int i = 0; i < TILES * HALVES; i++)
            *(float2*)&own[(g + i % HALVES * 8) * STRIDE + i / HALVES * 8 + t * 2] =
                make_float2(sums[i / HALVES][i % HALVES * 2], sums[i / HALVES][i % HALVES * 2 + 1]);
        sync_threads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = threadIdx.x + i * THREADS, row = at / MADE, column = at % MADE;
            if (row >= rows) continue;
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
            if (EIGHT) {
                y *= scales[tile * MADE + column];
                if (GATED) up *= scales[OUTPUTS + tile * MADE + column];
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
