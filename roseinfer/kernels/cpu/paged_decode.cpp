// Decode attention over the paged KV cache (CPU).
//
// A job is a request and a group of neighbouring KV heads. It first stores the new key and value, then reads the
// request's rows in place: scores, softmax in float32, weighted sum. Nothing is gathered.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "vec.h"

namespace {

constexpr int TILE = W;  // tokens that are read at a time: a vector of scores

// KV heads per job: as many as leave two jobs for each thread (all with one thread), so that more of a token's row is
// read at once.
int heads_per_job(int64_t requests, int kv_heads) {
    const int threads = omp_get_max_threads();
    const int64_t wanted = threads > 1 ? 2 * threads : 1;
    int parts = 1;
    while (parts < kv_heads && (requests * parts < wanted || kv_heads % parts)) ++parts;
    return kv_heads / parts;
}

// Softmax in place of `length` scores; the rest of the last vector is overwritten.
void softmax(float* score, int64_t length) {
    const int64_t end = up(length, W);
    const float top = largest(score, length, end);
    vec total = {};
    for (int64_t t = 0; t < end; t += W) {
        const vec weight = exp(load(score + t) - top);
        store(score + t, weight);
        total += weight;
    }
    const float scale = 1 / sum(total);
    for (int64_t t = 0; t < end; t += W) store(score + t, load(score + t) * scale);
}

#ifdef __AVX512BF16__
template <typename T>
using Query = T;  // the bf16 dot product takes it unconverted
#else
template <typename T>
using Query = float;  // converted once, not for every key
#endif

// Adds to sum[i] the elementwise products of `dim` elements of a query and of keys[i]; the lanes are summed later.
template <typename Q, typename T>
inline void add_products(vec (&sum)[TILE], const Q* query, const T* const* keys, int64_t at, int dim) {
    for (int d = 0; d < dim; d += W) {
        const vec part = load(query + d);
        for (int i = 0; i < TILE; ++i) sum[i] += part * load(keys[i] + at + d);
    }
}

#ifdef __AVX512BF16__
inline void add_products(vec (&sum)[TILE], const bf16* query, const bf16* const* keys, int64_t at, int dim) {
    const int pairs = dim / (2 * W) * 2 * W;
    const auto pair = [](const bf16* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); };
    __m512 total[TILE] = {};
    for (int d = 0; d < pairs; d += 2 * W) {
        const __m512bh part = pair(query + d);
        for (int i = 0; i < TILE; ++i) total[i] = _mm512_dpbf16_ps(total[i], part, pair(keys[i] + at + d));
    }
    for (int i = 0; i < TILE; ++i) sum[i] = reinterpret_cast<vec>(total[i]);
    if (pairs < dim) add_products<bf16, bf16>(sum, query + pairs, keys, at + pairs, dim - pairs);
}
#endif

// Adds `count` values to R weighted sums of V vectors, each with its own weights.
template <int R, int V, typename T>
void add_weighted(float* to, int dim, const float* weights, int64_t weights_stride, const T* const* values, int64_t at,
                  int count) {
    vec sum[R][V];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) sum[r][v] = load(to + r * dim + v * W);
    }
    for (int i = 0; i < count; ++i) {
        for (int v = 0; v < V; ++v) {
            const vec value = load(values[i] + at + v * W);
            for (int r = 0; r < R; ++r) sum[r][v] += weights[r * weights_stride + i] * value;
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) store(to + r * dim + v * W, sum[r][v]);
    }
}

constexpr int MOST = 4;  // sums, and vectors of each, at a time: 16 of the 32 vector registers

template <int R, typename T>
void add_parts(float* to, int dim, const float* weights, int64_t weights_stride, const T* const* values, int64_t at,
               int count) {
    int d = 0;
    for (; d + MOST * W <= dim; d += MOST * W) {
        add_weighted<R, MOST>(to + d, dim, weights, weights_stride, values, at + d, count);
    }
    for (; d < dim; d += W) add_weighted<R, 1>(to + d, dim, weights, weights_stride, values, at + d, count);
}

// Adds values to `group` weighted sums of `dim` elements, which are contiguous.
template <typename T>
void add_values(int group, float* to, int dim, const float* weights, int64_t weights_stride, const T* const* values,
                int64_t at, int count) {
    for (; group > 0; group -= MOST, to += MOST * dim, weights += MOST * weights_stride) {
        if (group >= 4) add_parts<4>(to, dim, weights, weights_stride, values, at, count);
        if (group == 3) add_parts<3>(to, dim, weights, weights_stride, values, at, count);
        if (group == 2) add_parts<2>(to, dim, weights, weights_stride, values, at, count);
        if (group == 1) add_parts<1>(to, dim, weights, weights_stride, values, at, count);
    }
}

template <typename T>
inline void fetch(const T* row, int64_t elements) {
    for (int64_t i = 0; i < elements; i += 64 / sizeof(T)) __builtin_prefetch(row + i);
}

template <typename T>
void decode(const T* q, const T* k, const T* v, int64_t q_stride, int64_t k_stride, int64_t v_stride, T* keys,
            T* values, T* out, const int64_t* slots, const int64_t* blocks, int64_t blocks_stride,
            const int64_t* lengths, int64_t requests, int heads, int kv_heads, int dim, int block_size,
            float scale) {
    const int group = heads / kv_heads;  // query heads that share a key
    const int kv_part = heads_per_job(requests, kv_heads);
    const int parts = kv_heads / kv_part;
    const int part = kv_part * group;  // query heads of a job
    const int64_t token = static_cast<int64_t>(kv_heads) * dim;
    const int64_t padded = up(*std::max_element(lengths, lengths + requests), W);
#pragma omp parallel
    {
        std::vector<Query<T>> query(part * dim);
        std::vector<float> score(part * padded), acc(part * dim);
#pragma omp for schedule(dynamic, 1)
        for (int64_t job = 0; job < requests * parts; ++job) {
            const int64_t r = job / parts;
            const int64_t kv = job % parts * kv_part;
            const int64_t length = lengths[r];
            const int64_t* table = blocks + r * blocks_stride;
            // Calls use(first, rows, head) for every tile of tokens and every key head of the job, while the next
            // tile is fetched. After the last token its row is repeated.
            const auto each_tile = [&](const T* cache, const auto& use) {
                const T* rows[2][TILE];
                const auto find = [&](int64_t first, const T** found) {
                    for (int i = 0; i < TILE; ++i) {
                        const int64_t t = std::min(first + i, length - 1);
                        const int64_t slot = table[t / block_size] * block_size + t % block_size;
                        found[i] = cache + slot * token + kv * dim;
                    }
                };
                find(0, rows[0]);
                for (int64_t first = 0, turn = 0; first < length; first += TILE, turn ^= 1) {
                    find(first + TILE, rows[turn ^ 1]);
                    for (int head = 0; head < kv_part; ++head) {
                        for (const T* row : rows[turn ^ 1]) fetch(row + head * dim, dim);
                        use(first, rows[turn], head);
                    }
                }
            };
            std::memcpy(keys + slots[r] * token + kv * dim, k + r * k_stride + kv * dim,
                        kv_part * dim * sizeof(T));
            std::memcpy(values + slots[r] * token + kv * dim, v + r * v_stride + kv * dim,
                        kv_part * dim * sizeof(T));
            const T* source = q + r * q_stride + kv * group * dim;
            for (int i = 0; i < part * dim; i += W) store(&query[i], load(source + i));
            each_tile(keys, [&](int64_t first, const T* const* rows, int head) {
                for (int h = head * group; h < (head + 1) * group; ++h) {
                    vec products[TILE] = {};
                    add_products(products, &query[h * dim], rows, head * dim, dim);
                    store(&score[h * padded + first], sums(products) * scale);
                }
            });
            for (int h = 0; h < part; ++h) softmax(&score[h * padded], length);
            std::fill(acc.begin(), acc.end(), 0.0f);
            each_tile(values, [&](int64_t first, const T* const* rows, int head) {
                const int h = head * group, count = std::min<int64_t>(TILE, length - first);
                add_values(group, &acc[h * dim], dim, &score[h * padded + first], padded, rows, head * dim, count);
            });
            for (int i = 0; i < part * dim; i += W) store(out + (r * heads + kv * group) * dim + i, load(&acc[i]));
        }
    }
}

}  // namespace

#define EXPORT(NAME, T)                                                                                     \
    extern "C" void NAME(const void* q, const void* k, const void* v, int64_t q_stride, int64_t k_stride,   \
                         int64_t v_stride, void* keys, void* values, void* out, const int64_t* slots,       \
                         const int64_t* blocks, int64_t blocks_stride, const int64_t* lengths,              \
                         int64_t requests, int32_t heads, int32_t kv_heads, int32_t dim,                    \
                         int32_t block_size, float scale) {                                                 \
        decode(static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v), q_stride,      \
               k_stride, v_stride, static_cast<T*>(keys), static_cast<T*>(values), static_cast<T*>(out),    \
               slots, blocks, blocks_stride, lengths, requests, heads, kv_heads, dim, block_size, scale);   \
    }

EXPORT(paged_decode_fp32, float)
EXPORT(paged_decode_bf16, bf16)
