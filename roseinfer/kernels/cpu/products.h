// The inner kernel of GEMMs of bfloat16 with float32 sums.
//
// Weights are packed in panels of PANEL outputs, the last one narrower. A panel holds one pair of inputs after the other,
// each for all of its outputs. So a panel is one stream, which is read once for up to ROWS rows, whose sums stay in
// registers. A row's sums do not depend on the other rows.
//
//     product(tiles, rows, vectors, panel, x, stride, inputs, end, finish)
//
// calls finish(row, vector, sums) for each of up to BLOCK rows of `x`, `stride` apart, and each vector of 16 outputs of a
// panel of up to VECTORS vectors. `inputs` is even. `tiles`: each thread has its own. `end`: where the weights end that
// follow each other in memory, and that caches do not hold; null for others.
#pragma once

#include "vec.h"

constexpr int64_t BLOCK = 256;

#ifdef __AVX512BW__
#ifdef __AMX_BF16__
#include "products_amx.h"
#else
#include "products_dot.h"
#endif
#endif
