// Attention over paged keys and values: one query per sequence while decoding, tiles of rows for
// prompts.
//
// Contexts are cut at fixed places, so a row's result depends on that row alone.
#pragma once

#include "pool.h"
#include "threads.h"

// Tokens of a piece of a decoding context: few long contexts still occupy all threads. A constant,
// so that a row's sums run in one order whatever else is in the batch.
constexpr long SPLIT = 256;

constexpr long TILE = 64;  // tokens that are taken at once where rows are many

// A piece of a decoding row's context, or a tile of a prompt's rows for one key head.
struct Unit {
    int64_t sequence, head, first, end, part;
};

// Where the prompt chunks of a step stand: first rows and ends [S + 1], tokens to attend for each
// chunk's last row [S].
struct Chunks {
    const int64_t *starts, *contexts;
};

// The units of a step: prompt tiles first, as they are the longest; then pieces of decoding rows.
struct Work {
    std::vector<Unit> units, rows;
    long num_tiles = 0, num_parts = 0;
    bool is_whole = true;  // no row is cut

    Work(long sequences, long decodes, long kv_heads, long group, const int64_t* starts,
        const int64_t* contexts, long window = 0) {
        // Rows times heads of a tile: enough lines to reuse what `unpack` laid out, few enough to
        // share.
        const long height = std::max(96 / group, 1L);
        for (long q = decodes; q < sequences; q++) {
            const long rows = starts[q + 1] - starts[q];
            for (long first = 0; first < rows; first += height)
                for (long head = 0; head < kv_heads; head++)
                    units.push_back({q, head, first, std::min(first + height, rows), 0});
        }
        num_tiles = (long)units.size();
        for (long row = 0; row < decodes; row++) {
            const long context = contexts[row], begin = window ? std::max(context - window, 0L) : 0;
            rows.push_back({row, 0, num_parts, (context - 1) / SPLIT - begin / SPLIT + 1, 0});
            for (long first = begin, end; first < context; first = end) {
                end = std::min(context, (first / SPLIT + 1) * SPLIT);
                units.push_back({row, 0, first, end, num_parts++});
            }
        }
        is_whole = num_parts == (long)rows.size();
    }
};

// All attention of a layer. Called by all threads of a team; `parts` takes what pieces of rows find.
void attend(Team& team, const View& view, const Work& work, const Chunks& c, const float* qkv,
    long qkv_row, float* out, long out_row, float* parts);

// Scratch of a thread, whole lines of the cache, kept between steps: allocating per unit would
// serialize the threads.
float* scratch(size_t floats);

// Rows [first, end) of a prompt chunk attend to their contexts for one key head, by tiles.
void attend_rows_tiled(const View& view, const Unit& unit, const Chunks& c, const float* qkv,
    long qkv_row, float* out, long out_row);

// One piece of a decoding row, all heads: for each key head `parts` gets numerators [group, width],
// peaks [group], denominators [group]. `query` is scratch for the row's queries.
void attend_unit(const View& view, const Unit& unit, const float* queries, float* query,
    float* parts);
// The same by tiles, of a context whose last token the row is.
void attend_unit_tiled(const View& view, const Unit& unit, long context, const float* queries,
    float* parts);
