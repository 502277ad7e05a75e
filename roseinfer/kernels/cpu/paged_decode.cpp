// Attention of one new token per request over its paged keys and values (CPU).
//
// Work is dealt out by request and by groups of neighbouring heads. A job first stores the new key and value,
// then reads the request's rows where they lie: scores, softmax in float32, weighted sum. Nothing is gathered.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "vec.h"

namespace {

// Heads per job: as many neighbours as leave every thread two jobs, so that a token's row is read in one go.
int heads_per_job(int64_t requests, int kv_heads) {
    int parts = 1;
    while (parts < kv_heads && (requests * parts < 2 * omp_get_max_threads() || kv_heads % parts)) ++parts;
    return kv_heads / parts;
}

// In place, over `length` scores; what follows them up to a whole vector is overwritten.
void softmax(float* score, int64_t length) {
    const int64_t end = (length + W - 1) / W * W;
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

// Reads the row of a job `AHEAD` tokens before its use. Rows that are parts of a token's lie apart: the processor does
// not guess them as it does whole ones.
constexpr int64_t AHEAD = 4;

template <typename T>
void fetch(const T* row, int64_t elements) {
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
    const bool apart = parts > 1;
    const int64_t token = static_cast<int64_t>(kv_heads) * dim;
    int64_t longest = 0;
    for (int64_t r = 0; r < requests; ++r) longest = lengths[r] > longest ? lengths[r] : longest;
    const int64_t padded = (longest + W - 1) / W * W;
#pragma omp parallel
    {
        std::vector<float> query(part * dim), score(part * padded), acc(part * dim);
#pragma omp for schedule(dynamic, 1)
        for (int64_t job = 0; job < requests * parts; ++job) {
            const int64_t r = job / parts;
            const int64_t kv = job % parts * kv_part;
            const int64_t length = lengths[r];
            const int64_t* table = blocks + r * blocks_stride;
            const auto at = [&](int64_t t) {
                return (table[t / block_size] * block_size + t % block_size) * token + kv * dim;
            };
            std::memcpy(keys + slots[r] * token + kv * dim, k + r * k_stride + kv * dim,
                        kv_part * dim * sizeof(T));
            std::memcpy(values + slots[r] * token + kv * dim, v + r * v_stride + kv * dim,
                        kv_part * dim * sizeof(T));
            const T* source = q + r * q_stride + kv * group * dim;
            for (int i = 0; i < part * dim; i += W) store(&query[i], load(source + i) * scale);
            for (int64_t t = 0; t < length; ++t) {
                const T* row = keys + at(t);
                if (apart) fetch(keys + at(std::min(t + AHEAD, length - 1)), kv_part * dim);
                for (int h = 0; h < part; ++h) {
                    vec dot = {};
                    for (int d = 0; d < dim; d += W) dot += load(&query[h * dim + d]) * load(row + h / group * dim + d);
                    score[h * padded + t] = sum(dot);
                }
            }
            for (int h = 0; h < part; ++h) softmax(&score[h * padded], length);
            std::fill(acc.begin(), acc.end(), 0.0f);
            for (int64_t t = 0; t < length; ++t) {
                const T* row = values + at(t);
                if (apart) fetch(values + at(std::min(t + AHEAD, length - 1)), kv_part * dim);
                for (int h = 0; h < part; ++h) {
                    const float weight = score[h * padded + t];
                    for (int d = 0; d < dim; d += W) {
                        float* to = &acc[h * dim + d];
                        store(to, load(to) + weight * load(row + h / group * dim + d));
                    }
                }
            }
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
