// Activations of an MLP.
#pragma once

#include "registers.h"

// Forms of the MLP.
constexpr int64_t GELU = 0, RELU = 1, SWIGLU = 2, GEGLU = 3;

template <class L>
INLINE typename L::Row gelu(typename L::Row x) {
    const typename L::Row inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x - x / (L::exp(2.0f * inner) + 1.0f);
}

template <class L>
INLINE void activate_lanes(int64_t form, const float* x, const float* factor, float* out) {
    const typename L::Row from = L::template read<0>(x);
    switch (form) {
        case GELU: return store(out, gelu<L>(from));
        case RELU: return store(out, L::most(from, L::all(0.0f)));
        case SWIGLU: return store(out, from / (1.0f + L::exp(-from)) * L::template read<0>(factor));
        case GEGLU: return store(out, gelu<L>(from) * L::template read<0>(factor));
    }
}

// Activations of `count` numbers, a multiple of 8; those of gated forms are multiplied by factors.
INLINE void activate(int64_t form, const float* x, const float* factor, long count, float* out) {
    long i = 0;
    for (; i + Widest::LANES <= count; i += Widest::LANES)
        activate_lanes<Widest>(form, x + i, factor + i, out + i);
    for (; i < count; i += Eight::LANES) activate_lanes<Eight>(form, x + i, factor + i, out + i);
}
