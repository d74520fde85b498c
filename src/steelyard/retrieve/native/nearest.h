// The nearest so far, as a heap with the worst on top; smaller is nearer, of equal distances the
// smaller number.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace steelyard {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

struct Nearest {
  float* distances;
  int64_t* ids;
  int64_t size;

  void clear() {
    std::fill(distances, distances + size, std::numeric_limits<float>::infinity());
    std::fill(ids, ids + size, kNone);
  }

  float worst() const { return distances[0]; }

  void offer(float distance, int64_t id) {
    if (distance > distances[0] || (distance == distances[0] && id >= ids[0])) return;
    sink(size, distance, id);
  }

  // Order what is held, the nearest first: the worst goes to the end again and again.
  void sort() {
    for (int64_t end = size - 1; end > 0; --end) {
      const float distance = distances[end];
      const int64_t id = ids[end];
      distances[end] = distances[0];
      ids[end] = ids[0];
      sink(end, distance, id);
    }
  }

 private:
  bool worse(int64_t one, int64_t other) const {
    return distances[one] > distances[other] ||
           (distances[one] == distances[other] && ids[one] > ids[other]);
  }

  void sink(int64_t count, float distance, int64_t id) {
    int64_t place = 0;
    while (true) {
      int64_t child = 2 * place + 1;
      if (child >= count) break;
      if (child + 1 < count && worse(child + 1, child)) ++child;
      if (distances[child] < distance || (distances[child] == distance && ids[child] < id)) break;
      distances[place] = distances[child];
      ids[place] = ids[child];
      place = child;
    }
    distances[place] = distance;
    ids[place] = id;
  }
};

}  // namespace steelyard
