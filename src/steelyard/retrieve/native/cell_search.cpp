// Whole searches of indexes of cells: centers, tables, scans, and candidates compared again.

#include <cstdint>
#include <vector>

#include "half_bytes.h"
#include "nearest.h"
#include "vectors.h"

namespace steelyard {

// What an index holds; Python fills it in once (native_cells.py has the same fields).
struct Cells {
  int64_t dim, nlist, is_l2;
  int64_t codec;              // 0 whole vectors, 1 codes of bytes, 2 codes of half bytes
  const float* centers;       // [nlist / 16, dim, 16]
  const int64_t* row_starts;  // [nlist + 1]
  const int64_t* ids;         // [N]
  const void* vectors;        // [N, dim]
  int64_t number_bytes;       // 4: floats, 1: bytes, 0: there are no whole vectors
  const uint8_t* codes;       // [N, parts], or blocks of 32 rows
  const int64_t* block_starts;
  const float* code_centers;  // [parts, width, 256], or [parts, width, 16]
  const float* extra;         // added to each row [N], or to each entry [parts, 16]
  int64_t parts;
  float factor;               // of inner products in tables
};

// What a query needs on its way.
struct Scratch {
  std::vector<float> tables;
  std::vector<uint8_t> bytes;

  explicit Scratch(const Cells& index)
      : tables(index.parts * (index.codec == 1 ? 256 : 16)), bytes(index.parts * 16) {}
};

template <bool kIsL2>
float row_apart(const Cells& index, const float* query, int64_t row) {
  if (index.number_bytes == 1) {
    return apart<kIsL2>(query, static_cast<const uint8_t*>(index.vectors) + row * index.dim,
                        index.dim);
  }
  return apart<kIsL2>(query, static_cast<const float*>(index.vectors) + row * index.dim,
                      index.dim);
}

void code_tables(const Cells& index, const float* query, float* tables) {
  const int64_t width = index.dim / index.parts;
  for (int64_t part = 0; part < index.parts; ++part) {
    float* own = tables + part * 256;
    std::fill(own, own + 256, 0.0f);
    for (int64_t place = part * width; place < (part + 1) * width; ++place) {
      const float number = index.factor * query[place];
      const float* centers = index.code_centers + place * 256;
      for (int center = 0; center < 256; ++center) own[center] += number * centers[center];
    }
  }
}

float code_sum(const float* tables, const uint8_t* code, int64_t parts) {
  float one = 0.0f, two = 0.0f, three = 0.0f, four = 0.0f;  // four sums do not wait for each other
  int64_t part = 0;
  for (; part + 4 <= parts; part += 4) {
    const float* at = tables + part * 256;
    one += at[code[part]];
    two += at[256 + code[part + 1]];
    three += at[512 + code[part + 2]];
    four += at[768 + code[part + 3]];
  }
  for (; part < parts; ++part) one += tables[part * 256 + code[part]];
  return (one + two) + (three + four);
}

template <typename Distance>
void scan_rows(const Cells& index, int64_t first, int64_t last, bool keeps_rows, Nearest& nearest,
               Distance distance) {
  for (int64_t row = first; row < last; ++row) {
    const float found = distance(row);
    if (found <= nearest.worst()) nearest.offer(found, keeps_rows ? row : index.ids[row]);
  }
}

void make_tables(const Cells& index, const float* query, Scratch& scratch) {
  if (index.codec == 1) code_tables(index, query, scratch.tables.data());
  if (index.codec == 2) {
    byte_tables(query, index.code_centers, index.extra, index.factor, index.parts,
                index.dim / index.parts, scratch.tables.data(), scratch.bytes.data());
  }
}

// Scan a cell; `base` is the distance of its center. Return how many rows it has.
int64_t scan_cell(const Cells& index, const float* query, int64_t cell, float base,
                  bool keeps_rows, const Scratch& scratch, Nearest& nearest) {
  const int64_t first = index.row_starts[cell], last = index.row_starts[cell + 1];
  if (index.codec == 2) {
    const uint8_t* block = index.codes + index.block_starts[cell] * index.parts * 16;
    scan_blocks(block, scratch.bytes.data(), index.parts, first, last, nearest);
  } else if (index.codec == 1) {
    const float* tables = scratch.tables.data();
    scan_rows(index, first, last, keeps_rows, nearest, [&](int64_t row) {
      return (base + index.extra[row]) +
             code_sum(tables, index.codes + row * index.parts, index.parts);
    });
  } else if (index.is_l2) {
    scan_rows(index, first, last, keeps_rows, nearest,
              [&](int64_t row) { return row_apart<true>(index, query, row); });
  } else {
    scan_rows(index, first, last, keeps_rows, nearest,
              [&](int64_t row) { return row_apart<false>(index, query, row); });
  }
  return last - first;
}

void nearest_cells(const Cells& index, const float* query, Nearest& cells) {
  cells.clear();
  if (index.is_l2) {
    compare_centers<true>(query, index.centers, index.nlist, index.dim, cells);
  } else {
    compare_centers<false>(query, index.centers, index.nlist, index.dim, cells);
  }
  cells.sort();
}

// Compare a query with candidate rows; places without one hold kNone.
int64_t compare_again(const Cells& index, const float* query, const Nearest& candidates,
                      Nearest& nearest) {
  const int64_t row_bytes = index.dim * index.number_bytes;
  const char* vectors = static_cast<const char*>(index.vectors);
  // Candidates lie anywhere: all are on their way before the first is looked at.
  for (int64_t place = 0; place < candidates.size; ++place) {
    if (candidates.ids[place] == kNone) continue;
    const char* vector = vectors + candidates.ids[place] * row_bytes;
    for (int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(vector + at);
  }
  int64_t compared = 0;
  for (int64_t place = 0; place < candidates.size; ++place) {
    const int64_t row = candidates.ids[place];
    if (row == kNone) continue;
    const float found = index.is_l2 ? row_apart<true>(index, query, row)
                                    : row_apart<false>(index, query, row);
    nearest.offer(found, index.ids[row]);
    ++compared;
  }
  return compared;
}

// Bring what a heap holds in order, as callers see it.
void finish(const Cells& index, Nearest& nearest) {
  nearest.sort();
  for (int64_t place = 0; place < nearest.size; ++place) {
    if (nearest.ids[place] == kNone) nearest.ids[place] = -1;
    if (!index.is_l2) nearest.distances[place] = -nearest.distances[place];
  }
}

}  // namespace steelyard

using steelyard::Cells;
using steelyard::Nearest;
using steelyard::Scratch;

extern "C" {

// Find the nearest cells of each query [Q, count], the nearest first.
void steelyard_nearest_cells(const Cells* index, const float* turned, int64_t queries,
                             int64_t count, float* distances, int64_t* cells) {
  for (int64_t query = 0; query < queries; ++query) {
    Nearest nearest{distances + query * count, cells + query * count, count};
    steelyard::nearest_cells(*index, turned + query * index->dim, nearest);
  }
}

// Scan cells [Q, count] of each query into heaps [Q, size].
void steelyard_scan_cells(const Cells* index, const float* turned, int64_t queries,
                          const int64_t* cells, const float* bases, int64_t count,
                          int64_t keeps_rows, float* distances, int64_t* ids, int64_t size) {
  Scratch scratch(*index);
  for (int64_t query = 0; query < queries; ++query) {
    const float* own = turned + query * index->dim;
    Nearest nearest{distances + query * size, ids + query * size, size};
    steelyard::make_tables(*index, own, scratch);
    for (int64_t place = query * count; place < (query + 1) * count; ++place) {
      steelyard::scan_cell(*index, own, cells[place], bases[place], keeps_rows, scratch, nearest);
    }
  }
}

// Search: nprobe cells of each query, `again` candidates per neighbour compared again where that
// is above 0, and the k nearest in order. `counts` are the rows scanned and those compared again.
void steelyard_search_cells(const Cells* index, const float* asked, const float* turned,
                            int64_t queries, int64_t nprobe, int64_t k, int64_t again,
                            float* distances, int64_t* ids, int64_t* counts) {
  const int64_t size = again ? k * again : 0;
  Scratch scratch(*index);
  std::vector<float> cell_distances(nprobe), candidate_distances(size);
  std::vector<int64_t> cell_ids(nprobe), candidate_ids(size);
  Nearest cells{cell_distances.data(), cell_ids.data(), nprobe};
  Nearest candidates{candidate_distances.data(), candidate_ids.data(), size};
  for (int64_t query = 0; query < queries; ++query) {
    const float* own = turned + query * index->dim;
    Nearest nearest{distances + query * k, ids + query * k, k};
    nearest.clear();
    steelyard::nearest_cells(*index, own, cells);
    steelyard::make_tables(*index, own, scratch);
    if (again) candidates.clear();
    Nearest& filled = again ? candidates : nearest;
    for (int64_t place = 0; place < nprobe; ++place) {
      counts[0] += steelyard::scan_cell(*index, own, cells.ids[place], cells.distances[place],
                                        again != 0, scratch, filled);
    }
    if (again) {
      counts[1] += steelyard::compare_again(*index, asked + query * index->dim, candidates,
                                            nearest);
    }
    steelyard::finish(*index, nearest);
  }
}

// Compare queries with candidate rows [Q, size] again; the k nearest in order.
void steelyard_compare_again(const Cells* index, const float* asked, int64_t queries,
                             int64_t* rows, int64_t size, int64_t k, float* distances,
                             int64_t* ids, int64_t* counts) {
  for (int64_t query = 0; query < queries; ++query) {
    const Nearest candidates{nullptr, rows + query * size, size};
    Nearest nearest{distances + query * k, ids + query * k, k};
    nearest.clear();
    counts[1] += steelyard::compare_again(*index, asked + query * index->dim, candidates, nearest);
    steelyard::finish(*index, nearest);
  }
}

}  // extern "C"
