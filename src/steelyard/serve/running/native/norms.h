// Norms of rows.
#pragma once

#include "vectors.h"

struct Norm {
    const float* gain;
    const float* bias;  // null for root-mean-square norms
};

INLINE void normalize(const float* x, const Norm& norm, long width, float epsilon, float* out) {
    f8 total = {}, squares = {};
    if (norm.bias)
        for (long i = 0; i < width; i += 8) total += load(x + i);
    const float mean = norm.bias ? sum(total) / width : 0.0f;
    // In two passes: the mean of squares less the square of the mean cancels in float32.
    for (long i = 0; i < width; i += 8) {
        const f8 apart = load(x + i) - mean;
        squares += apart * apart;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / width + epsilon);
    for (long i = 0; i < width; i += 8) {
        const f8 scaled = (load(x + i) - mean) * scale * load(norm.gain + i);
        store(out + i, norm.bias ? scaled + load(norm.bias + i) : scaled);
    }
}

