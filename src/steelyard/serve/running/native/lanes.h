// Sixteen columns of a product side by side: one register where the processor has AVX-512 and
// VNNI, two elsewhere. Everything above this file is written once.
//
// STEELYARD_CAP narrows what is used of a wider processor, so that the narrower code is tested
// too: 3 all, 2 AVX-512 without bfloat16 products, 1 AVX2, 0 no instruction set by name.
#pragma once

#include "vectors.h"

#ifndef STEELYARD_CAP
#define STEELYARD_CAP 3
#endif
#if STEELYARD_CAP >= 2 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define STEELYARD_WIDE 1
#endif
#if !defined(STEELYARD_WIDE) && STEELYARD_CAP >= 1 && defined(__AVX2__)
#include <immintrin.h>
#endif
#if STEELYARD_CAP >= 3 && defined(STEELYARD_WIDE) && defined(__AVX512BF16__)
#define STEELYARD_BF16 1
#endif

INLINE float as_float(int32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

#if defined(STEELYARD_WIDE)

typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Words __attribute__((vector_size(64), aligned(4), may_alias));

// Operations that vector extensions lack, or that GCC makes of them number by number, stand here by
// name: each file that includes the header of intrinsics takes .3 s more to compile. Their operands are of plain types: those above,
// which may lie anywhere, would be kept in memory.
typedef float PlainFloats __attribute__((vector_size(64)));
typedef int32_t PlainWords __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));

constexpr int BYTE_OFFSET = 128;  // what `add_bytes` counts a weight's byte above its value

INLINE Words load_words(const void* p) { return *(const Words*)p; }
INLINE Floats load_floats(const float* p) { return *(const Floats*)p; }
INLINE void store(float* p, Floats x) { *(Floats*)p = x; }
INLINE Floats to_floats(Words x) { return __builtin_convertvector(x, Floats); }
INLINE Floats halves_to_floats(const uint16_t* p) {
    PlainFloats found;
    asm("vcvtph2ps %1, %0" : "=v"(found) : "m"(*(const Halves*)p));
    return found;
}
INLINE Words spread_words(int32_t x) { return Words{} + x; }
INLINE Words bytes_to_words(const uint8_t* p) {
    PlainWords found;
    asm("vpmovzxbd %1, %0" : "=v"(found) : "m"(*(const Bytes*)p));
    return found;
}
INLINE Words signed_to_words(const uint8_t* p) {
    PlainWords found;
    asm("vpmovsxbd %1, %0" : "=v"(found) : "m"(*(const Bytes*)p));
    return found;
}
INLINE Words low_nibbles(Words x) { return x & 0x0f0f0f0f; }
INLINE Words high_nibbles(Words x) {
    return x >> 4 & 0x0f0f0f0f;
}

// total += the float of each lane times x's.
INLINE void add_floats(Floats& total, Words weights, int32_t x) {
    total += as_float(x) * (Floats)weights;
}

// total += the two bfloat16 of each lane times those of x.
INLINE void add_pairs(Floats& total, Words weights, int32_t x) {
#if defined(STEELYARD_BF16)
    PlainFloats sum = total;
    const PlainWords factors = weights, spread = PlainWords{} + x;
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(factors), "v"(spread));
    total = sum;
#else
    total += as_float(x & (int32_t)0xffff0000) * (Floats)(weights & (int32_t)0xffff0000);
    total += as_float((int32_t)((uint32_t)x << 16)) * (Floats)(weights << 16);
#endif
}

// total += the four unsigned bytes of each lane times the four signed ones of x.
INLINE void add_bytes(Words& total, Words weights, int32_t x) {
    PlainWords sum = total;
    const PlainWords factors = weights, spread = PlainWords{} + x;
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(factors), "v"(spread));
    total = sum;
}
INLINE void add_nibbles(Words& total, Words weights, int32_t x) { add_bytes(total, weights, x); }

#else

// Two registers that go the same way.
struct Floats {
    f8 left, right;
};
struct Words {
    i8 left, right;
};

constexpr int BYTE_OFFSET = 0;

INLINE Words load_words(const void* p) { return {((const i8*)p)[0], ((const i8*)p)[1]}; }
INLINE Floats load_floats(const float* p) { return {load(p), load(p + 8)}; }
INLINE void store(float* p, Floats x) { store(p, x.left), store(p + 8, x.right); }
INLINE Floats operator+(Floats a, Floats b) { return {a.left + b.left, a.right + b.right}; }
INLINE Floats operator*(Floats a, Floats b) { return {a.left * b.left, a.right * b.right}; }
INLINE Floats operator*(float a, Floats b) { return {a * b.left, a * b.right}; }
INLINE Floats& operator+=(Floats& a, Floats b) { return a = a + b; }
INLINE Floats to_floats(Words x) {
    return {__builtin_convertvector(x.left, f8), __builtin_convertvector(x.right, f8)};
}
INLINE Words operator*(Words a, Words b) { return {a.left * b.left, a.right * b.right}; }
INLINE Words spread_words(int32_t x) { return {i8{} + x, i8{} + x}; }
#if STEELYARD_CAP >= 1 && defined(__AVX2__)
INLINE Words bytes_to_words(const uint8_t* p) {
    return {(i8)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)),
        (i8)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
INLINE Words signed_to_words(const uint8_t* p) {
    return {(i8)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
        (i8)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
#else
template <class Byte>
INLINE Words byte_by_byte(const Byte* p) {
    i8 found[2];
    for (int i = 0; i < 16; i++) found[i / 8][i % 8] = p[i];
    return {found[0], found[1]};
}
INLINE Words bytes_to_words(const uint8_t* p) { return byte_by_byte(p); }
INLINE Words signed_to_words(const uint8_t* p) { return byte_by_byte((const int8_t*)p); }
#endif
INLINE Floats halves_to_floats(const uint16_t* p) {
#if STEELYARD_CAP >= 1 && defined(__F16C__)
    return {(f8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
        (f8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
#else
    f8 found[2];
    for (int i = 0; i < 16; i++) {
        // A binary16 moved to binary32's place, then scaled by the difference of their biases.
        const uint32_t moved = (uint32_t)(p[i] & 0x7fff) << 13;
        const float size = as_float((int32_t)moved) * 5.192296858534828e33f;
        found[i / 8][i % 8] = p[i] & 0x8000 ? -size : size;
    }
    return {found[0], found[1]};
#endif
}
INLINE Words low_nibbles(Words x) { return {x.left & 0x0f0f0f0f, x.right & 0x0f0f0f0f}; }
INLINE Words high_nibbles(Words x) {
    return {x.left >> 4 & 0x0f0f0f0f, x.right >> 4 & 0x0f0f0f0f};
}

INLINE void add_floats(Floats& total, Words weights, int32_t x) {
    total.left += as_float(x) * (f8)weights.left;
    total.right += as_float(x) * (f8)weights.right;
}

INLINE void add_pairs(Floats& total, Words weights, int32_t x) {
    const int32_t upper = (int32_t)0xffff0000;
    const float odd = as_float(x & upper), even = as_float((int32_t)((uint32_t)x << 16));
    total.left += odd * (f8)(weights.left & upper);
    total.right += odd * (f8)(weights.right & upper);
    total.left += even * (f8)(weights.left << 16);
    total.right += even * (f8)(weights.right << 16);
}

#if STEELYARD_CAP >= 1 && defined(__AVX2__)

INLINE i8 pairs_to_words(__m256i x) { return (i8)_mm256_madd_epi16(x, _mm256_set1_epi16(1)); }

// Signed bytes stand in the weights plus 128. Their sizes times x with their signs: at most
// 2 * 127 * 127 in 16 bits, where 255 * 127 twice would not fit.
INLINE i8 byte_sums(i8 weights, __m256i x) {
    const __m256i value = _mm256_xor_si256((__m256i)weights, _mm256_set1_epi8((char)0x80));
    return pairs_to_words(_mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(x, value)));
}

INLINE void add_bytes(Words& total, Words weights, int32_t x) {
    const __m256i all = _mm256_set1_epi32(x);
    total.left += byte_sums(weights.left, all);
    total.right += byte_sums(weights.right, all);
}

INLINE void add_nibbles(Words& total, Words weights, int32_t x) {
    const __m256i all = _mm256_set1_epi32(x);
    total.left += pairs_to_words(_mm256_maddubs_epi16((__m256i)weights.left, all));
    total.right += pairs_to_words(_mm256_maddubs_epi16((__m256i)weights.right, all));
}

#else

INLINE void add_shifted(Words& total, Words weights, int32_t x, int32_t offset) {
    for (int shift = 0; shift < 32; shift += 8) {
        const int32_t part = (int8_t)(x >> shift);
        total.left += ((weights.left >> shift & 255) - offset) * part;
        total.right += ((weights.right >> shift & 255) - offset) * part;
    }
}
INLINE void add_bytes(Words& total, Words weights, int32_t x) {
    add_shifted(total, weights, x, 128);
}
INLINE void add_nibbles(Words& total, Words weights, int32_t x) {
    add_shifted(total, weights, x, 0);
}

#endif
#endif
