// Attention over paged keys and values: one query per sequence while decoding, tiles of rows for
// prompts.
//
// Contexts are cut at fixed places, so a row's result depends on that row alone.
#pragma once

#include "norms.h"
#include "products.h"

// Tokens of a piece of a decoding context: few long contexts still occupy all threads. A constant,
// so that a row's sums run in one order whatever else is in the batch.
constexpr long SPLIT = 256;
constexpr long TILE = 64;     // tokens that prompt attention takes at once
// Stands for minus infinity: the difference of two is 0 and not NaN.
constexpr float LOWEST = -1e30f;

// A piece of a decoding row's context, or a tile of a prompt's rows for one key head.
struct Unit {
    int64_t sequence, head, first, end, part;
};

// Numbers of T rows of keys times G queries, into share [G, 16].
template <class T, int ROWS, int G>
INLINE void score_rows(const float* query, long width, const T* keys, float* share) {
    f8 total[G][ROWS] = {};
    for (long i = 0; i < width; i += 8) {
        f8 q[G];
        for (int g = 0; g < G; g++) q[g] = load(query + g * width + i);
        for (int t = 0; t < ROWS; t++) {
            const f8 key = load(keys + t * width + i);
            for (int g = 0; g < G; g++) total[g][t] += q[g] * key;
        }
    }
    for (int g = 0; g < G; g++) {
        if constexpr (ROWS == 4)
            *(f4*)(share + g * 16) = sums(total[g][0], total[g][1], total[g][2], total[g][3]);
        else share[g * 16] = sum(total[g][0]);
    }
}

// Adds shares [G, 16] of values to totals, 8 * STRIP columns at a time.
template <class T, int STRIP, int G>
INLINE void weigh_rows(const float* share, const T* values, long width, long count, long column,
    float* total, const T* next) {
    f8 part[G][STRIP];
    for (int g = 0; g < G; g++)
        for (int h = 0; h < STRIP; h++) part[g][h] = load(total + g * width + column + 8 * h);
    for (long t = 0; t < count; t++) {
        for (long i = 0; i < 8 * STRIP; i += 64 / (long)sizeof(T))
            __builtin_prefetch(next + t * width + column + i);
        f8 weight[G];
        for (int g = 0; g < G; g++) weight[g] = spread(share[g * 16 + t]);
        for (int h = 0; h < STRIP; h++) {
            const f8 value = load(values + t * width + column + 8 * h);
            for (int g = 0; g < G; g++) part[g][h] += weight[g] * value;
        }
    }
    for (int g = 0; g < G; g++)
        for (int h = 0; h < STRIP; h++) store(total + g * width + column + 8 * h, part[g][h]);
}

// Up to 16 tokens of one block, and those that come next, which are fetched meanwhile.
template <class T>
struct Tokens {
    const T *keys, *values, *next_keys, *next_values;
    long count;
};

template <class T, int G>
INLINE void score(const float* query, long width, const Tokens<T>& tokens, float* share,
    bool fetch) {
    long t = 0;
    for (; t + 4 <= tokens.count; t += 4) {
        for (long i = 0; fetch && i < 4 * width; i += 64 / (long)sizeof(T))
            __builtin_prefetch(tokens.next_keys + t * width + i);
        score_rows<T, 4, G>(query, width, tokens.keys + t * width, share + t);
    }
    for (; t < tokens.count; t++)
        score_rows<T, 1, G>(query, width, tokens.keys + t * width, share + t);
}

template <class T, int G>
INLINE void weigh(const float* share, long width, const Tokens<T>& tokens, float* total) {
    long column = 0;
    for (; column + 32 <= width; column += 32)
        weigh_rows<T, 4, G>(share, tokens.values, width, tokens.count, column, total,
            tokens.next_values);
    for (; column < width; column += 8)
        weigh_rows<T, 1, G>(share, tokens.values, width, tokens.count, column, total,
            tokens.next_values);
}

// Takes 16 scores of a query into its running softmax: they become shares.
INLINE void soften_tokens(float* share, float* total, long width, float& peak, float& weight) {
    f8 left = load(share), right = load(share + 8);
    const float top = highest(larger(left, right));
    if (top > peak) {  // most blocks do not raise the peak, and leave the totals as they are
        const float shrink = exponential(spread(peak - top))[0];
        for (long i = 0; i < width; i += 8) store(total + i, load(total + i) * shrink);
        weight *= shrink;
        peak = top;
    }
    left = exponential(left - peak), right = exponential(right - peak);
    store(share, left), store(share + 8, right);
    weight += sum(left + right);
}

// Attends from up to 8 queries that share a key head to up to 16 tokens.
template <class T>
static void attend_tokens(long members, const float* query, long width, const Tokens<T>& tokens,
    float* total, float* peak, float* weight) {
    float share[8 * 16];
    // Places beyond the last token get no share, so that the softmax always takes 16.
    for (long g = 0; g < members; g++)
        for (long t = tokens.count; t < 16; t++) share[g * 16 + t] = LOWEST;
    // Three queries at a time: twelve sums fill the registers that keys and queries leave free.
    for (long g = 0; g < members; g += 3) {
        const float* q = query + g * width;
        if (members - g >= 3) score<T, 3>(q, width, tokens, share + g * 16, g == 0);
        else if (members - g == 2) score<T, 2>(q, width, tokens, share + g * 16, g == 0);
        else score<T, 1>(q, width, tokens, share + g * 16, g == 0);
    }
    for (long g = 0; g < members; g++)
        soften_tokens(share + g * 16, total + g * width, width, peak[g], weight[g]);
    for (long g = 0; g < members; g += 3) {
        float* part = total + g * width;
        if (members - g >= 3) weigh<T, 3>(share + g * 16, width, tokens, part);
        else if (members - g == 2) weigh<T, 2>(share + g * 16, width, tokens, part);
        else weigh<T, 1>(share + g * 16, width, tokens, part);
    }
}

// What attention reads: one layer's keys and values, and who reads which blocks.
template <class T>
struct Paged {
    const T *keys, *values;
    long kv_heads, group, width, block_size;
    const int64_t* tables;
    long table_row;

    long offset(const int64_t* table, long head, long token) const {
        return ((table[token / block_size] * kv_heads + head) * block_size
            + token % block_size) * width;
    }
};

// One piece of a decoding row, all heads: for each key head `parts` gets numerators [group, width],
// peaks [group], denominators [group].
template <class T>
static void attend_piece(const Paged<T>& p, const Unit& unit, const float* query, float* parts) {
    const long width = p.width, group = p.group, size = group * (width + 2);
    const long stride = std::min(p.block_size, 16L);
    for (long head = 0; head < p.kv_heads; head++) {
        float* peak = parts + head * size + group * width;
        std::fill(parts + head * size, peak, 0.0f);
        std::fill(peak, peak + group, LOWEST);
        std::fill(peak + group, peak + 2 * group, 0.0f);
    }
    const int64_t* table = p.tables + unit.sequence * p.table_row;
    long here = p.offset(table, 0, unit.first);
    for (long token = unit.first; token < unit.end; token += stride)
        for (long head = 0; head < p.kv_heads; head++) {  // heads of a block lie side by side
            const bool last = head + 1 == p.kv_heads, ends = last && token + stride >= unit.end;
            // Blocks lie scattered, so the processor cannot guess what comes next: it is told.
            const long after = last ? token + stride : token;
            const long next = ends ? here : p.offset(table, last ? 0 : head + 1, after);
            const Tokens<T> tokens = {
                p.keys + here, p.values + here, p.keys + next, p.values + next,
                std::min(stride, unit.end - token)};
            float *total = parts + head * size;
            float *peak = total + group * width, *weight = peak + group;
            for (long g = 0; g < group; g += 8)
                attend_tokens(std::min(8L, group - g), query + (head * group + g) * width, width,
                    tokens, total + g * width, peak + g, weight + g);
            here = next;
        }
}

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
        const long here = p.offset(table, head, token + t);
        float* column = keys + t / PANEL * p.width * PANEL + t % PANEL;
        for (long i = 0; i < p.width; i += 8) {
            const f8 key = load(p.keys + here + i);
            for (int j = 0; j < 8; j++) column[(i + j) * PANEL] = key[j];
            store(values + t * wide + i, load(p.values + here + i));
        }
    }
}

// Softmax of `lines` rows of scores [lines, TILE]; row r sees the first `seen(r)` tokens. Rescales
// totals.
static void soften(float* scores, long lines, long group, long seen_first, long wide, float* total,
    float* peak, float* weight) {
    const i8 index = {0, 1, 2, 3, 4, 5, 6, 7};
    for (long line = 0; line < lines; line++) {
        const long seen = std::min(TILE, seen_first + line / group);
        float* row = scores + line * TILE;
        f8 top = spread(LOWEST);
        for (long i = 0; i < TILE; i += 8) {
            const f8 masked = pick(index + (int32_t)i < i8{} + (int32_t)std::max(seen, 0L),
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
            const f8 share = seen > 0 ? exponential(load(row + i) - higher) : f8{};
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
    const float scale = 1.0f / std::sqrt((float)width);
    for (long line = 0; line < lines; line++) {
        const float* from = qkv + (start + unit.first + line / p.group) * qkv_row
            + (heads + line % p.group) * width;
        for (long i = 0; i < width; i++) query[line * width + i] = from[i] * scale;
    }
    std::fill(total, peak, 0.0f);
    std::fill(peak, weight, LOWEST);
    std::fill(weight, keys, 0.0f);
    const int64_t* table = p.tables + unit.sequence * p.table_row;
    for (long token = 0; token < context; token += TILE) {
        unpack(p, table, unit.head, token, std::min(TILE, context - token), wide, keys, values);
        for (long panel = 0; panel < TILE / PANEL; panel++)
            rows_times_panel(query, width, keys + panel * width * PANEL, PANEL, width,
                scores + panel * PANEL, TILE, lines, true, nullptr);
        soften(scores, lines, p.group, position + 1 - token, wide, total, peak, weight);
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
        const int64_t* contexts) {
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
            rows.push_back({row, 0, num_parts, (contexts[row] + SPLIT - 1) / SPLIT, 0});
            for (long first = 0; first < contexts[row]; first += SPLIT)
                units.push_back({row, 0, first, std::min((long)contexts[row], first + SPLIT),
                    num_parts++});
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
    const float scale = 1.0f / std::sqrt((float)width);
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
        float* query = scratch(heads * width);
        const float* from = qkv + unit.sequence * qkv_row;
        for (long i = 0; i < heads * width; i++) query[i] = from[i] * scale;
        attend_piece(p, unit, query, parts + unit.part * p.kv_heads * size);
        // Where every row is one piece it is joined at once, which saves a barrier per layer.
        if (work.is_whole) join_row(index - work.num_tiles);
    });
    if (!work.is_whole) team.loop((long)work.rows.size(), 4, join_row);
}
