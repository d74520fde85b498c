// Registers of 8 floats, in GCC's vector extensions, so that the files need no instruction set by
// name.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

typedef float f4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float f8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t u8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t h8 __attribute__((vector_size(16), aligned(2), may_alias));

// Bits of a bfloat16.
struct bf16 {
    uint16_t bits;
};

#define INLINE static inline __attribute__((always_inline))

INLINE f8 load(const float* p) { return *(const f8*)p; }
INLINE f8 load(const bf16* p) { return (f8)(__builtin_convertvector(*(const h8*)p, u8) << 16); }
INLINE void store(float* p, f8 x) { *(f8*)p = x; }
INLINE f8 spread(float x) { return f8{} + x; }
INLINE f8 pick(i8 which, f8 yes, f8 no) { return (f8)((which & (i8)yes) | (~which & (i8)no)); }
INLINE f8 larger(f8 x, f8 y) { return pick(x > y, x, y); }

INLINE float sum(f8 x) {
    x += __builtin_shuffle(x, i8{4, 5, 6, 7, 0, 1, 2, 3});
    x += __builtin_shuffle(x, i8{2, 3, 0, 1, 6, 7, 4, 5});
    x += __builtin_shuffle(x, i8{1, 0, 3, 2, 5, 4, 7, 6});
    return x[0];
}

// Sums of four registers.
INLINE f4 sums(f8 a, f8 b, f8 c, f8 d) {
    const f8 ab = __builtin_shuffle(a, b, i8{0, 8, 2, 10, 4, 12, 6, 14})
        + __builtin_shuffle(a, b, i8{1, 9, 3, 11, 5, 13, 7, 15});
    const f8 cd = __builtin_shuffle(c, d, i8{0, 8, 2, 10, 4, 12, 6, 14})
        + __builtin_shuffle(c, d, i8{1, 9, 3, 11, 5, 13, 7, 15});
    const f8 all = __builtin_shuffle(ab, cd, i8{0, 1, 8, 9, 4, 5, 12, 13})
        + __builtin_shuffle(ab, cd, i8{2, 3, 10, 11, 6, 7, 14, 15});
    return __builtin_shufflevector(all, all, 0, 1, 2, 3)
        + __builtin_shufflevector(all, all, 4, 5, 6, 7);
}

INLINE float highest(f8 x) {
    x = larger(x, __builtin_shuffle(x, i8{4, 5, 6, 7, 0, 1, 2, 3}));
    x = larger(x, __builtin_shuffle(x, i8{2, 3, 0, 1, 6, 7, 4, 5}));
    x = larger(x, __builtin_shuffle(x, i8{1, 0, 3, 2, 5, 4, 7, 6}));
    return x[0];
}

INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    // To the nearest, ties to even, as PyTorch rounds.
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INLINE void put(float* p, float x) { *p = x; }
INLINE void put(bf16* p, float x) { p->bits = to_bf16(x); }

// e^x to 2 units in the last place; 0 below -87. Cephes' expf: range reduction by ln 2, then a
// polynomial of degree 5.
INLINE f8 exponential(f8 x) {
    f8 limited = larger(x, spread(-87.0f));
    limited = pick(limited < spread(88.0f), limited, spread(88.0f));
    // Adding 1.5 * 2^23 rounds to the nearest integer: no bit of a fraction is left beside it.
    f8 shifted = limited * 1.44269504088896341f + 12582912.0f;
    f8 whole = shifted - 12582912.0f;
    // ln 2 in two parts, the first exact in few bits, so that the difference loses nothing.
    f8 rest = limited - whole * 0.693359375f;
    rest = rest - whole * -2.12194440e-4f;
    f8 y = spread(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * rest * rest + rest + 1.0f;
    f8 power = (f8)((__builtin_convertvector(whole, i8) + 127) << 23);
    return pick(x < spread(-87.0f), f8{}, y * power);
}

