// A mixture of experts for up to HEIGHT rows, 8 or 16, in one kernel that streams only the chosen experts' weights:
// out = x + sum over the chosen experts e of share_e * down_e(silu(gate_e(n)) * up_e(n)), n the RMS norm of x.
//
// There is one block on each of the GRID SMs, so that blocks can wait for each other. They compute, with a barrier of all
// blocks after each of the first two:
// - the router's logits, EACH experts a block; then every block chooses the experts and lists them;
// - gate and up, with SwiGLU, of the listed experts for all rows, 8 outputs at a time;
// - down, 16 outputs at a time, one expert after the other; of an expert, rows that have not chosen it count as zeros.
// One producer warp issues bulk copies of the weights into a ring buffer of DEPTH stages, from the first tile of gate and up
// to the last of down, without waiting for the second barrier. WARPS consumer warps each multiply a share of every stage.
//
// EIGHT: the experts' weights are E4M3 with a scale for each output, and are multiplied as bfloat16.
#include "half.cuh"
#include "copy.cuh"
#include "bulk.cuh"
#include "mma.cuh"
#include "rows.cuh"

#if EIGHT
typedef unsigned char weight_t;
#else
typedef half_t weight_t;
#endif
#define WARPS 8
#define THREADS (32 * WARPS)           // of the consumer warps
#define STEP 32                        // inputs that a warp multiplies at once
#define PITCH(chunk) ((chunk) + 32)    // of a row in shared memory, padded against bank conflicts
// Rows of down that one copy fetches, where they are neighbours and short, which copies are issued too slowly for. Lanes
// that read at the same time read rows of different copies, between which there is padding.
#define TOGETHER (EIGHT && FFN == DOWN_CHUNK ? 4 : 1)
#define STAGE (16 * PITCH(CHUNK > DOWN_CHUNK ? CHUNK : DOWN_CHUNK))
#define STEPS(chunk) ((chunk) / (WARPS * STEP))  // steps of a warp in a stage
#define RUNS (WIDTH / THREADS)         // of 8 inputs that a lane holds, of each of its rows
#define STRIDE 24                      // of a row of sums, padded
#define EACH ((EXPERTS + GRID - 1) / GRID)
#define OF_EXPERT (FFN / 8)            // tiles of gate and up

static_assert(WIDTH % CHUNK == 0 && CHUNK % (WARPS * STEP) == 0 && FFN % DOWN_CHUNK == 0 && DOWN_CHUNK % (WARPS * STEP) == 0, "");
static_assert(EXPERTS % 32 == 0 && WIDTH % 16 == 0 && FFN % 8 == 0, "");
static_assert(BF16 || !EIGHT, "E4M3 has the range of bfloat16 here");

// Eight neighbouring inputs of a weight.
__device__ __forceinline__ uint4 eight_at(const weight_t* at) {
#if EIGHT
    const uint2 eight = *(const uint2*)at;
    return make_uint4(eight.x, eight.y, 0, 0);
#else
    return *(const uint4*)at;
#endif
}

__device__ __forceinline__ void sync_threads() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
// The row of down, of the 16 of a tile, that is column `c` of the product `half` of 8 columns, and where it lies in a stage.
__device__ __forceinline__ int down_row(int c, int half) { return TOGETHER > 1 ? c % 4 * 4 + c / 4 + half * 2 : c + half * 8; }
__device__ __forceinline__ int down_at(int row) {
    return row / TOGETHER * (TOGETHER * DOWN_CHUNK + 32) + row % TOGETHER * DOWN_CHUNK;
}
// Its column among the sums of a tile.
__device__ __forceinline__ int down_column(int row) { return TOGETHER > 1 ? row % 4 / 2 * 8 + row % 2 * 4 + row / 4 : row; }
// A barrier of the consumer and the producer warps.
__device__ __forceinline__ void sync_all() { asm volatile("bar.sync 2, %0;" ::"n"(THREADS + 32) : "memory"); }
// A barrier of the consumer warps of all blocks; `arrivals` counts on from launch to launch.
__device__ __forceinline__ void sync_blocks(unsigned long long* arrivals) {
    sync_threads();
    if (threadIdx.x == 0) {
        unsigned long long ticket, seen;
        __threadfence();
        asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(ticket) : "l"(arrivals) : "memory");
        const unsigned long long all = (ticket / GRID + 1) * GRID;
        do asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(arrivals) : "memory");
        while (seen < all);
        __threadfence();
    }
    sync_threads();
}
__device__ __forceinline__ float load_float(const float* at) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(at));
    return v;
}
__device__ __forceinline__ float dot_two(unsigned a, unsigned b) {
    const float2 x = widen(a), y = widen(b);
    return x.x * y.x + x.y * y.y;
}
// A float's bits in the order of unsigned numbers.
__device__ __forceinline__ unsigned in_order(float x) {
    const unsigned bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_order(unsigned bits) {
    return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
}
// The sum over the lanes that hold the same row.
__device__ __forceinline__ float sum_of_four(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

struct Choice {
    float shares[HEIGHT][EXPERTS];  // of chosen experts
    unsigned rows[EXPERTS];         // bit r: row r has chosen the expert
    int list[EXPERTS], count;       // the chosen experts
};

// Choose the experts of `row`, by one warp.
__device__ __forceinline__ void choose(Choice& choice, const float* logits, int row, int lane) {
    float logit[EXPERTS / 32], total = 0;
    bool mine[EXPERTS / 32] = {};
    float largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < EXPERTS / 32; j++) largest = fmaxf(largest, logit[j] = load_float(logits + row * EXPERTS + j * 32 + lane));
    largest = from_order(__reduce_max_sync(~0u, in_order(largest)));
    for (int k = 0; k < TOP_K; k++) {
        float best = -INFINITY;
#pragma unroll
        for (int j = 0; j < EXPERTS / 32; j++)
            if (!mine[j]) best = fmaxf(best, logit[j]);
        const unsigned top = __reduce_max_sync(~0u, in_order(best));
        unsigned first = EXPERTS;
#pragma unroll
        for (int j = EXPERTS / 32 - 1; j >= 0; j--)
            if (!mine[j] && in_order(logit[j]) == top) first = j * 32 + lane;
        first = __reduce_min_sync(~0u, first);
#pragma unroll
        for (int j = 0; j < EXPERTS / 32; j++) mine[j] |= first == j * 32 + lane;
    }
#pragma unroll
    for (int j = 0; j < EXPERTS / 32; j++) {
        logit[j] = __expf(logit[j] - largest);
        if (!NORMALIZED || mine[j]) total += logit[j];
    }
    for (int by = 16; by; by /= 2) total += __shfl_xor_sync(~0u, total, by);
#pragma unroll
    for (int j = 0; j < EXPERTS / 32; j++) {
        if (!mine[j]) continue;
        choice.shares[row][j * 32 + lane] = logit[j] / total;
        atomicOr(&choice.rows[j * 32 + lane], 1u << row);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) experts(
    const half_t* x, const half_t* gain, const half_t* router, const weight_t* gate_up, const float* gate_up_scales,
    const weight_t* down, const float* down_scales, float* logits, half_t* gated, unsigned long long* arrivals,
    long long* tokens, half_t* out, int rows
) {
    extern __shared__ __align__(128) weight_t ring[];  // [DEPTH, STAGE], then x
    __shared__ __align__(16) float found[2][WARPS][HEIGHT * STRIDE];
    __shared__ float squares[WARPS][HEIGHT], dots[EACH][WARPS][HEIGHT], factors[HEIGHT];
    __shared__ barrier_t full[DEPTH], empty[DEPTH];
    __shared__ Choice choice;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, thread = threadIdx.x;
    if (thread == 0) {
        for (int slot = 0; slot < DEPTH; slot++) prepare(&full[slot], 1), prepare(&empty[slot], WARPS);
        prepared();
    }
    for (int e = thread; e < EXPERTS; e += THREADS + 32) choice.rows[e] = 0;
    __syncthreads();

    if (warp == WARPS) {
        const unsigned long long policy = once();
        sync_all();
        int slot = 0, phase = 1;
        const auto send = [&](const weight_t* from, int chunk, int chunks, int together) {
            for (int i = 0; i < chunks; i++) {
                await(&empty[slot], phase);
                if (lane == 0) expect(&full[slot], 16 * chunk * sizeof(weight_t));
                __syncwarp();
                if (lane < 16 / together)
                    copy_bulk_once(
                        ring + slot * STAGE + lane * PITCH(together * chunk), from + i * chunk,
                        together * chunk * sizeof(weight_t), &full[slot], policy
                    );
                if (++slot == DEPTH) slot = 0, phase ^= 1;
            }
        };
        for (int tile = blockIdx.x; tile < choice.count * OF_EXPERT; tile += GRID) {
            const int row = tile % OF_EXPERT * 8 + (lane < 8 ? lane : FFN + lane - 8);
            send(gate_up + ((size_t)choice.list[tile / OF_EXPERT] * 2 * FFN + row) * WIDTH, CHUNK, WIDTH / CHUNK, 1);
        }
        for (int tile = blockIdx.x; tile < WIDTH / 16; tile += GRID)
            for (int i = 0; i < choice.count; i++)
                send(
                    down + ((size_t)choice.list[i] * WIDTH + tile * 16 + lane * TOGETHER) * FFN, DOWN_CHUNK, FFN / DOWN_CHUNK,
                    TOGETHER
                );
        return;
    }

    // Of this warp's inputs in a step, lane (g, t) holds the t-th quarter, of rows g and g + 8 of x.
    const int share = warp * STEPS(CHUNK) * STEP + t * 8;
    const auto run_at = [&](int s) { return share + s / STEPS(CHUNK) * CHUNK + s % STEPS(CHUNK) * STEP; };
    uint4* const held = (uint4*)(ring + DEPTH * STAGE) + warp * rows * 4 + lane;
    uint4 routing[EACH][RUNS], gains[RUNS];
#pragma unroll
    for (int s = 0; s < RUNS; s++) {
        gains[s] = *(const uint4*)(gain + run_at(s));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int e = blockIdx.x + i * GRID;
            routing[i][s] = *(const uint4*)(router + (size_t)(e < EXPERTS ? e : 0) * WIDTH + run_at(s));
        }
    }
    pdl_wait();
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const bool mine = g + 8 * h < rows;
        uint4 v[RUNS];
        float square = 0, dot[EACH] = {};
#pragma unroll
        for (int s = 0; s < RUNS; s++)
            v[s] = mine ? load_fresh(x + (size_t)(g + 8 * h) * WIDTH + run_at(s)) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int s = 0; s < RUNS; s++) {
            square += squares_of(v[s].x) + squares_of(v[s].y) + squares_of(v[s].z) + squares_of(v[s].w);
            v[s] = scale_eight(v[s], gains[s]);
            if (mine) held[s * WARPS * rows * 4 + h * 32] = ordered(v[s]);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                dot[i] += dot_two(v[s].x, routing[i][s].x) + dot_two(v[s].y, routing[i][s].y) +
                          dot_two(v[s].z, routing[i][s].z) + dot_two(v[s].w, routing[i][s].w);
        }
        square = sum_of_four(square);
        if (t == 0) squares[warp][g + 8 * h] = square;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            dot[i] = sum_of_four(dot[i]);
            if (t == 0) dots[i][warp][g + 8 * h] = dot[i];
        }
    }
    sync_threads();
    if (thread < rows) {
        float square = 0;
        for (int w = 0; w < WARPS; w++) square += squares[w][thread];
        const float factor = factors[thread] = rsqrtf(square / WIDTH + EPS) / SHRINK;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float dot = 0;
            for (int w = 0; w < WARPS; w++) dot += dots[i][w][thread];
            if (blockIdx.x + i * GRID < EXPERTS) logits[thread * EXPERTS + blockIdx.x + i * GRID] = dot * factor;
        }
    }
    sync_blocks(arrivals);
    pdl_launch();  // not before: the next kernel's blocks could keep one of these from starting
    for (int row = warp; row < rows; row += WARPS) choose(choice, logits, row, lane);
    sync_threads();
    if (warp == 0) {
        int count = 0;
        for (int e = lane; e < EXPERTS; e += 32) {
            const unsigned chosen = __ballot_sync(~0u, choice.rows[e] != 0);
            if (choice.rows[e]) choice.list[count + __popc(chosen & ((1u << lane) - 1))] = e;
            count += __popc(chosen);
            if (blockIdx.x == 0) tokens[e] += __popc(choice.rows[e]);
        }
        if (lane == 0) choice.count = count;
    }
    sync_all();

    int slot = 0, phase = 0, turn = 0;
    for (int tile = blockIdx.x; tile < choice.count * OF_EXPERT; tile += GRID, turn ^= 1) {
        float sums[2][4] = {};
        for (int chunk = 0; chunk < WIDTH / CHUNK; chunk++) {
            uint4 a[STEPS(CHUNK)][HALVES];
#pragma unroll
            for (int i = 0; i < STEPS(CHUNK) * HALVES; i++) {
                const int s = i / HALVES, h = i % HALVES;
                a[s][h] = make_uint4(0, 0, 0, 0);
                if (g + 8 * h < rows) a[s][h] = held[(chunk * STEPS(CHUNK) + s) * WARPS * rows * 4 + h * 32];
            }
            await(&full[slot], phase);
            const weight_t* const at = ring + slot * STAGE + g * PITCH(CHUNK) + share;
#pragma unroll
            for (int s = 0; s < STEPS(CHUNK); s++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    multiply_eight(sums[i], a[s], eight_at(at + i * 8 * PITCH(CHUNK) + s * STEP), 0);
            __syncwarp();
            if (lane == 0) arrive(&empty[slot]);
            if (++slot == DEPTH) slot = 0, phase ^= 1;
        }
        float* const own = found[turn][warp];
#pragma unroll
        for (int i = 0; i < 2 * HALVES; i++)
            *(float2*)&own[(g + i % HALVES * 8) * STRIDE + i / HALVES * 8 + t * 2] =
                make_float2(sums[i / HALVES][i % HALVES * 2], sums[i / HALVES][i % HALVES * 2 + 1]);
        sync_threads();
        const int row = thread / 8, column = thread % 8, index = tile / OF_EXPERT, expert = choice.list[index];
        if (row < rows && choice.rows[expert] >> row & 1) {
            float y = 0, up = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                y += found[turn][w][row * STRIDE + column];
                up += found[turn][w][row * STRIDE + column + 8];
            }
            y *= factors[row], up *= factors[row];
            if (EIGHT) {
                const float* const scales = gate_up_scales + (size_t)expert * 2 * FFN + tile % OF_EXPERT * 8 + column;
                y *= scales[0], up *= scales[FFN];
            }
            y = y / (1 + __expf(-y)) * up * choice.shares[row][expert];
            gated[((size_t)index * rows + row) * FFN + tile % OF_EXPERT * 8 + column] = narrow(y);
        }
    }
    sync_blocks(arrivals);

    const int down_share = warp * STEPS(DOWN_CHUNK) * STEP + t * 8, chunks = choice.count * (FFN / DOWN_CHUNK);
    for (int tile = blockIdx.x; tile < WIDTH / 16; tile += GRID, turn ^= 1) {
        float sums[2][4] = {};
        uint4 next[STEPS(DOWN_CHUNK)][HALVES];
        float next_scales[2][2] = {};
        const auto load = [&](int chunk) {
            const int index = chunk / (FFN / DOWN_CHUNK);
            const unsigned chosen = choice.rows[choice.list[index]];
            const half_t* const at = gated + ((size_t)index * rows + g) * FFN + chunk % (FFN / DOWN_CHUNK) * DOWN_CHUNK + down_share;
#pragma unroll
            for (int i = 0; i < STEPS(DOWN_CHUNK) * HALVES; i++) {
                const int s = i / HALVES, h = i % HALVES;
                next[s][h] = make_uint4(0, 0, 0, 0);
                if (chosen >> (g + 8 * h) & 1) next[s][h] = load_fresh(at + h * 8 * FFN + s * STEP);
            }
            const float* const scales_at = down_scales + (size_t)choice.list[index] * WIDTH + tile * 16;
#pragma unroll
            for (int i = 0; EIGHT && i < 4; i++) next_scales[i / 2][i % 2] = scales_at[down_row(t * 2 + i % 2, i / 2)];
        };
        load(0);
        for (int chunk = 0; chunk < chunks; chunk++) {
            uint4 a[STEPS(DOWN_CHUNK)][HALVES];
#pragma unroll
            for (int i = 0; i < STEPS(DOWN_CHUNK) * HALVES; i++)
                a[i / HALVES][i % HALVES] = ordered(next[i / HALVES][i % HALVES]);
            float scales[2][2], scaled[2][4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) scales[i / 2][i % 2] = next_scales[i / 2][i % 2];
            if (chunk + 1 < chunks) load(chunk + 1);
            await(&full[slot], phase);
            const weight_t* const at = ring + slot * STAGE + down_share;
#pragma unroll
            for (int s = 0; s < STEPS(DOWN_CHUNK); s++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    multiply_eight(EIGHT ? scaled[i] : sums[i], a[s], eight_at(at + down_at(down_row(g, i)) + s * STEP), 0);
#pragma unroll
            for (int i = 0; EIGHT && i < 8; i++)
                sums[i / 4][i % 4] += scaled[i / 4][i % 4] * scales[i / 4][i % 2];
            __syncwarp();
            if (lane == 0) arrive(&empty[slot]);
            if (++slot == DEPTH) slot = 0, phase ^= 1;
        }
        float* const own = found[turn][warp];
#pragma unroll
        for (int i = 0; i < 2 * HALVES; i++)
            *(float2*)&own[(g + i % HALVES * 8) * STRIDE + i / HALVES * 8 + t * 2] =
                make_float2(sums[i / HALVES][i % HALVES * 2], sums[i / HALVES][i % HALVES * 2 + 1]);
        sync_threads();
        const int row = thread / 16, at = tile * 16 + thread % 16;
        if (row < rows) {
            float y = read_fresh(x + (size_t)row * WIDTH + at);
#pragma unroll
            for (int w = 0; w < WARPS; w++) y += found[turn][w][row * STRIDE + down_column(thread % 16)];
            out[(size_t)row * WIDTH + at] = narrow(y);
        }
    }
}
