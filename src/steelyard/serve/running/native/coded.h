// Attention over keys and values in eight bits by products of bytes.
//
// Queries and shares are rounded to 15 and 16 bits, in two bytes each, and sums are exact: a query's
// numbers are off by at most a 32,512th of its largest, shares of a stretch by a 131,070th.
#pragma once

#include "registers.h"

#if defined(STEELYARD_WIDE)

constexpr long COLUMNS = 64;       // bytes of a register
constexpr long MOST_COLUMNS = 256;  // up to here sums of a score fit 32 bits

// A query in two bytes, 128 * upper + lower times scale, where its floats stood.
struct CodedQuery {
    int32_t* upper;
    int32_t* lower;
    float* scale;
    int32_t* offset;  // 128 times the sum of its codes: keys count from -128

    CodedQuery(float* query, long width)
        : upper((int32_t*)query), lower(upper + width / 4), scale(query + width / 2),
          offset((int32_t*)scale + 1) {}
};

static void code_query(float* query, long width) {
    float from[MOST_COLUMNS];
    memcpy(from, query, width * sizeof(float));
    const float most = largest(from, width), inverse = most > 0 ? 16256.0f / most : 0.0f;
    const CodedQuery q(query, width);
    __m512i sum = _mm512_setzero_si512();
    for (long i = 0; i < width; i += 16) {
        const __m512i code = _mm512_cvtps_epi32(
            _mm512_mul_ps(_mm512_loadu_ps(from + i), _mm512_set1_ps(inverse)));
        const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(64)), 7);
        const __m512i lower = _mm512_sub_epi32(code, _mm512_slli_epi32(upper, 7));
        _mm_storeu_si128((__m128i*)(q.upper + i / 4), _mm512_cvtepi32_epi8(upper));
        _mm_storeu_si128((__m128i*)(q.lower + i / 4), _mm512_cvtepi32_epi8(lower));
        sum = _mm512_add_epi32(sum, code);
    }
    *q.scale = most / 16256.0f, *q.offset = 128 * _mm512_reduce_add_epi32(sum);
}

// Sixteen rows of 64 bytes become registers of four columns each, in rows' order.
INLINE void turn_rows(const int8* const (&rows)[16], long column, __m512i (&out)[16]) {
    __m512i codes[16];
    for (int i = 0; i < 16; i++)
        codes[i] = _mm512_xor_si512(_mm512_loadu_si512(rows[i] + column),
            _mm512_set1_epi8((char)128));
    turn(codes, out);
}

// Scores of G queries with up to 16 keys.
template <int G>
INLINE void score_sixteen(float* query, long width, const int8* keys, const float* scales,
    long count, float* scores, long scores_row) {
    const int8* rows[16];
    for (long t = 0; t < 16; t++) rows[t] = keys + std::min(t, count - 1) * width;
    __m512i upper[G] = {}, lower[G] = {};
    for (long column = 0; column < width; column += COLUMNS) {
        __m512i turned[16];
        turn_rows(rows, column, turned);
        for (int g = 0; g < G; g++) {
            const CodedQuery q(query + g * width, width);
            for (int i = 0; i < 16; i++) {
                const long place = column / 4 + i;
                const __m512i high = _mm512_set1_epi32(q.upper[place]);
                upper[g] = _mm512_dpbusd_epi32(upper[g], turned[i], high);
                const __m512i low = _mm512_set1_epi32(q.lower[place]);
                lower[g] = _mm512_dpbusd_epi32(lower[g], turned[i], low);
            }
        }
    }
    const __mmask16 counts = (__mmask16)((1u << count) - 1);
    const __m512 scale = _mm512_maskz_loadu_ps(counts, scales);
    for (int g = 0; g < G; g++) {
        const CodedQuery q(query + g * width, width);
        const __m512i sum = _mm512_sub_epi32(
            _mm512_add_epi32(_mm512_slli_epi32(upper[g], 7), lower[g]),
            _mm512_set1_epi32(*q.offset));
        const __m512 score =
            _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(*q.scale)));
        float* to = scores + g * scores_row;
        // What a mask stored cannot be read again before it has left for the cache.
        if (count == 16) _mm512_storeu_ps(to, score);
        else _mm512_mask_storeu_ps(to, counts, score);
    }
}

// Shares in two bytes, 256 * upper + lower times scale.
template <long TOKENS>
struct CodedShares {
    alignas(64) uint8_t upper[TOKENS + 4], lower[TOKENS + 4];  // four are read at once
    float scale;
};

// Codes `count` shares times their values' scales.
template <long TOKENS>
INLINE void code_shares(float* shares, const float* scales, long count, CodedShares<TOKENS>& out) {
    __m512 top = _mm512_setzero_ps();
    for (long t = 0; t < count; t += 16) {
        const __mmask16 counts = (__mmask16)((1u << std::min(count - t, 16L)) - 1);
        const __m512 share = _mm512_maskz_mul_ps(counts, _mm512_loadu_ps(shares + t),
            _mm512_loadu_ps(scales + t));
        _mm512_storeu_ps(shares + t, share);
        top = _mm512_max_ps(top, share);
    }
    const float most = Sixteen::highest((Floats)top);
    const __m512 inverse = _mm512_set1_ps(most > 0 ? 65535.0f / most : 0.0f);
    out.scale = most * (1.0f / 65535.0f);
    for (long t = 0; t < count; t += 16) {
        const __m512i code = _mm512_min_epi32(_mm512_set1_epi32(65535),
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(shares + t), inverse)));
        _mm_storeu_si128((__m128i*)(out.lower + t), _mm512_cvtepi32_epi8(code));
        _mm_storeu_si128((__m128i*)(out.upper + t),
            _mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 8)));
    }
}

INLINE __m512i four_shares(const uint8_t* codes, uint32_t counts) {
    uint32_t found;
    memcpy(&found, codes, 4);
    return _mm512_set1_epi32((int32_t)(found & counts));
}

// Four rows of 64 bytes become registers of four rows each: columns 16 l + 4 j + k stand in
// register j, quarter l.
INLINE void turn_four(const int8* values, long width, long count, __m512i (&out)[4]) {
    __m512i row[4];
    for (long t = 0; t < 4; t++)
        row[t] = _mm512_loadu_si512(values + std::min(t, count - 1) * width);
    const __m512i a = _mm512_unpacklo_epi8(row[0], row[1]);
    const __m512i b = _mm512_unpackhi_epi8(row[0], row[1]);
    const __m512i c = _mm512_unpacklo_epi8(row[2], row[3]);
    const __m512i d = _mm512_unpackhi_epi8(row[2], row[3]);
    out[0] = _mm512_unpacklo_epi16(a, c), out[1] = _mm512_unpackhi_epi16(a, c);
    out[2] = _mm512_unpacklo_epi16(b, d), out[3] = _mm512_unpackhi_epi16(b, d);
}

// Adds 64 columns of sums, in the order of `turn_four`, to totals.
INLINE void add_sums(const __m512i (&upper)[4], const __m512i (&lower)[4], float scale,
    float* total) {
    __m512i sum[4];
    for (int j = 0; j < 4; j++)
        sum[j] = _mm512_add_epi32(_mm512_slli_epi32(upper[j], 8), lower[j]);
    const __m512i a = _mm512_shuffle_i32x4(sum[0], sum[1], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(sum[0], sum[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(sum[2], sum[3], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(sum[2], sum[3], 0xee);
    const __m512i rows[4] = {_mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(a, c, 0xdd),
        _mm512_shuffle_i32x4(b, d, 0x88), _mm512_shuffle_i32x4(b, d, 0xdd)};
    for (int l = 0; l < 4; l++)
        store(total + 16 * l, load_floats(total + 16 * l) + to_floats((Words)rows[l]) * scale);
}

#endif
