// Attention of queries to blocks of keys and values, of prompts and of decoding rows alike: prompts
// by the products of tiles with panels, decoding rows mostly straight from the pool.
//
// Products are of the type of keys and values. Where these are bfloat16, queries and shares are
// rounded to it; where they are bytes, a query is rounded to bytes with a scale, and so are a line's
// shares of a block, times the scales of their values; their sums are exact.
//
// Source: Dao et al. 2022 (arXiv 2205.14135), algorithm 1; Milakov and Gimelshein 2018 (arXiv
// 1805.02867), algorithm 3; Chen et al. 2024 (arXiv 2409.16997), algorithm 1, for bytes.
#include "softmax.h"

#if defined(STEELYARD_WIDE)

namespace {

constexpr long SHORT = 2 * TILE;  // tokens of bfloat16 that decoding does not lay out
alignas(64) constexpr float UNSCALED[PANEL] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Multiplies a tile by panels `panel_words` apart; `ahead(pass)` is what is fetched meanwhile.
template <class T, class Ahead>
INLINE void multiply_panels(const Linear& map, const int32_t* tile, long rows,
    const int32_t* panels, long panel_words, long count, long depth, float* out, long out_row,
    bool fresh, const Ahead& ahead) {
    Span s = {.tile = tile, .depth = depth, .out_row = out_row, .rows = rows, .fresh = fresh};
    s.pace = LINE;
    for (long first = 0; first < count; first += PANELS) {
        for (long p = 0; p < PANELS; p++) {
            const long panel = std::min(first + p, count - 1);
            s.panels[p] = {(const uint8_t*)(panels + panel * panel_words), out + panel * PANEL,
                nullptr, fresh ? panel : 0};
        }
        s.ahead = (const uint8_t*)ahead(first / PANELS);
        if constexpr (is_coded<T>) multiply_bytes(map, s);
        else if (NUMBERS<T> == 1) multiply_floats(map, s);
        else multiply_pairs(map, s);
    }
}

// Attends from a tile of lines to a block.
template <class T, class Ahead>
APART void attend_tile(const Lines& lines, long line, long token, const Block& block, Scratch& s,
    const Ahead& ahead) {
    const long rows = std::min(MOST_ROWS, lines.count - line), width = lines.view.width;
    constexpr long WORDS = TILE / NUMBERS<T>;  // of a column's values
    // Later lines see more: what the last does not see is not computed.
    const Sight widest(lines, line + rows - 1, token);
    if (widest.end == 0 || Sight(lines, line, token).first == TILE) return;
    Linear map = lines.keys;
    map.scales = block.key_scales;
    multiply_panels<T>(map, lines.tile(line), rows, block.keys, lines.words * PANEL,
        (widest.end + PANEL - 1) / PANEL, (width + NUMBERS<T> - 1) / NUMBERS<T>, s.scores, TILE, true,
        [&](long pass) { return ahead(16 * pass); });
    soften_tile<T, false>(lines, line, rows, token, block, s);
    const Linear values = {.scales = UNSCALED, .inputs = TILE, .kind = INT8};
    multiply_panels<T>(values, s.shares, rows, block.values, WORDS * PANEL, lines.wide / PANEL,
        (widest.end + NUMBERS<T> - 1) / NUMBERS<T>, lines.totals + line * lines.wide, lines.wide,
        false,
        [&](long pass) { return ahead(32 + pass * WORDS * LINE / (width * (long)sizeof(T))); });
}

// The same of decoding rows, from the pool.
template <class T>
void attend_direct(const Lines& lines, long token, const Side<T>& keys, const Side<T>& values,
    Block& block, Scratch& s) {
    if constexpr (is_coded<T>) {
        keys.read_scales(block.key_scales);
        values.read_scales(block.value_scales);
    }
    T* memory = (T*)block.keys;
    for (long line = 0; line < lines.count; line += MOST_ROWS) {
        const long rows = std::min(MOST_ROWS, lines.count - line);
        const bool fetches = line == 0;
        at_direct_height(rows, [&](auto height) {
            constexpr int R = decltype(height)::value;
            float* totals = lines.totals + line * lines.wide;
            score_direct<T, R>(keys, lines.tile(line), lines.words / CHUNK, rows, block.key_scales,
                s.scores, memory, fetches);
            soften_tile<T, true>(lines, line, rows, token, block, s);
            if constexpr (is_coded<T>)
                weigh_codes<R>(values, s.shares, rows, totals, lines.wide, memory, fetches);
            else weigh_direct<T, R>(values, s.shares, rows, totals, lines.wide, memory, fetches);
        });
    }
}

// Attends from `at(head)`, lines of some key heads, to tokens [first, end) of a context; blocks are
// whole, and lines see what is theirs of them. `memory` takes a block. `direct`: straight from the
// pool. `close()` is called where a piece of the context ends.
template <class T, class At, class Close>
void attend_blocks(const Paged<T>& p, long sequence, long first_head, long heads, long first,
    long end, bool direct, float* memory, const At& at, const Close& close) {
    const long size = p.head_numbers(), width = p.view.width, end_head = first_head + heads;
    const int64_t* table = p.view.tables + sequence * p.view.table_row;
    Block block(p.view, memory);
    Places places[2];
    Scratch s;
    long turn = 0;
    first = first / TILE * TILE;
    find_places(p, table, first, end, places[turn]);
    for (long token = first; token < end; token += TILE, turn ^= 1) {
        const Places& here = places[turn];
        find_places(p, table, token + TILE < end ? token + TILE : token, end, places[turn ^ 1]);
        // Heads of a block lie side by side.
        for (long head = first_head; head < end_head; head++) {
            const bool last = head + 1 == end_head;
            const Places& later = last ? places[turn ^ 1] : here;
            const long now = head * size, next = (last ? first_head : head + 1) * size;
            const Side<T> keys{p.keys + now, p.keys + next, here, later, width};
            const Side<T> values{p.values + now, p.values + next, here, later, width};
            const Lines lines = at(head);
            if (direct) {
                attend_direct<T>(lines, token, keys, values, block, s);
                continue;
            }
            pack_keys(keys, block);
            pack_values(values, keys, block);
            for (long line = 0; line < lines.count; line += MOST_ROWS)
                attend_tile<T>(lines, line, token, block, s, [&](long t) {
                    return values.next + later.numbers[std::min(t, TILE - 1)];
                });
        }
        if (token + TILE >= end || (token + TILE) % SPLIT == 0) close();
    }
}

// What lines found in the pieces of a context so far, joined as `join` joins a decoding row's.
struct Joined {
    const Lines& lines;
    float *totals, *masses, *peaks;

    Joined(const Lines& lines, float* memory)
        : lines(lines), totals(memory), masses(totals + lines.count * lines.wide),
          peaks(masses + lines.count) {
        std::fill(totals, peaks, 0.0f);
        std::fill(peaks, peaks + lines.count, LOWEST);
    }
    static long size(const View& v, long count) { return padded(count * (Block::wide(v) + 2)); }

    // Adds a piece, and starts the next one.
    void add() const {
        for (long line = 0; line < lines.count; line++) {
            const float peak = std::max(peaks[line], lines.peaks[line]);
            if (lines.peaks[line] == LOWEST) continue;  // saw nothing
            const __m512 before = _mm512_set1_ps(peaks[line] - peak);
            const __m512 now = _mm512_set1_ps(lines.peaks[line] - peak);
            float *to = totals + line * lines.wide, *from = lines.totals + line * lines.wide;
            for (long i = 0; i < lines.wide; i += PANEL)
                _mm512_storeu_ps(to + i, _mm512_add_ps(
                    _mm512_scalef_ps(_mm512_loadu_ps(to + i), before),
                    _mm512_scalef_ps(_mm512_loadu_ps(from + i), now)));
            masses[line] = std::ldexp(masses[line], (int)std::max(peaks[line] - peak, -300.0f))
                + std::ldexp(lines.mass(line), (int)(lines.peaks[line] - peak));
            peaks[line] = peak;
            lines.restart(line);
        }
    }
};

}  // namespace

void attend_rows_tiled(const View& v, const Unit& unit, const Chunks& c, const float* qkv,
    long qkv_row, float* out, long out_row) {
    const long start = c.starts[unit.sequence], chunk = c.starts[unit.sequence + 1] - start;
    const long position = c.contexts[unit.sequence] - chunk + unit.first;
    const long count = (unit.end - unit.first) * v.group, heads = unit.head * v.group;
    const long block = Block::size(v), size = Lines::size(v, count);
    float* memory = scratch(block + size + Joined::size(v, count));
    const Lines lines(v, count, position, false, memory + block);
    const Joined joined(lines, memory + block + size);
    // Where a line's numbers stand in rows.
    const auto place = [&](long line, long row) {
        return (start + unit.first + line / v.group) * row + (heads + line % v.group) * v.width;
    };
    for (long line = 0; line < count; line++) {
        // Rows stand in pages of their own, where the processor does not look ahead.
        const float* later = qkv + place(std::min(line + 4 * v.group, count - 1), qkv_row);
        for (long i = 0; i < v.width; i += PANEL) __builtin_prefetch(later + i);
        lines.start(line, qkv + place(line, qkv_row));
    }
    const long begin = v.window ? std::max(position + 1 - v.window, 0L) : 0;
    const long end = position + unit.end - unit.first;
    const auto at = [&](long) { return lines; };
    with_type(v.kind, [&]<class T>(T) {
        if constexpr (is_tiled(KV_KIND<T>))
            attend_blocks(Paged<T>(v), unit.sequence, unit.head, 1, begin, end, false, memory, at,
                [&] { joined.add(); });
    });
    for (long line = 0; line < count; line++) {
        const float mass = joined.masses[line], *total = joined.totals + line * lines.wide;
        float* to = out + place(line, out_row);
        lines.each_total(total, [&](long column, const float* from, long some) {
            for (long i = 0; i < some; i++) to[column + i] = from[i] / mass;
        });
    }
}

void attend_unit_tiled(const View& v, const Unit& unit, long context, const float* queries,
    float* parts) {
    const long group = v.group, width = v.width, size = Lines::size(v, group);
    float* memory = scratch(Block::size(v) + v.kv_heads * size);
    // To lay bfloat16 out pays where there is much of it. Bits are the same either way.
    const bool direct = v.kind != KV_BF16 || unit.end - unit.first <= SHORT;
    const auto at = [&](long head) {
        return Lines(v, group, context - 1, direct, memory + Block::size(v) + head * size);
    };
    for (long head = 0; head < v.kv_heads; head++)
        for (long g = 0; g < group; g++)
            at(head).start(g, queries + (head * group + g) * width);
    with_type(v.kind, [&]<class T>(T) {
        if constexpr (is_tiled(KV_KIND<T>))
            attend_blocks(Paged<T>(v), unit.sequence, 0, v.kv_heads, unit.first, unit.end, direct,
                memory, at, [] {});
    });
    for (long head = 0; head < v.kv_heads; head++, parts += group * (width + 2))
        for (long g = 0; g < group; g++) {
            const Lines lines = at(head);
            const float* total = lines.totals + g * lines.wide;
            lines.each_total(total, [&](long column, const float* from, long some) {
                for (long i = 0; i < some; i++) parts[g * width + column + i] = from[i];
            });
            parts[group * width + g] = lines.peaks[g];
            parts[group * (width + 1) + g] = lines.mass(g);
        }
}

#endif
