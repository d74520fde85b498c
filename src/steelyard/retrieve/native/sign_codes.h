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
// base + norms * norm - scale * (counts of bits) for each row. It is taken again for each query, so
// that its room is.
struct CodedQuery {
  static constexpr int kPlanes = 4;

  int64_t words = 0;
  std::vector<uint64_t> planes;  // [words, 4]
  float base = 0, norm_weight = 0, product_weight = 0, step = 0, low = 0, total = 0, margin = 0;

  // `rotation` is [dim, dim], applied as query @ rotation; `margin` is in errors of a product.
  void take(const float* query, const float* middle, const float* rotation, int64_t dim, bool is_l2,
            float errors) {
    words = (dim + 63) / 64;
    moved.resize(dim);
    if (is_l2) {
      for (int64_t place = 0; place < dim; ++place) moved[place] = query[place] - middle[place];
    } else {
      std::copy_n(query, dim, moved.data());
    }
    const float squared = product(moved.data(), moved.data(), dim);
    const float inner = is_l2 ? 0.0f : product(query, middle, dim);
    turn(rotation, dim);
    float most;
    measure(dim, most);
    step = std::max((most - low) / 15.0f, 1e-30f);
    cut(dim);
    base = is_l2 ? squared : -inner;
    norm_weight = is_l2 ? 1.0f : 0.0f;
    product_weight = is_l2 ? 1.0f : 0.5f;
    margin = product_weight * errors * std::sqrt(squared);
  }

  // `record` is a code of `words` words, then the squared length of the row and its factor.
  float lower_bound(const uint64_t* record) const {
    int64_t ones = 0, sum = 0;
    for (int64_t word = 0; word < words; ++word) {
      count(record[word], planes.data() + kPlanes * word, ones, sum);
    }
    float facts[2];
    std::memcpy(facts, record + words, sizeof(facts));
    return bound(ones, sum, facts[0], facts[1]);
  }

  // Bounds of up to 64 rows, of as many words as the compiler is told (0: of any number). Records
  // are first put beside each other word by word: processors that can count eight at a time.
  // `bounds` has room for 64.
  template <int kWords>
  void lower_bounds(const uint64_t* records, const int32_t* rows, int64_t size,
                    float* bounds) const {
    if constexpr (kWords == 0) {
      for (int64_t place = 0; place < size; ++place) {
        bounds[place] = lower_bound(records + rows[place] * (words + 1));
      }
      return;
    } else {
      uint64_t codes[kWords][kRun];
      float norms[kRun], factors[kRun];
      for (int64_t place = 0; place < size; ++place) {
        const uint64_t* record = records + rows[place] * int64_t{kWords + 1};
        float facts[2];
        std::memcpy(facts, record + kWords, sizeof(facts));
        for (int word = 0; word < kWords; ++word) codes[word][place] = record[word];
        norms[place] = facts[0], factors[place] = facts[1];
      }
      // Whole blocks take no loop over the rest.
      const int64_t whole = (size + kBlock - 1) / kBlock * kBlock;
      for (int64_t place = size; place < whole; ++place) {
        for (int word = 0; word < kWords; ++word) codes[word][place] = 0;
        norms[place] = factors[place] = 0;
      }
      uint64_t own[kWords * kPlanes];
      std::copy_n(planes.data(), kWords * kPlanes, own);
      const CodedQuery::Terms terms = this->terms();
      for (int64_t place = 0; place < whole; ++place) {
        int64_t ones = 0, sum = 0;
        for (int word = 0; word < kWords; ++word) {
          count(codes[word][place], own + kPlanes * word, ones, sum);
        }
        bounds[place] = terms.bound(ones, sum, norms[place], factors[place]);
      }
    }
  }

 private:
  static constexpr int64_t kRun = 64, kBlock = 16;

  // The numbers of a bound by themselves: those of the query might change with what is written.
  struct Terms {
    float base, norm_weight, product_weight, step, low, total, margin;

    float bound(int64_t ones, int64_t sum, float norm, float factor) const {
      const float signs =
          2.0f * (low * static_cast<float>(ones) + step * static_cast<float>(sum)) - total;
      return base + norm_weight * norm - factor * (product_weight * signs + margin);
    }
  };

  std::vector<float> moved, turned;
  std::vector<uint8_t> levels;

  Terms terms() const {
    return {base, norm_weight, product_weight, step, low, total, margin};
  }

  float bound(int64_t ones, int64_t sum, float norm, float factor) const {
    return terms().bound(ones, sum, norm, factor);
  }

  static void count(uint64_t code, const uint64_t* own, int64_t& ones, int64_t& sum) {
    ones += __builtin_popcountll(code);
    sum += __builtin_popcountll(code & own[0]) + 2 * __builtin_popcountll(code & own[1]) +
           4 * __builtin_popcountll(code & own[2]) + 8 * __builtin_popcountll(code & own[3]);
  }

  static float product(const float* one, const float* other, int64_t dim) {
    Lanes lanes{};
    float rest = 0;
    int64_t place = 0;
    for (; place + kLanes <= dim; place += kLanes) {
      lanes += widened(one + place) * widened(other + place);
    }
    for (; place < dim; ++place) rest += one[place] * other[place];
    return sum(lanes) + rest;
  }

  // Find the least, the most and the sum of what was rotated.
  void measure(int64_t dim, float& most) {
    const float* numbers = turned.data();
    Lanes lows = everywhere(numbers[0]), highs = lows, sums{};
    int64_t place = 0;
    for (; place + kLanes <= dim; place += kLanes) {
      const Lanes here = widened(numbers + place);
      lows = here < lows ? here : lows;
      highs = here > highs ? here : highs;
      sums += here;
    }
    low = lows[0], most = highs[0], total = sum(sums);
    for (int64_t lane = 1; lane < kLanes; ++lane) {
      low = std::min(low, lows[lane]);
      most = std::max(most, highs[lane]);
    }
    for (; place < dim; ++place) {
      low = std::min(low, numbers[place]);
      most = std::max(most, numbers[place]);
      total += numbers[place];
    }
  }

  // Rotate what was moved, 64 numbers at a time, which stay in registers.
  void turn(const float* rotation, int64_t dim) {
    turned.assign(dim, 0.0f);
    int64_t to = 0;
    for (; to + 4 * kLanes <= dim; to += 4 * kLanes) {
      Lanes t0{}, t1{}, t2{}, t3{};
      for (int64_t place = 0; place < dim; ++place) {
        const Lanes number = everywhere(moved[place]);
        const float* row = rotation + place * dim + to;
        t0 += number * widened(row), t1 += number * widened(row + kLanes);
        t2 += number * widened(row + 2 * kLanes), t3 += number * widened(row + 3 * kLanes);
      }
      const Lanes found[4] = {t0, t1, t2, t3};
      std::memcpy(turned.data() + to, found, sizeof(found));
    }
    for (int64_t place = 0; place < dim && to < dim; ++place) {
      const float* row = rotation + place * dim;
      for (int64_t rest = to; rest < dim; ++rest) turned[rest] += moved[place] * row[rest];
    }
  }

  // Cut what was rotated into bits of four planes.
  void cut(int64_t dim) {
    levels.assign(64 * words, 0);
    for (int64_t place = 0; place < dim; ++place) {
      levels[place] = static_cast<uint8_t>((turned[place] - low) / step + 0.5f);
    }
    planes.assign(kPlanes * words, 0);
    for (int64_t first = 0; first < 64 * words; first += 8) {
      uint64_t eight;
      std::memcpy(&eight, levels.data() + first, sizeof(eight));
      for (int plane = 0; plane < kPlanes; ++plane) {
        // The product gathers the lowest bits of eight bytes in the highest byte, in their order.
        const uint64_t bits = (eight >> plane) & 0x0101010101010101ull;
        const uint64_t byte = (bits * 0x0102040810204080ull) >> 56;
        planes[first / 64 * kPlanes + plane] |= byte << (first % 64);
      }
    }
  }
};

}  // namespace steelyard
