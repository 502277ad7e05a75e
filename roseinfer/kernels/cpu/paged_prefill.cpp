// Prefill attention (causal) over the paged KV cache (CPU, bfloat16).
//
// First the keys and values of each prompt and KV head are packed as the weights of two GEMMs (products.h): Q K^T,
// whose outputs are keys, and P V, whose outputs are dimensions. New ones are stored in the cache on the way. Then, for
// a few queries at a time: all scores, softmax in float32, the weighted sum.
#include <omp.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "products.h"

#ifdef __AVX512BW__
namespace {

struct Prompt {
    int64_t start, count;  // its rows of q, k and v
    int64_t context;       // tokens before them, which are cached
    int64_t blocks;        // index of the first of their block ids
};

struct Tensors {
    const bf16 *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
    bf16 *keys, *values, *out, *workspace;
    const int64_t *slots, *blocks;
    int64_t heads, kv_heads, dim, block_size;
    float scale;
};

// One KV head of one prompt, packed: keys in panels of keys, values in panels of dimensions.
struct Head {
    Prompt prompt;
    int64_t kv, length, padded;  // length: all keys; padded: to whole vectors
    bf16 *keys, *values;
};

struct Job {
    const Head* head;
    int64_t first;  // key or query
    int64_t query_head;
};

// Key or value `t` of a head; a new one is stored in the cache.
const bf16* row(const Tensors& all, const Head& head, int64_t t, const bf16* fresh, int64_t stride, bf16* cache) {
    const int64_t token = all.kv_heads * all.dim, at = head.kv * all.dim, own = t - head.prompt.context;
    if (own < 0) {
        const int64_t block = all.blocks[head.prompt.blocks + t / all.block_size];
        return cache + (block * all.block_size + t % all.block_size) * token + at;
    }
    const bf16* from = fresh + (head.prompt.start + own) * stride + at;
    std::memcpy(cache + all.slots[head.prompt.start + own] * token + at, from, all.dim * sizeof(bf16));
    return from;
}

// Packs a panel of keys, and as many values.
void lay_out(const Tensors& all, const Head& head, int64_t first) {
    const int64_t width = std::min(PANEL, head.padded - first), dim = all.dim;
    static const bf16 zeros[1024] = {};  // heads are no larger
    auto* keys = reinterpret_cast<uint32_t*>(head.keys + first * dim);
    for (int64_t i = 0; i < width; ++i) {
        const int64_t t = first + i;
        const bf16* key = t < head.length ? row(all, head, t, all.k, all.k_stride, all.keys) : zeros;
        for (int64_t pair = 0; pair < dim / 2; ++pair) {
            std::memcpy(keys + pair * width + i, key + 2 * pair, sizeof(uint32_t));
        }
    }
    for (int64_t t = first; t < first + width; t += 2) {
        const bf16* pair[2];
        for (int64_t i = 0; i < 2; ++i) {
            pair[i] = t + i < head.length ? row(all, head, t + i, all.v, all.v_stride, all.values) : zeros;
        }
        for (int64_t column = 0; column < dim; column += PANEL) {
            const int64_t columns = std::min(PANEL, dim - column);
            auto* values = reinterpret_cast<uint32_t*>(head.values + column * head.padded + t * columns);
            for (int64_t d = 0; d < columns; ++d) {
                values[d] = pair[0][column + d].bits | static_cast<uint32_t>(pair[1][column + d].bits) << 16;
            }
        }
    }
}

// 2^x, at least 2^-126, with a relative error below 5e-5: far less than the rounding of bfloat16.
inline vec exp2(vec x) {
    const __m512 least = _mm512_set1_ps(-126.0f), clipped = _mm512_max_ps(least, reinterpret_cast<__m512>(x));
    const __m512 whole = _mm512_roundscale_ps(clipped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const vec f = reinterpret_cast<vec>(clipped) - reinterpret_cast<vec>(whole);
    const vec part = 1 + f * (0.69314718f + f * (0.24022651f + f * (0.05550411f + f * 0.00961813f)));
    return reinterpret_cast<vec>(_mm512_scalef_ps(reinterpret_cast<__m512>(part), whole));
}

// exp((score - largest) · scale) of `end` scores, of which the first `length` count; returns 1 / their sum.
float softmax(float* score, input* weight, int64_t length, int64_t end, float scale) {
    const float top = largest(score, length, end), bits = scale * 1.44269504f;
    vec total = {};
    for (int64_t t = 0; t < end; t += W) {
        const vec each = exp2((load(score + t) - top) * bits);
        store(weight + t, each);
        total += each;
    }
    return 1 / sum(total);
}

// Attention of queries `first` to `first` + `rows` of a prompt.
void attend(Tiles& tiles, const Tensors& all, const Job& job, int64_t rows, float* score, input* weight, int64_t stride) {
    const Head& head = *job.head;
    const int64_t seen = head.prompt.context + job.first + 1, end = up(seen + rows - 1, W);
    const int64_t at = head.prompt.start + job.first, column = job.query_head * all.dim;
#ifdef __AVX512BF16__
    const bf16* query = all.q + at * all.q_stride + column;
    const int64_t query_stride = all.q_stride;
#else
    float query[ROWS * 1024];  // heads are no larger
    const int64_t query_stride = all.dim;
    for (int64_t r = 0; r < rows; ++r) widen(all.q + (at + r) * all.q_stride + column, query + r * all.dim, all.dim);
#endif
    for (int64_t t = 0; t < end; t += PANEL) {
        product(tiles, rows, std::min(PANEL, head.padded - t) / W, head.keys + t * all.dim, query, query_stride, all.dim,
                nullptr, [&](int64_t r, int v, vec sum) { store(score + r * stride + t + v * W, sum); });
    }
    float share[ROWS];
    for (int64_t r = 0; r < rows; ++r) {
        share[r] = softmax(score + r * stride, weight + r * stride, seen + r, end, all.scale);
    }
    for (int64_t d = 0; d < all.dim; d += PANEL) {
        bf16* out = all.out + at * all.heads * all.dim + column + d;
        product(tiles, rows, std::min(PANEL, all.dim - d) / W, head.values + d * head.padded, weight, stride, end,
                nullptr, [&](int64_t r, int v, vec sum) { store(out + r * all.heads * all.dim + v * W, sum * share[r]); });
    }
}

void prefill(const Tensors& all, const Prompt* prompts, int64_t num_prompts) {
    std::vector<Head> heads;
    heads.reserve(num_prompts * all.kv_heads);
    std::vector<Job> layouts, queries;
    bf16* free = all.workspace;
    int64_t longest = 0;
    for (int64_t p = 0; p < num_prompts; ++p) {
        const int64_t length = prompts[p].context + prompts[p].count, padded = up(length, W);
        longest = std::max(longest, up(length, PANEL));
        for (int64_t kv = 0; kv < all.kv_heads; ++kv, free += 2 * padded * all.dim) {
            heads.push_back({prompts[p], kv, length, padded, free, free + padded * all.dim});
            const Head* head = &heads.back();
            for (int64_t t = 0; t < length; t += PANEL) layouts.push_back({head, t, 0});
            const int64_t group = all.heads / all.kv_heads;
            for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
                for (int64_t i = 0; i < prompts[p].count; i += ROWS) queries.push_back({head, i, h});
            }
        }
    }
#pragma omp parallel
    {
        Tiles tiles;
        const std::unique_ptr<float[]> score(new float[ROWS * longest]);
        const std::unique_ptr<input[]> weight(new input[ROWS * longest]);
#pragma omp for schedule(static)
        for (size_t i = 0; i < layouts.size(); ++i) lay_out(all, *layouts[i].head, layouts[i].first);
#pragma omp for schedule(dynamic, 4)
        for (size_t i = 0; i < queries.size(); ++i) {
            const int64_t left = queries[i].head->prompt.count - queries[i].first;
            attend(tiles, all, queries[i], std::min<int64_t>(left, ROWS), score.get(), weight.get(), longest);
        }
    }
}

}  // namespace

// q, k, v: rows of heads, `stride` apart; keys, values: the cache [rows, kv heads, dim]; out [rows, heads, dim].
// workspace: 2 · kv_heads · dim elements for each key, with the keys of each prompt rounded up to a multiple of 16.
// prompts: start, count, context and first block of each.
extern "C" void paged_prefill_bf16(const void* q, const void* k, const void* v, int64_t q_stride, int64_t k_stride,
                                   int64_t v_stride, void* keys, void* values, void* out, void* workspace,
                                   const int64_t* slots, const int64_t* blocks, const void* prompts,
                                   int64_t num_prompts, int32_t heads, int32_t kv_heads, int32_t dim,
                                   int32_t block_size, float scale) {
    const Tensors all = {static_cast<const bf16*>(q), static_cast<const bf16*>(k), static_cast<const bf16*>(v),
                         q_stride, k_stride, v_stride, static_cast<bf16*>(keys), static_cast<bf16*>(values),
                         static_cast<bf16*>(out), static_cast<bf16*>(workspace), slots, blocks,
                         heads, kv_heads, dim, block_size, scale};
    prefill(all, static_cast<const Prompt*>(prompts), num_prompts);
}
#endif
