// Registers as attention uses them, so that its kernels are written once for either width.
#pragma once

#include "pool.h"
#if defined(STEELYARD_WIDE)
#include <immintrin.h>
#endif

// Not inlined, so that the registers of a loop hold nothing of its neighbours.
#define APART static __attribute__((noinline))

#if defined(__x86_64__)
// Keeps a number in its register: the compiler would read it anew for each product.
template <class R>
INLINE void hold(R& x) {
    asm("" : "+v"(x));
}
#else
template <class R>
INLINE void hold(R&) {}
#endif

// Stands for minus infinity: the difference of two is 0 and not NaN.
constexpr float LOWEST = -1e30f;

// tanh to a few units in the last place, from an exponential that takes any number.
template <class L>
INLINE typename L::Row tangent(typename L::Row x) {
    const typename L::Row squared = x * x;
    // Small numbers would cancel in the other form.
    typename L::Row small = L::all(62.0f / 2835) * squared + -17.0f / 315;
    small = small * squared + 2.0f / 15;
    small = small * squared + -1.0f / 3;
    small = small * squared * x + x;
    const typename L::Row large = 1.0f - 2.0f / (L::exp(x + x) + 1.0f);
    return L::pick_below(squared, 0.1f, small, large);
}

// Eight numbers.
struct Eight {
    typedef f8 Row;
    static constexpr long LANES = 8, PARTS = 1;
    // Beside wider registers these take only the widths that fill no others.
#if defined(STEELYARD_WIDE)
    static constexpr long QUERIES = 1;
#else
    static constexpr long QUERIES = 3;
#endif
    template <int PART, class T>
    INLINE Row read(const T* p) { return load(p); }
    INLINE Row all(float x) { return Row{x, x, x, x, x, x, x, x}; }
    INLINE Row most(Row x, Row y) { return larger(x, y); }
    INLINE Row pick_below(Row x, float limit, Row yes, Row no) {
        return pick(x < limit, yes, no);
    }
    INLINE f8 fold(Row x) { return x; }
    INLINE float highest(Row x) { return ::highest(x); }
    INLINE Row exp(Row x) { return exponential(x); }
};

#if defined(STEELYARD_WIDE)
// Sixteen numbers, two registers at a time. Those of bfloat16 are the even and the odd columns of
// 32, which takes one operation each; queries are laid out alike, and totals laid back.
struct Sixteen {
    typedef Floats Row;
    static constexpr long LANES = 16, PARTS = 2, QUERIES = 4;
    template <int PART>
    INLINE Row read(const float* p) { return load_floats(p + PART * LANES); }
    template <int PART>
    INLINE Row read(const bf16* p) {
        const Words x = load_words(p);
        return (Row)(PART ? x & (int32_t)0xffff0000 : x << 16);
    }
    INLINE Row all(float x) { return (Row)_mm512_set1_ps(x); }
    INLINE Row most(Row x, Row y) { return (Row)_mm512_max_ps((__m512)x, (__m512)y); }
    INLINE Row pick_below(Row x, float limit, Row yes, Row no) {
        return (Row)_mm512_mask_blend_ps(
            _mm512_cmp_ps_mask((__m512)x, (__m512)all(limit), _CMP_LT_OQ), (__m512)no, (__m512)yes);
    }
    INLINE f8 lower(Row x) { return (f8)_mm512_castps512_ps256((__m512)x); }
    INLINE f8 upper(Row x) { return (f8)_mm512_extractf32x8_ps((__m512)x, 1); }
    INLINE f8 fold(Row x) { return lower(x) + upper(x); }
    INLINE float highest(Row x) { return _mm512_reduce_max_ps((__m512)x); }
    // As `exponential` of eight, but infinite for what is too large.
    INLINE Row exp(Row x) {
        const __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ);
        x = most(x, all(-87.0f));
        const Row whole = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
        const Row rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
        Row y = all(1.9875691500e-4f);
        y = y * rest + 1.3981999507e-3f;
        y = y * rest + 8.3334519073e-3f;
        y = y * rest + 4.1665795894e-2f;
        y = y * rest + 1.6666665459e-1f;
        y = y * rest + 5.0000001201e-1f;
        y = y * rest * rest + rest + 1.0f;
        return (Row)_mm512_maskz_scalef_ps(counts, (__m512)y, (__m512)whole);
    }
};
#endif

#if defined(STEELYARD_WIDE)
typedef Sixteen Widest;
#else
typedef Eight Widest;
#endif

#if defined(STEELYARD_WIDE)
// Sixteen registers of words become those of their columns.
INLINE void turn(const __m512i (&rows)[16], __m512i (&out)[16]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {
        const __m512i left[2] = {_mm512_shuffle_i32x4(a[j], a[j + 4], 0x88),
            _mm512_shuffle_i32x4(a[j], a[j + 4], 0xdd)};
        const __m512i right[2] = {_mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0x88),
            _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0xdd)};
        for (int k = 0; k < 2; k++) {
            out[j + 4 * k] = _mm512_shuffle_i32x4(left[k], right[k], 0x88);
            out[j + 4 * k + 8] = _mm512_shuffle_i32x4(left[k], right[k], 0xdd);
        }
    }
}
#endif

// Multiplies numbers by others, and caps them.
template <class L>
INLINE void settle(float* x, long end, const float* scales, float softcap) {
    for (long t = 0; t < end; t += L::LANES) {
        typename L::Row row = L::template read<0>(x + t);
        if (scales) row = row * L::template read<0>(scales + t);
        if (softcap > 0) row = softcap * tangent<L>(row / softcap);
        store(x + t, row);
    }
}

// Takes a query's scores of `size` tokens (whole registers), of which it sees [first, end), into its
// running softmax: scores become shares, and totals [width] are scaled down where the peak rises.
template <class L>
INLINE void soften_row(float* scores, long first, long end, long size, float* total, long width,
    float& peak, float& weight) {
    std::fill(scores, scores + first, LOWEST);
    std::fill(scores + end, scores + size, LOWEST);
    typename L::Row top = L::all(LOWEST);
    for (long t = 0; t < size; t += L::LANES) top = L::most(top, L::template read<0>(scores + t));
    const float most = L::highest(top);
    if (most > peak) {  // most tokens do not raise the peak, and leave the totals as they are
        const float shrink = exponential(spread(peak - most))[0];
        for (long i = 0; i < width; i += 8) store(total + i, load(total + i) * shrink);
        weight *= shrink;
        peak = most;
    }
    typename L::Row mass = {};
    for (long t = 0; t < size; t += L::LANES) {
        const typename L::Row share = L::exp(L::template read<0>(scores + t) - peak);
        store(scores + t, share);
        mass += share;
    }
    weight += sum(L::fold(mass));
}
