// Attention over paged keys and values: one query per sequence while decoding, tiles of rows for
// prompts.
//
// Contexts are cut at fixed places, so a row's result depends on that row alone.
#pragma once

#include "decode.h"
#include "norms.h"
#include "products.h"

constexpr long TILE = 64;  // tokens that prompt attention takes at once

// Joins the pieces of one row and key head, `size` apart, in order.
static void join(const float* parts, long size, long pieces, long group, long width, float* out) {
    for (long g = 0; g < group; g++) {
        float peak = LOWEST, weight = 0;
        for (long piece = 0; piece < pieces; piece++)
            peak = std::max(peak, parts[piece * size + group * width + g]);
        std::fill(out + g * width, out + (g + 1) * width, 0.0f);
        for (long piece = 0; piece < pieces; piece++) {
            const float* part = parts + piece * size;
            const float shrink = exponential(spread(part[group * width + g] - peak))[0];
            weight += shrink * part[group * width + group + g];
            for (long i = 0; i < width; i++) out[g * width + i] += shrink * part[g * width + i];
        }
        for (long i = 0; i < width; i++) out[g * width + i] /= weight;
    }
}

// Where the prompt chunks of a step stand: first rows and ends [S + 1], tokens to attend for each
// chunk's last row [S].
struct Chunks {
    const int64_t *starts, *contexts;
};

// Scratch of a thread, kept between steps: allocating per unit would serialize the threads.
static float* scratch(size_t floats) {
    static thread_local std::vector<float> memory;
    if (memory.size() < floats) memory.resize(floats);
    return memory.data();
}

// Turns up to TILE tokens into panels [4][width][16] of keys and rows [TILE][wide] of values, zero
// beyond `count`.
template <class T>
static void unpack(const Paged<T>& p, const int64_t* table, long head, long token, long count,
    long wide, float* keys, float* values) {
    memset(keys, 0, sizeof(float) * TILE * p.width);
    memset(values, 0, sizeof(float) * TILE * wide);
    for (long t = 0; t < count; t++) {
        const long here = p.place(table, head, token + t);
        float* column = keys + t / PANEL * p.width * PANEL + t % PANEL;
        float scales[2] = {1, 1};
        if constexpr (is_coded<T>) {
            scales[0] = *p.scale_of(p.keys, table, head, token + t);
            scales[1] = *p.scale_of(p.values, table, head, token + t);
        }
        for (long i = 0; i < p.width; i += 8) {
            const f8 key = load(p.keys + here + i) * scales[0];
            for (int j = 0; j < 8; j++) column[(i + j) * PANEL] = key[j];
            store(values + t * wide + i, load(p.values + here + i) * scales[1]);
        }
    }
}

// Which tokens of a tile the rows of a prompt see: row r those before `end` + r, and of them only
// the last `window`, unless it is 0.
struct Sight {
    long end, window;
    float softcap;
};

// Softmax of `lines` rows of scores [lines, TILE]. Rescales totals.
static void soften(float* scores, long lines, long group, const Sight& sight, long wide,
    float* total, float* peak, float* weight) {
    const i8 index = {0, 1, 2, 3, 4, 5, 6, 7};
    for (long line = 0; line < lines; line++) {
        const long open = sight.end + line / group;
        const long end = std::clamp(open, 0L, TILE);
        const long first = sight.window ? std::clamp(open - sight.window, 0L, TILE) : 0;
        float* row = scores + line * TILE;
        if (sight.softcap > 0) settle<Eight>(row, TILE, nullptr, sight.softcap);
        f8 top = spread(LOWEST);
        for (long i = 0; i < TILE; i += 8) {
            const i8 place = index + (int32_t)i;
            const f8 masked = pick((place < i8{} + (int32_t)end) & (place >= i8{} + (int32_t)first),
                load(row + i), spread(LOWEST));
            store(row + i, masked);
            top = larger(top, masked);
        }
        const float higher = std::max(peak[line], highest(top));
        if (higher > peak[line]) {
            const float shrink = exponential(spread(peak[line] - higher))[0];
            for (long i = 0; i < wide; i += 8)
                store(total + line * wide + i, load(total + line * wide + i) * shrink);
            weight[line] *= shrink;
            peak[line] = higher;
        }
        f8 mass = {};
        for (long i = 0; i < TILE; i += 8) {
            const f8 share = first < end ? exponential(load(row + i) - higher) : f8{};
            store(row + i, share);
            mass += share;
        }
        weight[line] += sum(mass);
    }
}

// Rows [first, end) of a prompt chunk attend to their contexts for one key head.
template <class T>
static void attend_rows(const Paged<T>& p, const Unit& unit, const Chunks& c, const float* qkv,
    long qkv_row, float* out, long out_row) {
    const long width = p.width, wide = padded(width), heads = unit.head * p.group;
    const long lines = (unit.end - unit.first) * p.group;
    const long start = c.starts[unit.sequence], chunk = c.starts[unit.sequence + 1] - start;
    const long position = c.contexts[unit.sequence] - chunk + unit.first;
    const long context = position + unit.end - unit.first;
    float* query = scratch(lines * (width + TILE + wide + 2) + TILE * (width + wide));
    float *scores = query + lines * width, *total = scores + lines * TILE;
    float *peak = total + lines * wide, *weight = peak + lines;
    float *keys = weight + lines, *values = keys + TILE * width;
    for (long line = 0; line < lines; line++) {
        const float* from = qkv + (start + unit.first + line / p.group) * qkv_row
            + (heads + line % p.group) * width;
        for (long i = 0; i < width; i++) query[line * width + i] = from[i] * p.scale;
    }
    std::fill(total, peak, 0.0f);
    std::fill(peak, weight, LOWEST);
    std::fill(weight, keys, 0.0f);
    const int64_t* table = p.tables + unit.sequence * p.table_row;
    // Tiles that end before the first row's window are skipped.
    const long begin = p.window ? std::max(position + 1 - p.window, 0L) / TILE * TILE : 0;
    for (long token = begin; token < context; token += TILE) {
        unpack(p, table, unit.head, token, std::min(TILE, context - token), wide, keys, values);
        for (long panel = 0; panel < TILE / PANEL; panel++)
            rows_times_panel(query, width, keys + panel * width * PANEL, PANEL, width,
                scores + panel * PANEL, TILE, lines, true, nullptr);
        soften(scores, lines, p.group, {position + 1 - token, p.window, p.softcap}, wide, total,
            peak, weight);
        for (long i = 0; i < wide; i += PANEL)
            rows_times_panel(scores, TILE, values + i, wide, TILE, total + i, wide, lines, false,
                nullptr);
    }
    for (long line = 0; line < lines; line++) {
        float* to = out + (start + unit.first + line / p.group) * out_row
            + (heads + line % p.group) * width;
        for (long i = 0; i < width; i++) to[i] = total[line * wide + i] / weight[line];
    }
}

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
        for (long q = decodes; q < sequences; q++)
            for (long first = 0; first < starts[q + 1] - starts[q]; first += height)
                for (long head = 0; head < kv_heads; head++)
                    units.push_back({q, head, first,
                        std::min(first + height, (long)(starts[q + 1] - starts[q])), 0});
        num_tiles = (long)units.size();
        for (long row = 0; row < decodes; row++) {
            const long context = contexts[row], begin = window ? std::max(context - window, 0L) : 0;
            rows.push_back({row, 0, num_parts, (context - begin + SPLIT - 1) / SPLIT, 0});
            for (long first = begin; first < context; first += SPLIT)
                units.push_back({row, 0, first, std::min(context, first + SPLIT), num_parts++});
        }
        is_whole = num_parts == (long)rows.size();
    }
};

// All attention of a layer. Called by all threads of a team.
template <class T>
static void attend(Team& team, const Paged<T>& p, const Work& work, const Chunks& c,
    const float* qkv, long qkv_row, float* out, long out_row, float* parts) {
    const long width = p.width, group = p.group, size = group * (width + 2);
    const long heads = p.kv_heads * group;
    const auto join_row = [&](long index) {
        const Unit& row = work.rows[index];
        for (long head = 0; head < p.kv_heads; head++)
            join(parts + (row.first * p.kv_heads + head) * size, p.kv_heads * size, row.end, group,
                width,
                 out + row.sequence * out_row + head * group * width);
    };
    team.loop((long)work.units.size(), 1, [&](long index) {
        const Unit& unit = work.units[index];
        if (index < work.num_tiles) return attend_rows(p, unit, c, qkv, qkv_row, out, out_row);
        attend_unit(p, unit, qkv + unit.sequence * qkv_row, scratch(heads * width),
            parts + unit.part * p.kv_heads * size);
        // Where every row is one piece it is joined at once, which saves a barrier per layer.
        if (work.is_whole) join_row(index - work.num_tiles);
    });
    if (!work.is_whole) team.loop((long)work.rows.size(), 4, join_row);
}
