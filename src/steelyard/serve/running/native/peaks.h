// The likeliest token of a row of logits.
#pragma once

#include <limits>

#include "registers.h"

// The largest of some logits and the first token that has it; NaN where one of them is NaN.
static void find_peak(const float* logits, long count, float* peak, int64_t* token) {
    typedef Widest L;
    constexpr long BLOCK = 512;
    float most = -std::numeric_limits<float>::infinity();
    long at = 0, first = 0;
    bool broken = false;
    for (; first + BLOCK <= count; first += BLOCK) {
        L::Row top = L::template read<0>(logits + first), sum = {};
        for (long i = first; i < first + BLOCK; i += L::LANES) {
            const L::Row row = L::template read<0>(logits + i);
            top = L::most(top, row), sum += row * 0.0f;
        }
        // What is not finite makes its sum of zeros NaN.
        broken |= std::isnan(::sum(L::fold(sum)));
        const float found = L::highest(top);
        if (found > most) most = found, at = first;
    }
    for (; first < count; first++) {
        broken |= std::isnan(logits[first]);
        if (logits[first] > most) most = logits[first], at = first;
    }
    if (broken) {  // infinite ones are told from NaN one by one
        for (long i = 0; i < count; i++)
            if (std::isnan(logits[i])) most = logits[i];
    }
    while (at + 1 < count && logits[at] != most && !std::isnan(most)) at++;
    *peak = most, *token = at;
}
