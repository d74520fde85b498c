// Exact search of inner products: bytes in memory tell which vectors can be among the k best, and
// the vectors themselves, wherever they lie, decide.
//
// With vector x = x' + r and query q = q' + e, where x' and q' are what bytes stand for,
// |q.x - q'.x'| <= |e| |x'| + |q| |r|. What cannot reach the k-th best by its upper bound is left
// out, so that nothing that belongs to the answer is.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#if defined(__AVX512VNNI__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kTogether = 32;   // queries
constexpr int64_t kRowBlock = 2048;  // rows that stay in the cache while all queries pass
constexpr int64_t kRowTile = 8;

struct Rows {
  const int8_t* codes;    // [N, width]
  const int32_t* sums;    // 128 times the sum of a row's code
  const float* scales;    // of a row's code
  const float* lengths;   // |x'|
  const float* residues;  // |r|
  int64_t count, width;   // width is a multiple of 4
};

struct Candidate {
  float high, low;
  int32_t row;
};

// What one query has found so far.
struct Found {
  std::vector<Candidate> rows;

  // Raise the threshold to the k-th best lower bound, and forget what lies below it.
  float raised(int64_t k, float threshold) {
    if (static_cast<int64_t>(rows.size()) < k) return threshold;
    std::vector<float> lows;
    for (const Candidate& row : rows) lows.push_back(row.low);
    std::nth_element(lows.begin(), lows.begin() + (k - 1), lows.end(), std::greater<float>());
    threshold = std::max(threshold, lows[k - 1]);
    std::erase_if(rows, [&](const Candidate& row) { return row.high < threshold; });
    return threshold;
  }
};

// A group of queries: bytes in lanes [width / 4, 32, 4], with 128 added, and their factors.
struct Group {
  std::vector<uint8_t> codes;
  float scale[kTogether], error[kTogether], length[kTogether], threshold[kTogether];
  Found found[kTogether];
  int64_t limit;

  void take(int64_t lane, float score, float margin, int64_t row, int64_t k) {
    Found& own = found[lane];
    own.rows.push_back({score + margin, score - margin, static_cast<int32_t>(row)});
    if (static_cast<int64_t>(own.rows.size()) >= limit) {
      threshold[lane] = own.raised(k, threshold[lane]);
      // Where bounds are too wide to tell apart what is there, more room is needed.
      limit = std::max<int64_t>(limit, 2 * own.rows.size());
    }
  }
};

#ifdef __AVX512VNNI__

void scan(const Rows& rows, int64_t first, int64_t last, Group& group, int64_t k) {
  const __m512 scale0 = _mm512_loadu_ps(group.scale), scale1 = _mm512_loadu_ps(group.scale + 16);
  const __m512 error0 = _mm512_loadu_ps(group.error), error1 = _mm512_loadu_ps(group.error + 16);
  const __m512 length0 = _mm512_loadu_ps(group.length);
  const __m512 length1 = _mm512_loadu_ps(group.length + 16);
  for (int64_t row = first; row < last; row += kRowTile) {
    __m512i sums[kRowTile][2];
    const int8_t* at[kRowTile];
#pragma GCC unroll 8
    for (int64_t own = 0; own < kRowTile; ++own) {
      sums[own][0] = sums[own][1] = _mm512_setzero_si512();
      // Behind the last row the last one is taken again, and not looked at.
      at[own] = rows.codes + std::min(row + own, last - 1) * rows.width;
    }
    const uint8_t* query = group.codes.data();
    for (int64_t place = 0; place < rows.width; place += 4, query += 4 * kTogether) {
      const __m512i left = _mm512_loadu_si512(query), right = _mm512_loadu_si512(query + 64);
#pragma GCC unroll 8
      for (int64_t own = 0; own < kRowTile; ++own) {
        int32_t four;
        std::memcpy(&four, at[own] + place, 4);
        const __m512i code = _mm512_set1_epi32(four);
        sums[own][0] = _mm512_dpbusd_epi32(sums[own][0], left, code);
        sums[own][1] = _mm512_dpbusd_epi32(sums[own][1], right, code);
      }
    }
    for (int64_t own = 0; own < std::min(kRowTile, last - row); ++own) {
      const int64_t number = row + own;
      const __m512i offset = _mm512_set1_epi32(rows.sums[number]);
      const __m512 row_scale = _mm512_set1_ps(rows.scales[number]);
      const __m512 row_length = _mm512_set1_ps(rows.lengths[number]);
      const __m512 residue = _mm512_set1_ps(rows.residues[number]);
      for (int half = 0; half < 2; ++half) {
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[own][half], offset));
        const __m512 score = _mm512_mul_ps(_mm512_mul_ps(dot, row_scale), half ? scale1 : scale0);
        const __m512 margin =
            _mm512_fmadd_ps(half ? error1 : error0, row_length,
                            _mm512_mul_ps(half ? length1 : length0, residue));
        const __m512 threshold = _mm512_loadu_ps(group.threshold + 16 * half);
        uint32_t near = _mm512_cmp_ps_mask(_mm512_add_ps(score, margin), threshold, _CMP_GE_OQ);
        if (!near) continue;
        float scores[16], margins[16];
        _mm512_storeu_ps(scores, score);
        _mm512_storeu_ps(margins, margin);
        for (; near; near &= near - 1) {
          const int lane = __builtin_ctz(near);
          group.take(16 * half + lane, scores[lane], margins[lane], number, k);
        }
      }
    }
  }
}

#else

void scan(const Rows& rows, int64_t first, int64_t last, Group& group, int64_t k) {
  for (int64_t row = first; row < last; ++row) {
    int32_t sums[kTogether] = {};
    const int8_t* code = rows.codes + row * rows.width;
    for (int64_t place = 0; place < rows.width; ++place) {
      const uint8_t* query = group.codes.data() + place / 4 * 4 * kTogether + place % 4;
      for (int64_t lane = 0; lane < kTogether; ++lane) sums[lane] += query[4 * lane] * code[place];
    }
    for (int64_t lane = 0; lane < kTogether; ++lane) {
      const float score = static_cast<float>(sums[lane] - rows.sums[row]) * rows.scales[row] *
                          group.scale[lane];
      const float margin = group.error[lane] * rows.lengths[row] +
                           group.length[lane] * rows.residues[row];
      if (score + margin >= group.threshold[lane]) group.take(lane, score, margin, row, k);
    }
  }
}

#endif

inline void widen(const float* numbers, float (&found)[8]) {
  std::memcpy(found, numbers, sizeof(found));
}

inline void widen(const _Float16* numbers, float (&found)[8]) {
#ifdef __F16C__
  _mm256_storeu_ps(found, _mm256_cvtph_ps(_mm_loadu_si128(
                              reinterpret_cast<const __m128i*>(numbers))));
#else
  for (int lane = 0; lane < 8; ++lane) found[lane] = static_cast<float>(numbers[lane]);
#endif
}

template <typename Number>
double product(const float* query, const Number* vector, int64_t dim) {
  // Sums of floats would be rounded: doubles hold products of floats exactly.
  double sums[8] = {};
  int64_t place = 0;
  for (; place + 8 <= dim; place += 8) {
    float wide[8];
    widen(vector + place, wide);
    for (int lane = 0; lane < 8; ++lane) {
      sums[lane] += static_cast<double>(query[place + lane]) * static_cast<double>(wide[lane]);
    }
  }
  double total = 0;
  for (double sum : sums) total += sum;
  for (; place < dim; ++place) {
    total += static_cast<double>(query[place]) *
             static_cast<double>(static_cast<float>(vector[place]));
  }
  return total;
}

}  // namespace

extern "C" {

// Find the k largest inner products of each query exactly. `vectors` are floats of `number_bytes`
// 4 or 2 [N, dim]. `codes` of queries are whole numbers from -127 to 127 [Q, width]. `compared`
// counts vectors that were looked at themselves.
void steelyard_exact_search(const int8_t* codes, const int32_t* sums, const float* scales,
                            const float* lengths, const float* residues, int64_t count,
                            int64_t width, const void* vectors, int64_t dim, int64_t number_bytes,
                            const float* queries, const int8_t* query_codes,
                            const float* query_facts, int64_t num_queries, int64_t k,
                            float* products, int64_t* ids, int64_t* compared) {
  const Rows rows{codes, sums, scales, lengths, residues, count, width};
  const int64_t num_groups = (num_queries + kTogether - 1) / kTogether;
  std::vector<Group> groups(num_groups);
  for (int64_t number = 0; number < num_groups; ++number) {
    Group& group = groups[number];
    group.codes.assign(width * kTogether, 128);
    group.limit = 4 * k + 1024;
    for (int64_t lane = 0; lane < kTogether; ++lane) {
      const int64_t query = number * kTogether + lane;
      const bool is_there = query < num_queries;
      group.scale[lane] = is_there ? query_facts[3 * query] : 0.0f;
      group.error[lane] = is_there ? query_facts[3 * query + 1] : 0.0f;
      group.length[lane] = is_there ? query_facts[3 * query + 2] : 0.0f;
      const float far = std::numeric_limits<float>::infinity();
      group.threshold[lane] = is_there ? -far : far;
      for (int64_t place = 0; is_there && place < width; ++place) {
        group.codes[(place / 4 * kTogether + lane) * 4 + place % 4] =
            static_cast<uint8_t>(query_codes[query * width + place] + 128);
      }
    }
  }
  for (int64_t first = 0; first < count; first += kRowBlock) {
    const int64_t last = std::min(first + kRowBlock, count);
    for (Group& group : groups) scan(rows, first, last, group, k);
  }
  struct Scored {
    double product;
    int32_t row;
  };
  std::vector<Scored> scored;
  for (int64_t query = 0; query < num_queries; ++query) {
    Group& group = groups[query / kTogether];
    Found& found = group.found[query % kTogether];
    found.raised(k, group.threshold[query % kTogether]);
    scored.clear();
    const float* own = queries + query * dim;
    for (const Candidate& candidate : found.rows) {
      const int64_t at = candidate.row * dim;
      scored.push_back({number_bytes == 4
                            ? product(own, static_cast<const float*>(vectors) + at, dim)
                            : product(own, static_cast<const _Float16*>(vectors) + at, dim),
                        candidate.row});
    }
    *compared += static_cast<int64_t>(scored.size());
    const int64_t taken = std::min<int64_t>(k, scored.size());
    std::partial_sort(scored.begin(), scored.begin() + taken, scored.end(),
                      [](const Scored& one, const Scored& other) {
                        return one.product > other.product ||
                               (one.product == other.product && one.row < other.row);
                      });
    for (int64_t place = 0; place < taken; ++place) {
      products[query * k + place] = static_cast<float>(scored[place].product);
      ids[query * k + place] = scored[place].row;
    }
  }
}

}  // extern "C"
