// A layer of GPT-2 for ROWS decode rows (one new token for each request), in two kernels: `attention` and `mlp`.
//
// Thread blocks form clusters of CLUSTER. Each cluster has a head, or a share of the MLP's hidden units, to itself, and
// its blocks exchange intermediate results through distributed shared memory. A cluster writes its contribution to the
// residual stream as a partial sum, `[ROWS, WIDTH]` float32, and the next kernel adds these up. So there is no barrier
// across clusters but the end of a kernel, and loads of weights and cached tokens start before the previous kernel
// ends.
#include "half.cuh"
#include "copy.cuh"
#include "attend.cuh"
#include "cluster.cuh"
#include "tiles.cuh"

#define THREADS (32 * WARPS)
#define SHARE (WIDTH / CLUSTER)  // columns of the residual stream that a block adds up, and that it computes
#define TILES (WIDTH / 256)      // tiles of 8 outputs of a warp, and blocks of 32 inputs
#define MOST_PARTS 16            // partial sums at most
#define PAD 32  // halves after a row: lanes that read neighbouring rows hit different banks

static_assert(WARPS == CLUSTER, "a warp writes to the block of its number");
static_assert(DIM == 64 && HEADS <= MOST_PARTS && ROWS <= WARPS && INNER == 4 * WIDTH, "the tiling");

// Wait for all asynchronous copies of this thread.
__device__ __forceinline__ void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ float4 read_parts(const float* at) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at));
    return v;
}
__device__ __forceinline__ float4 read_four(const half_t* at) {
    unsigned low, high;
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "l"(at));
    const float2 a = widen(low), b = widen(high);
    return make_float4(a.x, a.y, b.x, b.y);
}
__device__ __forceinline__ float read_one(const half_t* at) { return widen(*at).x; }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// The residual stream `x` in a block's shared memory, the layer norm's parameters, and its result `normed`.
struct Stream {
    uint4 gain[WIDTH / 8], shift[WIDTH / 8];
    float4 sums[WARPS][ROWS][SHARE / 4];
    float x[ROWS][WIDTH];
    half_t normed[ROWS][WIDTH + PAD];
};

// Results of the previous kernel: `x` `[ROWS, WIDTH]`, and `count` partial sums with the bias that belongs to them.
struct Before {
    const half_t* x;
    const half_t* bias;
    const float* parts;
    int count;
};

// Waits for the previous kernel's end and adds up its results. Every block of the cluster adds up its share of the
// columns and sends it to all blocks; the first cluster writes the sum to `kept`.
__device__ __forceinline__ void gather(
    Stream& stream, const Before& before, half_t* kept, const half_t* gain, const half_t* shift, int rank
) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = rank * SHARE + lane * 4;
    const bool inside = lane < SHARE / 4;
    for (int i = threadIdx.x; i < WIDTH / 8; i += THREADS) {
        copy(&stream.gain[i], gain + i * 8);
        copy(&stream.shift[i], shift + i * 8);
    }
    float4 bias = make_float4(0, 0, 0, 0), x[ROWS];
    if (inside && before.count) bias = read_four(before.bias + column);
    arrive();  // this block has started
    pdl_wait();
    if (inside) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float4 sum = make_float4(0, 0, 0, 0);
            x[row] = read_four(before.x + row * WIDTH + column);
#pragma unroll
            for (int i = 0; i < MOST_PARTS / WARPS; i++) {
                const int part = warp + i * WARPS;
                if (part < before.count) {
                    const float4 v = read_parts(before.parts + (part * ROWS + row) * WIDTH + column);
                    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
                }
            }
            stream.sums[warp][row][lane] = sum;
        }
    }
    copied();
    __syncthreads();
    await();  // all blocks of the cluster have
    if (inside) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float4 sum = make_float4(x[row].x + bias.x, x[row].y + bias.y, x[row].z + bias.z, x[row].w + bias.w);
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                const float4 v = stream.sums[i][row][lane];
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            const uint2 half = make_uint2(pair(sum.x, sum.y), pair(sum.z, sum.w));
            const float2 a = widen(half.x), b = widen(half.y);
            put(there(&stream.x[row][column], warp), make_float4(a.x, a.y, b.x, b.y));
            if (blockIdx.x < CLUSTER && warp == 0) *(uint2*)(kept + row * WIDTH + column) = half;
        }
    }
    arrive();
    await();
}

// Layer norm, a warp for each row.
__device__ __forceinline__ void normalise(Stream& stream) {
    const int row = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row < ROWS) {
        float at[TILES][8], sum = 0, squares = 0;
#pragma unroll
        for (int c = 0; c < TILES; c++) {
            const float4* from = (const float4*)&stream.x[row][c * 256 + lane * 8];
            const float4 low = from[0], high = from[1];
            const float eight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            float part = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) part += at[c][i] = eight[i];
            sum += part;
        }
        const float mean = warp_sum(sum) / WIDTH;
#pragma unroll
        for (int c = 0; c < TILES; c++) {
            float part = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                at[c][i] -= mean;
                part += at[c][i] * at[c][i];
            }
            squares += part;
        }
        const float scale = rsqrtf(warp_sum(squares) / WIDTH + (float)EPS);
#pragma unroll
        for (int c = 0; c < TILES; c++) {
            const Eight gain(stream.gain[c * 32 + lane]), shift(stream.shift[c * 32 + lane]);
            float y[8];
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = at[c][i] * scale * gain.at[i] + shift.at[i];
            *(uint4*)&stream.normed[row][c * 256 + lane * 8] =
                make_uint4(pair(y[0], y[1]), pair(y[2], y[3]), pair(y[4], y[5]), pair(y[6], y[7]));
        }
    }
    __syncthreads();
}

// All-gather within the cluster: every block's `own` goes to `all` of every block. Each warp writes to one block, as
// stores to neighbouring addresses of one block are combined.
template <int OWN>
__device__ __forceinline__ void share(half_t* all, int stride, const half_t (&own)[ROWS][OWN], int rank) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    for (int n = lane; n < ROWS * OWN / 2; n += 32) {
        const int row = n / (OWN / 2), two = n % (OWN / 2) * 2;
        put(there(&all[row * stride + rank * OWN + two], warp), *(const unsigned*)&own[row][two]);
    }
    arrive();
    await();
}

// Writes the cluster's partial sum of the residual stream: warps 2i and 2i + 1 have half of the inputs each.
__device__ __forceinline__ void leave(float* parts, int part, const float (*found)[ROWS][TILES * 8], int rank) {
    __syncthreads();
    for (int n = threadIdx.x; n < ROWS * SHARE; n += THREADS) {
        const int row = n / SHARE, column = n % SHARE, warp = column / (TILES * 8) * 2, at = column % (TILES * 8);
        parts[(part * ROWS + row) * WIDTH + rank * SHARE + column] = found[warp][row][at] + found[warp + 1][row][at];
    }
}

// The merged softmax state of some warps for a row: see Softmax.
struct __align__(8) Found {
    float accumulator[DIM], running_max, running_sum;
};

struct AttentionShared {
    Stream stream;
    __align__(16) half_t qkv[ROWS][3 * DIM];
    __align__(16) half_t attended[ROWS][DIM + PAD];
    __align__(16) half_t own[ROWS][3 * DIM / CLUSTER];
    union {
        float qkv_found[WARPS][ROWS][3 * DIM / CLUSTER];
        float out_found[WARPS][ROWS][TILES * 8];
    };
    Found by_warp[WARPS], by_block[CLUSTER][ROWS];
};

// One head for each cluster: layer norm, QKV projection, attention over the cached tokens and the new one, which is
// appended to the cache, and the head's partial sum of the output projection.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2) attention(
    const half_t* x, const half_t* bias_before, const float* parts_before, int count_before, half_t* kept,
    const half_t* gain, const half_t* shift, const half_t* qkv_weight, const half_t* qkv_bias,
    const half_t* out_weight, half_t* keys, half_t* values, const int* table, int table_stride, const int* rows,
    const int* lengths, float* parts
) {
    constexpr int OUTPUTS = 3 * DIM / CLUSTER, PER_ROW = WARPS / ROWS, SPAN = UNROLL * GROUPS;
    extern __shared__ uint4 memory[];
    AttentionShared& shared = *(AttentionShared*)memory;
    pdl_launch();
    const int rank = cluster_rank(), head = blockIdx.x / CLUSTER;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    Tiles<OUTPUTS / 8, TILES> qkv_tiles;
    Tiles<TILES, 1> out_tiles;
#pragma unroll
    for (int i = 0; i < OUTPUTS / 8; i++) {
        const int output = rank * OUTPUTS + i * 8 + g, line = output / DIM * WIDTH + head * DIM + output % DIM;
        qkv_tiles.load(i, qkv_weight + (size_t)line * WIDTH + warp * SHARE + t * 8);
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const int line = rank * SHARE + warp / 2 * TILES * 8 + i * 8 + g;
        out_tiles.load(i, out_weight + (size_t)line * WIDTH + head * DIM + warp % 2 * 32 + t * 8);
    }
    const int output = rank * OUTPUTS + threadIdx.x % OUTPUTS;
    const float bias = read_one(qkv_bias + output / DIM * WIDTH + head * DIM + output % DIM);
    // The cached tokens of a row are split among PER_ROW warps of every block; the remaining warps have none.
    const int row = warp % ROWS, slot = rank * PER_ROW + warp / ROWS;
    const bool busy = warp / ROWS < PER_ROW;
    const Cache cache{keys, values, table + (size_t)rows[row] * table_stride};
    const int length = lengths[row], cached = max(length - 1, 0);
    const int begin = slot * SPAN, end = busy ? cached : 0;
    size_t places[UNROLL];
    Tokens tokens;
    find(places, cache, head, begin, end, lane);
    tokens.load(cache, places, begin, end, lane);

    gather(shared.stream, {x, bias_before, parts_before, count_before}, kept, gain, shift, rank);
    normalise(shared.stream);
    qkv_tiles.times(shared.qkv_found[warp], &shared.stream.normed[0][warp * SHARE], WIDTH + PAD);
    __syncthreads();
    if (threadIdx.x < ROWS * OUTPUTS) {
        const int r = threadIdx.x / OUTPUTS, at = threadIdx.x % OUTPUTS;
        float y = bias;
#pragma unroll
        for (int i = 0; i < WARPS; i++) y += shared.qkv_found[i][r][at];
        shared.own[r][at] = narrow(y);
    }
    share(shared.qkv[0], 3 * DIM, shared.own, rank);

    const half_t* mine = shared.qkv[row] + lane % LANES * 8;
    const Eight query(*(const uint4*)mine);
    float scaled[8];
#pragma unroll
    for (int i = 0; i < 8; i++) scaled[i] = query.at[i] * (1.4426950408889634f * rsqrtf((float)DIM));
    Softmax state{-INFINITY, 0, {}};
    if (busy && slot == 0) {
        const uint4 key = *(const uint4*)(mine + DIM), value = *(const uint4*)(mine + 2 * DIM);
        accumulate_new(state, scaled, key, value, cache, cached, head, length > 0, lane);
    }
    attend(state, scaled, cache, head, begin, end, CLUSTER * PER_ROW * SPAN, tokens, lane);
    merge_groups(state);
    if (lane < LANES) {
#pragma unroll
        for (int i = 0; i < 8; i++) shared.by_warp[warp].accumulator[lane * 8 + i] = state.accumulator[i];
        shared.by_warp[warp].running_max = state.running_max;
        shared.by_warp[warp].running_sum = state.running_sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float running_max = -INFINITY, running_sum = 0;
        float2 accumulator = make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < PER_ROW; i++) running_max = fmaxf(running_max, shared.by_warp[i * ROWS + r].running_max);
#pragma unroll
        for (int i = 0; i < PER_ROW; i++) {
            const Found& found = shared.by_warp[i * ROWS + r];
            const float rescale = running_max == -INFINITY ? 0 : exp2f(found.running_max - running_max);
            const float2 two = *(const float2*)&found.accumulator[lane * 2];
            running_sum += found.running_sum * rescale;
            accumulator.x += two.x * rescale;
            accumulator.y += two.y * rescale;
        }
        put(there(&shared.by_block[rank][r].accumulator[lane * 2], warp), accumulator);
        if (lane == 0) put(there(&shared.by_block[rank][r].running_max, warp), make_float2(running_max, running_sum));
    }
    arrive();
    await();
    for (int n = threadIdx.x; n < ROWS * DIM; n += THREADS) {
        const int r = n / DIM, d = n % DIM;
        float running_max = -INFINITY, running_sum = 0, accumulator = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) running_max = fmaxf(running_max, shared.by_block[i][r].running_max);
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            const float rescale = exp2f(shared.by_block[i][r].running_max - running_max);  // the new token is there: `running_max` is finite
            running_sum += shared.by_block[i][r].running_sum * rescale;
            accumulator += shared.by_block[i][r].accumulator[d] * rescale;
        }
        shared.attended[r][d] = narrow(accumulator / running_sum);
    }
    __syncthreads();
    out_tiles.times(shared.out_found[warp], &shared.attended[0][warp % 2 * 32], DIM + PAD);
    leave(parts, head, shared.out_found, rank);
}

struct MlpShared {
    Stream stream;
    __align__(16) half_t hidden[ROWS][INNER / MOST_PARTS + PAD];
    __align__(16) half_t own[ROWS][TILES * 8];
    float found[WARPS][ROWS][TILES * 8];
};

// A share of the hidden units for each cluster: layer norm, up projection, GELU (the tanh form, Hendrycks and Gimpel
// 2016), and the partial sum of the down projection.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2) mlp(
    const half_t* x, const half_t* bias_before, const float* parts_before, int count_before, half_t* kept,
    const half_t* gain, const half_t* shift, const half_t* up_weight, const half_t* up_bias,
    const half_t* down_weight, float* parts
) {
    constexpr int UNITS = INNER / MOST_PARTS, OUTPUTS = UNITS / CLUSTER;
    extern __shared__ uint4 memory[];
    MlpShared& shared = *(MlpShared*)memory;
    pdl_launch();
    const int rank = cluster_rank(), cluster = blockIdx.x / CLUSTER;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    Tiles<TILES, TILES> up, down;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const int line = cluster * UNITS + rank * OUTPUTS + i * 8 + g;
        up.load(i, up_weight + (size_t)line * WIDTH + warp * SHARE + t * 8);
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const int line = rank * SHARE + warp / 2 * TILES * 8 + i * 8 + g;
        down.load(i, down_weight + (size_t)line * INNER + cluster * UNITS + warp % 2 * (UNITS / 2) + t * 8);
    }
    const float bias = read_one(up_bias + cluster * UNITS + rank * OUTPUTS + threadIdx.x % OUTPUTS);

    gather(shared.stream, {x, bias_before, parts_before, count_before}, kept, gain, shift, rank);
    normalise(shared.stream);
    up.times(shared.found[warp], &shared.stream.normed[0][warp * SHARE], WIDTH + PAD);
    __syncthreads();
    if (threadIdx.x < ROWS * OUTPUTS) {
        const int r = threadIdx.x / OUTPUTS, at = threadIdx.x % OUTPUTS;
        float y = bias;
#pragma unroll
        for (int i = 0; i < WARPS; i++) y += shared.found[i][r][at];
        const float inner = 0.7978845608028654f * (y + 0.044715f * y * y * y);
        shared.own[r][at] = narrow(y / (1 + __expf(-2 * inner)));
    }
    share(shared.hidden[0], UNITS + PAD, shared.own, rank);
    down.times(shared.found[warp], &shared.hidden[0][warp % 2 * (UNITS / 2)], UNITS + PAD);
    leave(parts, cluster, shared.found, rank);
}
