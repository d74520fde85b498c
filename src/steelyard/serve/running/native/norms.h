// Norms of rows.
#pragma once

#include "vectors.h"

struct Norm {
    const float* gain;
    const float* bias;  // null for root-mean-square norms
};

// Sum of `of(i)`, the numbers [i, i + 8) of a row; in four parts that do not wait for each other.
template <class Of>
INLINE float sum_over(long width, const Of& of) {
    f8 part[4] = {};
    long i = 0;
    for (; i + 32 <= width; i += 32)
        for (int k = 0; k < 4; k++) part[k] += of(i + 8 * k);
    for (; i < width; i += 8) part[0] += of(i);
    return sum((part[0] + part[1]) + (part[2] + part[3]));
}

INLINE void normalize(const float* x, const Norm& norm, long width, float epsilon, float* out) {
    const float total = norm.bias ? sum_over(width, [&](long i) { return load(x + i); }) : 0.0f;
    const float mean = total / width;
    // In two passes: the mean of squares less the square of the mean cancels in float32.
    const float squares = sum_over(width, [&](long i) {
        const f8 apart = load(x + i) - mean;
        return apart * apart;
    });
    const float scale = 1.0f / std::sqrt(squares / width + epsilon);
    for (long i = 0; i < width; i += 8) {
        const f8 scaled = (load(x + i) - mean) * scale * load(norm.gain + i);
        store(out + i, norm.bias ? scaled + load(norm.bias + i) : scaled);
    }
}

