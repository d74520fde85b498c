// Distances of a query to whole vectors, row by row or sixteen centers at a time.

#pragma once

#include <cstdint>

#include "nearest.h"

namespace steelyard {

constexpr int64_t kLanes = 16;

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t Signs __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

template <typename Half, typename Whole>
void halve(const Whole& whole, Half (&halves)[2]) {
  static_assert(sizeof(halves) == sizeof(whole));
  __builtin_memcpy(halves, &whole, sizeof(whole));
}

inline float sum(Lanes values) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight eights[2];
  Four fours[2];
  halve(values, eights);
  halve(eights[0] + eights[1], fours);
  const Four last = fours[0] + fours[1];
  return (last[0] + last[2]) + (last[1] + last[3]);
}

inline bool any(Signs signs) {
  typedef int32_t Eight __attribute__((vector_size(32)));
  typedef int64_t Two __attribute__((vector_size(16)));
  Eight eights[2];
  Two twos[2];
  halve(signs, eights);
  halve(eights[0] | eights[1], twos);
  const Two last = twos[0] | twos[1];
  return (last[0] | last[1]) != 0;
}

inline Lanes widened(const float* numbers) {
  Lanes found;
  __builtin_memcpy(&found, numbers, sizeof(found));
  return found;
}

inline Lanes widened(const uint8_t* numbers) {
  Bytes found;
  __builtin_memcpy(&found, numbers, sizeof(found));
  return __builtin_convertvector(found, Lanes);
}

inline Lanes everywhere(float number) { return number - Lanes{}; }

// Squared distance, or negative inner product.
template <bool kIsL2, typename Number>
float apart(const float* query, const Number* vector, int64_t dim) {
  Lanes one{}, two{};
  int64_t place = 0;
  for (; place + 2 * kLanes <= dim; place += 2 * kLanes) {
    const Lanes left = widened(query + place), right = widened(query + place + kLanes);
    const Lanes first = widened(vector + place), second = widened(vector + place + kLanes);
    if constexpr (kIsL2) {
      one += (left - first) * (left - first);
      two += (right - second) * (right - second);
    } else {
      one -= left * first;
      two -= right * second;
    }
  }
  float total = sum(one + two);
  for (; place < dim; ++place) {
    const float number = static_cast<float>(vector[place]);
    if constexpr (kIsL2) {
      total += (query[place] - number) * (query[place] - number);
    } else {
      total -= query[place] * number;
    }
  }
  return total;
}

template <bool kIsL2>
Lanes added(Lanes total, float number, Lanes center) {
  const Lanes query = everywhere(number);
  return kIsL2 ? total + (query - center) * (query - center) : total - query * center;
}

// Offer sixteen centers of which the first is `first`; behind `count` there are none.
inline void offer_lanes(Lanes totals, int64_t first, int64_t count, Nearest& nearest) {
  const int64_t here = std::min(kLanes, count - first);
  for (int64_t lane = 0; lane < here; ++lane) nearest.offer(totals[lane], first + lane);
}

// Compare a query with centers that lie in blocks [blocks, dim, 16].
template <bool kIsL2>
void compare_centers(const float* query, const float* blocks, int64_t count, int64_t dim,
                     Nearest& nearest) {
  const int64_t size = dim * kLanes;
  int64_t first = 0;
  for (; first + 4 * kLanes <= count; first += 4 * kLanes) {
    const float* at = blocks + first * dim;
    Lanes t0{}, t1{}, t2{}, t3{};
    for (int64_t place = 0; place < dim; ++place, at += kLanes) {
      t0 = added<kIsL2>(t0, query[place], widened(at));
      t1 = added<kIsL2>(t1, query[place], widened(at + size));
      t2 = added<kIsL2>(t2, query[place], widened(at + 2 * size));
      t3 = added<kIsL2>(t3, query[place], widened(at + 3 * size));
    }
    // One look tells for 64 centers that none is near enough, which is the rule.
    const Lanes worst = everywhere(nearest.worst());
    if (!any((t0 <= worst) | (t1 <= worst) | (t2 <= worst) | (t3 <= worst))) continue;
    offer_lanes(t0, first, count, nearest);
    offer_lanes(t1, first + kLanes, count, nearest);
    offer_lanes(t2, first + 2 * kLanes, count, nearest);
    offer_lanes(t3, first + 3 * kLanes, count, nearest);
  }
  for (; first < count; first += kLanes) {
    const float* at = blocks + first * dim;
    Lanes total{};
    for (int64_t place = 0; place < dim; ++place, at += kLanes) {
      total = added<kIsL2>(total, query[place], widened(at));
    }
    offer_lanes(total, first, count, nearest);
  }
}

}  // namespace steelyard
