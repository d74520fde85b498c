// Distances to vectors from one bit per number, with what they may be off by.
//
// Gao and Long 2024 (RaBitQ, arXiv 2405.12497): the signs of a rotated vector tell its inner
// product with a query nearly without bias; the query itself is taken at four bits a number, so
// that the sum over set bits is a few counts of bits.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

namespace steelyard {

// What a search knows of its query; a lower bound of a distance is
// base + norms * norm - scale * (counts of bits) for each row.
struct CodedQuery {
  static constexpr int kPlanes = 4;

  int64_t words = 0;
  std::vector<uint64_t> planes;  // [words, 4]
  float base = 0, norm_weight = 0, product_weight = 0, step = 0, low = 0, total = 0, margin = 0;

  // `rotation` is [dim, dim], applied as query @ rotation; `margin` is in errors of a product.
  CodedQuery(const float* query, const float* middle, const float* rotation, int64_t dim,
             bool is_l2, float errors)
      : words((dim + 63) / 64), planes(kPlanes * words) {
    std::vector<float> moved(dim), turned(dim);
    float inner = 0, squared = 0;
    for (int64_t place = 0; place < dim; ++place) {
      moved[place] = is_l2 ? query[place] - middle[place] : query[place];
      inner += query[place] * middle[place];
      squared += moved[place] * moved[place];
    }
    for (int64_t place = 0; place < dim; ++place) {
      const float number = moved[place];
      const float* row = rotation + place * dim;
      for (int64_t to = 0; to < dim; ++to) turned[to] += number * row[to];
    }
    const auto [least, most] = std::minmax_element(turned.begin(), turned.end());
    low = *least;
    step = std::max((*most - low) / 15.0f, 1e-30f);
    for (int64_t place = 0; place < dim; ++place) {
      const int level = static_cast<int>((turned[place] - low) / step + 0.5f);
      total += turned[place];
      for (int plane = 0; plane < kPlanes; ++plane) {
        planes[place / 64 * kPlanes + plane] |= uint64_t((level >> plane) & 1) << (place % 64);
      }
    }
    base = is_l2 ? squared : -inner;
    norm_weight = is_l2 ? 1.0f : 0.0f;
    product_weight = is_l2 ? 1.0f : 0.5f;
    margin = product_weight * errors * std::sqrt(squared);
  }

  // `record` is a code of `words` words, then the squared length of the row and its factor. How
  // many words there are is told to the compiler where they are few: it counts without a loop then.
  template <int kWords>
  float lower_bound(const uint64_t* record) const {
    const int64_t size = kWords ? kWords : words;
    int64_t ones = 0, sum = 0;
#pragma GCC unroll 4
    for (int64_t word = 0; word < size; ++word) {
      const uint64_t code = record[word];
      const uint64_t* own = planes.data() + kPlanes * word;
      ones += __builtin_popcountll(code);
      sum += __builtin_popcountll(code & own[0]) + 2 * __builtin_popcountll(code & own[1]) +
             4 * __builtin_popcountll(code & own[2]) + 8 * __builtin_popcountll(code & own[3]);
    }
    float facts[2];
    std::memcpy(facts, record + size, sizeof(facts));
    const float signs =
        2.0f * (low * static_cast<float>(ones) + step * static_cast<float>(sum)) - total;
    return base + norm_weight * facts[0] - facts[1] * (product_weight * signs + margin);
  }
};

}  // namespace steelyard
