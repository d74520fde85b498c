// The search of one tenant's vectors: nodes of the tree in the order of their promise.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "nearest.h"
#include "sign_codes.h"
#include "vectors.h"

namespace steelyard {

constexpr int64_t kChunk = 64, kLong = 256;

// Vectors and the tree they hang in; Python fills it in (tenants/native.py has the same fields).
struct Tree {
  int64_t dim, is_l2;
  const float* centers;         // [M, dim]
  const int32_t* first_child;   // [M]
  const int32_t* num_children;  // [M]
  const int32_t* last_leaf;     // [M]
  const float* spread;          // [M]
  const float* vectors;         // [N, dim]
  const int32_t* leaves;        // [N]
  const int64_t* numbers;       // [N]
  const uint64_t* records;      // [N, words + 1]
  const float* rotation;        // [dim, dim]
  int64_t shortlist, whole, coded_whole;
  float boost, errors;
};

// What tenants see: rows in the order of (leaf, row), in chunks.
struct Lists {
  const int32_t* rows;     // [chunks, 64]
  const int32_t* lengths;  // [chunks]
  const int64_t* places;   // [tenants, 3]: first place, length and room of a directory
  const int32_t* chunks;
  const int64_t* keys;
};

// A question and where its answer goes; which tenant it is about is told with each call.
struct Question {
  const Tree* tree;
  const Lists* lists;
  const float* queries;  // [num_queries, dim]
  int64_t num_queries, k;
  float* distances;  // [num_queries, k]
  int64_t* ids;      // [num_queries, k]
  int64_t* counts;   // rows looked at, nodes entered, vectors compared
};

// A node and its range of a directory: chunk and place of the first row, and of one past the last.
struct Entry {
  float score;
  int64_t node, begin, place, end, until;
};

// Rows, and what their distances are hardly below.
struct Marked {
  std::vector<float> bounds;
  std::vector<int32_t> rows;
  int64_t size = 0;

  // Make room for a run of rows behind those that are there.
  void reserve_run() {
    if (size + kChunk <= static_cast<int64_t>(rows.size())) return;
    bounds.resize(2 * (size + kChunk));
    rows.resize(2 * (size + kChunk));
  }
};

// What searches use again and again.
struct Room {
  std::vector<Entry> heap;
  Marked marked;
  CodedQuery coded;
  std::vector<float> bounds;
  std::vector<int64_t> places;
};

struct Search {
  static constexpr int64_t kAhead = 6;

  const Tree& tree;
  const Lists& lists;
  const int64_t first, count;
  const float* query;
  const CodedQuery* coded;  // null where every row is compared by its whole vector
  Nearest& nearest;
  Marked& marked;
  Nearest promising;  // by their bounds
  int64_t compared = 0;

  int64_t length(int64_t at) const { return lists.lengths[lists.chunks[first + at]]; }

  float distance(const float* vector) const {
    return tree.is_l2 ? apart<true>(query, vector, tree.dim)
                      : apart<false>(query, vector, tree.dim);
  }

  // Count the rows of a range, no further than just above `most`.
  int64_t counted(const Entry& range, int64_t most) const {
    if (range.begin == range.end) return range.until - range.place;
    int64_t total = length(range.begin) - range.place;
    for (int64_t at = range.begin + 1; at < range.end; ++at) {
      if (total > most) return total;
      total += length(at);
    }
    return total + range.until;
  }

  void compare(int32_t row) {
    const float found = distance(tree.vectors + row * tree.dim);
    ++compared;
    if (found <= nearest.worst()) nearest.offer(found, tree.numbers[row]);
  }

  // Call for each run of rows of a range that lie beside each other.
  template <typename Scan>
  void for_runs(const Entry& range, Scan scan_run) const {
    for (int64_t at = range.begin; at <= range.end; ++at) {
      const int64_t begin = at == range.begin ? range.place : 0;
      const int64_t end = at == range.end ? range.until : length(at);
      scan_run(lists.rows + lists.chunks[first + at] * kChunk + begin, end - begin);
    }
  }

  // Vectors lie anywhere in memory: some are on their way while others are compared.
  void scan_whole(const Entry& range) {
    for_runs(range, [&](const int32_t* rows, int64_t count) {
      for (int64_t place = 0; place < count; ++place) {
        if (place + kAhead < count) fetch(rows[place + kAhead]);
        compare(rows[place]);
      }
    });
  }

  void fetch(int32_t row) const {
    const float* vector = tree.vectors + row * tree.dim;
    for (int64_t at = 0; at < tree.dim; at += kLanes) __builtin_prefetch(vector + at);
  }

  // Look at the codes of all rows, compare the most promising, then those that may still be nearer.
  void scan_coded(const Entry& range) {
    switch (coded->words) {
      case 1: return scan_codes<1>(range);
      case 2: return scan_codes<2>(range);
      case 3: return scan_codes<3>(range);
      case 4: return scan_codes<4>(range);
      default: return scan_codes<0>(range);
    }
  }

  template <int kWords>
  void scan_codes(const Entry& range) {
    marked.size = 0;
    promising.clear();
    // In a short range what was found before tells enough.
    const bool is_long = counted(range, kLong) > kLong;
    for_runs(range, [&](const int32_t* rows, int64_t count) {
      marked.reserve_run();
      float* bounds = marked.bounds.data() + marked.size;
      coded->lower_bounds<kWords>(tree.records, rows, count, bounds);
      std::copy_n(rows, count, marked.rows.data() + marked.size);
      if (is_long) mark_promising(bounds, count);
      marked.size += count;
    });
    compare_marked();
  }

  // Keep the most promising of a run; as every row comes once, its place tells it from others.
  void mark_promising(const float* bounds, int64_t count) {
    for (int64_t first = 0; first < count; first += kLanes) {
      // Behind the run there is room, with anything in it.
      if (!any(widened(bounds + first) <= everywhere(promising.worst()))) continue;
      for (int64_t place = first; place < std::min(first + kLanes, count); ++place) {
        if (bounds[place] <= promising.worst()) promising.offer(bounds[place], marked.size + place);
      }
    }
  }

  void compare_marked() {
    float* bounds = marked.bounds.data();
    int32_t* rows = marked.rows.data();
    constexpr float kFar = std::numeric_limits<float>::infinity();
    for (int64_t place = 0; place < promising.size; ++place) {
      if (promising.ids[place] != kNone) fetch(rows[promising.ids[place]]);
    }
    for (int64_t place = 0; place < promising.size; ++place) {
      const int64_t own = promising.ids[place];
      if (own == kNone) continue;
      if (bounds[own] <= nearest.worst()) compare(rows[own]);
      bounds[own] = kFar;
    }
    // Which are left is known before any is compared, so that they can be on their way; a branch
    // would be guessed wrong for most of them.
    const float worst = std::min(nearest.worst(), std::numeric_limits<float>::max());
    int64_t left = 0;
    for (int64_t place = 0; place < marked.size; ++place) {
      const float bound = bounds[place];
      rows[left] = rows[place], bounds[left] = bound;
      left += bound <= worst;
    }
    for (int64_t place = 0; place < std::min(kAhead, left); ++place) fetch(rows[place]);
    for (int64_t place = 0; place < left; ++place) {
      if (place + kAhead < left) fetch(rows[place + kAhead]);
      if (bounds[place] <= nearest.worst()) compare(rows[place]);
    }
  }

  // Find the first row of a leaf, or of a later one, between two chunks.
  void lower_bound(int64_t low, int64_t high, int64_t leaf, int64_t& chunk, int64_t& place) const {
    const int64_t key = leaf << 32;
    int64_t after = high + 1;
    while (after - low > 1) {
      const int64_t middle = (low + after) / 2;
      (lists.keys[first + middle] <= key ? low : after) = middle;
    }
    const int32_t* rows = lists.rows + lists.chunks[first + low] * kChunk;
    int64_t begin = 0, end = length(low);
    while (begin < end) {
      const int64_t middle = (begin + end) / 2;
      const int64_t row = rows[middle];
      if (((static_cast<int64_t>(tree.leaves[row]) << 32) | row) < key) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    chunk = low, place = begin;
  }

  template <typename Push>
  void expand(const Entry& top, Push push) const {
    int64_t begin = top.begin, place = top.place;
    const int64_t child0 = tree.first_child[top.node];
    for (int64_t child = child0; child < child0 + tree.num_children[top.node]; ++child) {
      int64_t end = top.end, until = top.until;
      if (tree.last_leaf[child] != tree.last_leaf[top.node]) {
        lower_bound(begin, top.end, tree.last_leaf[child], end, until);
        if (end == top.end && until > top.until) until = top.until;
      }
      if (end > begin || until > place) {
        const float score = distance(tree.centers + child * tree.dim);
        push(Entry{score - tree.boost * tree.spread[child], child, begin, place, end, until});
      }
      begin = end, place = until;
    }
  }

  // Return rows that were looked at; `expanded` counts nodes that were entered.
  int64_t run(int64_t nprobe, std::vector<Entry>& heap, int64_t& expanded) {
    const auto is_later = [](const Entry& one, const Entry& other) {
      return one.score > other.score || (one.score == other.score && one.node > other.node);
    };
    heap.assign(1, Entry{0.0f, 0, 0, 0, count - 1, length(count - 1)});
    int64_t seen = 0;
    while (!heap.empty() && seen < nprobe) {
      std::pop_heap(heap.begin(), heap.end(), is_later);
      const Entry top = heap.back();
      heap.pop_back();
      // A tenant of few vectors is compared whole: no tree beats that.
      int64_t most = std::min(tree.shortlist, nprobe);
      if (top.node == 0) most = std::max(nprobe, coded ? tree.coded_whole : tree.whole);
      const int64_t found = counted(top, most);
      if (found <= most || !tree.num_children[top.node]) {
        coded ? scan_coded(top) : scan_whole(top);
        seen += found;
        continue;
      }
      ++expanded;
      expand(top, [&](const Entry& entry) {
        heap.push_back(entry);
        std::push_heap(heap.begin(), heap.end(), is_later);
      });
    }
    return seen;
  }
};

// Whether all numbers are finite: others times 0 are no number.
inline bool is_finite(const float* query, int64_t dim) {
  Lanes found{};
  float rest = 0;
  int64_t place = 0;
  for (; place + kLanes <= dim; place += kLanes) found += widened(query + place) * 0.0f;
  for (; place < dim; ++place) rest += query[place] * 0.0f;
  return sum(found) + rest == 0.0f;
}

}  // namespace steelyard

using namespace steelyard;

extern "C" {

// Search the vectors of one tenant, which has a row at least. `is_coded` lets signs tell which
// vectors are compared. Return the first query that holds a number that is not finite, -1 for none.
int64_t steelyard_search_tenant(const Question* asked, int64_t tenant, int64_t nprobe,
                                int64_t is_coded) {
  const auto [tree, lists, queries, num_queries, k, distances, ids, counts] = *asked;
  thread_local Room room;
  room.bounds.resize(k);
  room.places.resize(k);
  std::fill(counts, counts + 3, 0);
  for (int64_t number = 0; number < num_queries; ++number) {
    const float* query = queries + number * tree->dim;
    if (!is_finite(query, tree->dim)) return number;
    if (is_coded) {
      room.coded.take(query, tree->centers, tree->rotation, tree->dim, tree->is_l2, tree->errors);
    }
    Nearest nearest{distances + number * k, ids + number * k, k};
    nearest.clear();
    Search search{*tree,
                  *lists,
                  lists->places[3 * tenant],
                  lists->places[3 * tenant + 1],
                  query,
                  is_coded ? &room.coded : nullptr,
                  nearest,
                  room.marked,
                  Nearest{room.bounds.data(), room.places.data(), k}};
    counts[0] += search.run(nprobe, room.heap, counts[1]);
    counts[2] += search.compared;
    nearest.sort();
    for (int64_t place = 0; place < k; ++place) {
      if (nearest.ids[place] == kNone) nearest.ids[place] = -1;
      if (!tree->is_l2) nearest.distances[place] = -nearest.distances[place];
    }
  }
  return -1;
}

}  // extern "C"
