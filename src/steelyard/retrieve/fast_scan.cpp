// Sums of 8-bit table entries over codes of 4 bits, for 32 rows at a time.
//
// A block holds 32 rows. For each pair of parts it has 32 bytes: the first 16 are of the even part,
// the others of the odd one; byte r of the 16 has row r in its low half and row 16 + r in its high
// half. One shuffle looks 32 codes up at once (Andre et al. 2015, "Cache locality is not enough").

#include <cstdint>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kRows = 32;

// The nearest so far: a heap with the worst on top; of equal distances the smaller row is nearer.
struct Heap {
  float* distances;
  int64_t* rows;
  int64_t size;

  bool worse(int64_t one, int64_t other) const {
    return distances[one] > distances[other] ||
           (distances[one] == distances[other] && rows[one] > rows[other]);
  }

  void offer(float distance, int64_t row) {
    if (distance > distances[0] || (distance == distances[0] && row >= rows[0])) return;
    int64_t place = 0;
    while (true) {
      int64_t child = 2 * place + 1;
      if (child >= size) break;
      if (child + 1 < size && worse(child + 1, child)) ++child;
      if (distances[child] < distance || (distances[child] == distance && rows[child] < row)) break;
      distances[place] = distances[child];
      rows[place] = rows[child];
      place = child;
    }
    distances[place] = distance;
    rows[place] = row;
  }
};

#ifdef __AVX2__

void block_sums(const uint8_t* block, const uint8_t* tables, int64_t parts, uint16_t* sums) {
  const __m256i low_half = _mm256_set1_epi8(0x0f);
  const __m256i low_byte = _mm256_set1_epi16(0x00ff);
  // Sums of rows 0-15 and 16-31, in even and odd bytes; each lane holds one of the two parts.
  __m256i even0 = _mm256_setzero_si256(), odd0 = even0, even1 = even0, odd1 = even0;
  for (int64_t pair = 0; pair < parts / 2; ++pair) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 32 * pair));
    const __m256i table = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tables + 32 * pair));
    const __m256i first = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, low_half));
    const __m256i second =
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), low_half));
    even0 = _mm256_add_epi16(even0, _mm256_and_si256(first, low_byte));
    odd0 = _mm256_add_epi16(odd0, _mm256_srli_epi16(first, 8));
    even1 = _mm256_add_epi16(even1, _mm256_and_si256(second, low_byte));
    odd1 = _mm256_add_epi16(odd1, _mm256_srli_epi16(second, 8));
  }
  const auto folded = [](__m256i sum) {
    return _mm_add_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  };
  const __m128i e0 = folded(even0), o0 = folded(odd0), e1 = folded(even1), o1 = folded(odd1);
  __m128i* out = reinterpret_cast<__m128i*>(sums);
  _mm_storeu_si128(out, _mm_unpacklo_epi16(e0, o0));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(e0, o0));
  _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(e1, o1));
  _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(e1, o1));
}

// Bit r says whether row r is not above the bound.
uint32_t not_above(const uint16_t* sums, uint16_t bound) {
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

void block_sums(const uint8_t* block, const uint8_t* tables, int64_t parts, uint16_t* sums) {
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

uint32_t not_above(const uint16_t* sums, uint16_t bound) {
  uint32_t found = 0;
  for (int64_t row = 0; row < kRows; ++row) found |= uint32_t{sums[row] <= bound} << row;
  return found;
}

#endif

}  // namespace

extern "C" {

// Scan the blocks of cells and keep the `size` rows with the smallest sums.
void steelyard_fast_scan(const uint8_t* blocks, const int64_t* block_starts,
                         const int64_t* row_starts, const int64_t* cells, int64_t num_cells,
                         const uint8_t* tables, int64_t parts, float* distances, int64_t* rows,
                         int64_t size) {
  Heap heap{distances, rows, size};
  uint16_t sums[kRows];
  for (int64_t place = 0; place < num_cells; ++place) {
    const int64_t cell = cells[place];
    const int64_t last = row_starts[cell + 1];
    int64_t row = row_starts[cell];
    for (int64_t block = block_starts[cell]; block < block_starts[cell + 1]; ++block, row += kRows) {
      block_sums(blocks + block * parts * 16, tables, parts, sums);
      const float worst = distances[0];
      const uint16_t bound = worst >= 65535.0f ? 65535 : static_cast<uint16_t>(worst);
      uint32_t left = not_above(sums, bound);
      // The last block of a cell has rows that are not there.
      if (last - row < kRows) left &= (uint32_t{1} << (last - row)) - 1;
      for (; left; left &= left - 1) {
        const int64_t at = __builtin_ctz(left);
        heap.offer(sums[at], row + at);
      }
    }
  }
}

}  // extern "C"
