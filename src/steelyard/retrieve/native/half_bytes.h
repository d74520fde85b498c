// Sums of 8-bit table entries over codes of 4 bits, for 32 rows at a time.
//
// A block holds 32 rows. For each pair of parts it has 32 bytes: the first 16 are of the even part,
// the others of the odd one; byte r of the 16 has row r in its low half and row 16 + r in its high
// half. One shuffle looks 32 or 64 codes up at once (Andre et al. 2015, "Cache locality is not
// enough").

#pragma once

#include <cstdint>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "nearest.h"

namespace steelyard {

constexpr int64_t kRows = 32;

#ifdef __AVX2__

// Sums of rows in the words of a register: `whole` added pairs of bytes as words of 16 bits, `odd`
// only the upper bytes. What remains without those are the lower ones.
inline void store_sums(__m256i whole0, __m256i odd0, __m256i whole1, __m256i odd1,
                       uint16_t* sums) {
  const auto folded = [](__m256i sum) {
    return _mm_add_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  };
  const __m128i o0 = folded(odd0), o1 = folded(odd1);
  // Words wrap around, and the sums of lower bytes come out right all the same.
  const __m128i e0 = _mm_sub_epi16(folded(whole0), _mm_slli_epi16(o0, 8));
  const __m128i e1 = _mm_sub_epi16(folded(whole1), _mm_slli_epi16(o1, 8));
  __m128i* out = reinterpret_cast<__m128i*>(sums);
  _mm_storeu_si128(out, _mm_unpacklo_epi16(e0, o0));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(e0, o0));
  _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(e1, o1));
  _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(e1, o1));
}

inline void block_sums(const uint8_t* block, const uint8_t* tables, int64_t parts,
                       uint16_t* sums) {
  int64_t pair = 0;
  __m256i whole0 = _mm256_setzero_si256(), odd0 = whole0, whole1 = whole0, odd1 = whole0;
#ifdef __AVX512BW__
  const __m512i low_half = _mm512_set1_epi8(0x0f);
  __m512i w0 = _mm512_setzero_si512(), o0 = w0, w1 = w0, o1 = w0;
  for (; pair + 2 <= parts / 2; pair += 2) {
    const __m512i codes = _mm512_loadu_si512(block + 32 * pair);
    const __m512i table = _mm512_loadu_si512(tables + 32 * pair);
    const __m512i first = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, low_half));
    const __m512i second =
        _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(codes, 4), low_half));
    w0 = _mm512_add_epi16(w0, first);
    o0 = _mm512_add_epi16(o0, _mm512_srli_epi16(first, 8));
    w1 = _mm512_add_epi16(w1, second);
    o1 = _mm512_add_epi16(o1, _mm512_srli_epi16(second, 8));
  }
  const auto halves = [](__m512i sum) {
    return _mm256_add_epi16(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
  };
  whole0 = halves(w0), odd0 = halves(o0), whole1 = halves(w1), odd1 = halves(o1);
#endif
  const __m256i low = _mm256_set1_epi8(0x0f);
  for (; pair < parts / 2; ++pair) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 32 * pair));
    const __m256i table = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tables + 32 * pair));
    const __m256i first = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, low));
    const __m256i second =
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), low));
    whole0 = _mm256_add_epi16(whole0, first);
    odd0 = _mm256_add_epi16(odd0, _mm256_srli_epi16(first, 8));
    whole1 = _mm256_add_epi16(whole1, second);
    odd1 = _mm256_add_epi16(odd1, _mm256_srli_epi16(second, 8));
  }
  store_sums(whole0, odd0, whole1, odd1, sums);
}

// Bit r says whether row r is not above the bound.
inline uint32_t not_above(const uint16_t* sums, uint16_t bound) {
  const __m256i most = _mm256_set1_epi16(static_cast<int16_t>(bound));
  const __m256i one = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
  const __m256i two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + 16));
  const __m256i good1 = _mm256_cmpeq_epi16(_mm256_min_epu16(one, most), one);
  const __m256i good2 = _mm256_cmpeq_epi16(_mm256_min_epu16(two, most), two);
  // Packing mixes the lanes: put the quarters back in order.
  const __m256i packed =
      _mm256_permute4x64_epi64(_mm256_packs_epi16(good1, good2), _MM_SHUFFLE(3, 1, 2, 0));
  return static_cast<uint32_t>(_mm256_movemask_epi8(packed));
}

#else

inline void block_sums(const uint8_t* block, const uint8_t* tables, int64_t parts,
                       uint16_t* sums) {
  for (int64_t row = 0; row < kRows; ++row) sums[row] = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const uint8_t* codes = block + 16 * part;
    const uint8_t* table = tables + 16 * part;
    for (int64_t row = 0; row < 16; ++row) {
      sums[row] += table[codes[row] & 15];
      sums[row + 16] += table[codes[row] >> 4];
    }
  }
}

inline uint32_t not_above(const uint16_t* sums, uint16_t bound) {
  uint32_t found = 0;
  for (int64_t row = 0; row < kRows; ++row) found |= uint32_t{sums[row] <= bound} << row;
  return found;
}

#endif

// Compare the rows `row` to before `last`, which fill the blocks from `block` on.
inline void scan_blocks(const uint8_t* block, const uint8_t* tables, int64_t parts, int64_t row,
                        int64_t last, Nearest& nearest) {
  uint16_t sums[kRows];
  for (; row < last; row += kRows, block += parts * 16) {
    block_sums(block, tables, parts, sums);
    const float worst = nearest.worst();
    const uint16_t bound = worst >= 65535.0f ? 65535 : static_cast<uint16_t>(worst);
    uint32_t left = not_above(sums, bound);
    // The last block of a cell has rows that are not there.
    if (last - row < kRows) left &= (uint32_t{1} << (last - row)) - 1;
    for (; left; left &= left - 1) {
      const int64_t at = __builtin_ctz(left);
      nearest.offer(sums[at], row + at);
    }
  }
}

// Tables in 8 bits, all parts on one scale; each part's smallest entry is 0. `centers` are
// [parts, width, 16], so that one register holds a number of all sixteen.
inline void byte_tables(const float* query, const float* centers, const float* offsets,
                        float factor, int64_t parts, int64_t width, float* floats,
                        uint8_t* tables) {
  float largest = 1e-30f;
  for (int64_t part = 0; part < parts; ++part) {
    float* own = floats + 16 * part;
    float totals[16] = {};
    for (int64_t place = 0; place < width; ++place) {
      const float number = query[part * width + place];
      const float* at = centers + (part * width + place) * 16;
      for (int center = 0; center < 16; ++center) totals[center] += number * at[center];
    }
    float least = std::numeric_limits<float>::infinity(), most = -least;
    for (int center = 0; center < 16; ++center) {
      totals[center] = offsets[16 * part + center] + factor * totals[center];
      least = std::min(least, totals[center]);
      most = std::max(most, totals[center]);
    }
    for (int center = 0; center < 16; ++center) own[center] = totals[center] - least;
    largest = std::max(largest, most - least);
  }
  const float scale = 255.0f / largest;
  for (int64_t entry = 0; entry < 16 * parts; ++entry) {
    tables[entry] = static_cast<uint8_t>(floats[entry] * scale + 0.5f);
  }
}

}  // namespace steelyard
