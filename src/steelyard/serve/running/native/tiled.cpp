// Attention of queries to blocks of keys and values, of prompts and of decoding rows alike: prompts
// by the products of tiles with panels, decoding rows straight from the pool.
//
// Products are of the type of keys and values. Where these are bfloat16, queries and shares are
// rounded to it; where they are bytes, a query is rounded to bytes with a scale, and so are a line's
// shares of a block, times the scales of their values; their sums are exact.
//
// Softmax runs in base 2 and its peaks are whole numbers: where a peak stands moves only exponents,
// so how shares are rounded does not depend on it, and totals are rescaled without loss.
//
// Source: Dao et al. 2022 (arXiv 2205.14135), algorithm 1; Milakov and Gimelshein 2018 (arXiv
// 1805.02867), algorithm 3; Chen et al. 2024 (arXiv 2409.16997), algorithm 1, for bytes.
#include "direct.h"
#include "products.h"

#if defined(STEELYARD_WIDE)

namespace {

constexpr float LOG2_E = 1.44269504088896341f;
constexpr int32_t ONES = 0x3f803f80;  // two of bfloat16
constexpr long TILE_PANELS = TILE / PANEL;
alignas(64) constexpr float UNSCALED[PANEL] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// 2^x to 2 units in the last place, for x <= 0.
INLINE Floats power_of_two(Floats x) {
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
    const Floats rest = x - whole;
    Floats y = Sixteen::all(1.338130212e-3f);
    y = y * rest + 9.666368365e-3f;
    y = y * rest + 5.550381169e-2f;
    y = y * rest + 2.402234972e-1f;
    y = y * rest + 6.931471825e-1f;
    y = y * rest + 1.0f;
    return (Floats)_mm512_scalef_ps((__m512)y, (__m512)whole);
}

INLINE void scale_by_power(float* x, long count, float power) {
    for (long i = 0; i < count; i += PANEL)
        _mm512_storeu_ps(x + i, _mm512_scalef_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(power)));
}

// Queries of a key head, a line for each token and member of its group, and what they found so far:
// numerators [count, wide], denominators in sixteen parts [count, 16], peaks [count].
struct Lines {
    const View& view;
    Linear keys;  // what queries are multiplied by
    long count, first, wide, words;  // `first`: place of the first line's token
    float *totals, *masses, *peaks;
    int32_t* queries;  // tiles
    bool decodes;

    Lines(const View& v, long count, long first, bool decodes, float* memory)
        : view(v), keys(keys_of(v)), count(count), first(first), wide(Block::wide(v)),
          words(Block::words(v)), totals(memory), masses(totals + count * wide),
          peaks(masses + count * PANEL), queries((int32_t*)(peaks + padded(count))), decodes(decodes) {}

    static Linear keys_of(const View& v) {
        return {.inputs = v.width, .kind = kind_of(v.kind), .group = v.width};
    }
    // Floats of the memory, whole lines of the cache.
    static long size(const View& v, long count) {
        return count * (Block::wide(v) + PANEL) + padded(count)
            + padded((count + MOST_ROWS) * row_words(keys_of(v)));
    }

    // Rows of the tile that begins at a line.
    long height(long line) const {
        const long rows = std::min(MOST_ROWS, count - line);
        return decodes ? direct_height(rows) : tile_height(rows);
    }
    int32_t* tile(long line) const { return queries + line * row_words(keys); }

    // Begins a line with its query.
    void start(long line, const float* from) const {
        // Caps are of scores in base e.
        const float scale = view.scale * (view.softcap > 0 ? 1.0f : LOG2_E);
        float* scaled = own_row(view.width);
        for (long i = 0; i < view.width; i++) scaled[i] = from[i] * scale;
        const long top = line / MOST_ROWS * MOST_ROWS;
        encode_row(keys, scaled, tile(top), height(top), line - top);
        restart(line);
    }

    void restart(long line) const {
        std::fill(totals + line * wide, totals + (line + 1) * wide, 0.0f);
        std::fill(masses + line * PANEL, masses + (line + 1) * PANEL, 0.0f);
        peaks[line] = LOWEST;
    }

    float mass(long line) const {
        return _mm512_reduce_add_ps(_mm512_loadu_ps(masses + line * PANEL));
    }

    // Calls body(column, total, count) for a line's totals, `count` columns at a time.
    template <class Body>
    void each_total(const float* total, const Body& body) const {
        if (view.kind != KV_INT8) return body(0, total, view.width);
        for (long i = 0; i < view.width; i += 4) body(i, total + turned_place(i), 4);
    }
};

// Scratch of a tile: scores [lines, TILE], and shares as a tile of activations.
struct Scratch {
    alignas(64) float scores[MOST_ROWS * TILE];
    alignas(64) int32_t shares[MOST_ROWS * TILE];
};

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

// Writes shares of a block as row `row` of a tile of some height; gives their sum as they are
// multiplied.
template <class T>
INLINE Floats write_shares(const Floats (&share)[TILE_PANELS], int32_t* tile, long height,
    long row) {
    int32_t* to = tile + row * CHUNK;
    Floats sum = {};
    UNROLL for (int i = 0; i < TILE_PANELS; i += NUMBERS<T>, to += height * CHUNK) {
        if constexpr (NUMBERS<T> == 1) {
            store((float*)to, share[i]);
            sum += share[i];
        } else {
            const auto both = (Words)(__m512i)_mm512_cvtne2ps_pbh((__m512)share[i + 1], (__m512)share[i]);
            _mm512_storeu_si512(to, (__m512i)both);
            add_pairs(sum, both, ONES);
        }
    }
    return sum;
}

// Writes shares times their values' scales in bytes, as `encode_bytes` does; gives the sum of what
// they were.
template <bool DECODES>
INLINE Floats code_shares(const Floats (&share)[TILE_PANELS], const float* scales, int32_t* tile,
    long height, long row) {
    Floats part[TILE_PANELS], top = {}, sum = {};
    UNROLL for (int i = 0; i < TILE_PANELS; i++) {
        sum += share[i];
        part[i] = share[i] * load_floats(scales + i * PANEL);
        top = Sixteen::most(top, part[i]);
    }
    const float most = Sixteen::highest(top), inverse = most > 0 ? 127.0f / most : 0.0f;
    __m512i sums = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < TILE_PANELS; i++) {
        const __m512i code = _mm512_cvtps_epi32((__m512)(part[i] * inverse));
        _mm_storeu_si128((__m128i*)(tile + row * CHUNK) + i, _mm512_cvtepi32_epi8(code));
        if (!DECODES) sums = _mm512_add_epi32(sums, code);
    }
    int32_t* scale = tile + height * CHUNK + row;
    *(float*)scale = most * (1.0f / 127);
    if (!DECODES) scale[height] = -BYTE_OFFSET * _mm512_reduce_add_epi32(sums);
    return sum;
}

// Tokens of a block that begins at `token` that a line sees.
struct Sight {
    long first, end;

    Sight(const Lines& lines, long line, long token) {
        const long open = lines.first + line / lines.view.group + 1 - token;
        const long window = lines.view.window;
        end = std::clamp(open, 0L, TILE);
        first = window ? std::clamp(open - window, 0L, TILE) : 0;
    }
    bool is_empty() const { return first >= end; }
};

// Caps the scores of a line, hides what it does not see, and raises its peak.
INLINE void raise_peak(const Lines& lines, long line, const Sight& sight, float* scores) {
    const float softcap = lines.view.softcap;
    const bool whole = sight.end - sight.first == TILE;
    Floats top = Sixteen::all(LOWEST);
    UNROLL for (int i = 0; i < TILE_PANELS; i++) {
        Floats x = load_floats(scores + i * PANEL);
        if (softcap > 0) x = softcap * LOG2_E * tangent<Sixteen>(x / softcap);
        if (!whole) {
            const __mmask16 seen =
                leading(sight.end - i * PANEL) & ~leading(sight.first - i * PANEL);
            x = (Floats)_mm512_mask_blend_ps(seen, (__m512)Sixteen::all(LOWEST), (__m512)x);
        }
        if (softcap > 0 || !whole) store(scores + i * PANEL, x);
        top = Sixteen::most(top, x);
    }
    const float most = std::ceil(Sixteen::highest(top));
    float& peak = lines.peaks[line];
    if (most <= peak) return;
    scale_by_power(lines.totals + line * lines.wide, lines.wide, peak - most);
    scale_by_power(lines.masses + line * PANEL, PANEL, peak - most);
    peak = most;
}

// Writes the shares of a line as row `row` of a tile, and adds them to its mass.
template <class T, bool DECODES>
INLINE void write_line(const Lines& lines, long line, const Block& block, const float* scores,
    int32_t* tile, long height, long row) {
    const float peak = lines.peaks[line];
    Floats x[TILE_PANELS], sum;
    UNROLL for (int i = 0; i < TILE_PANELS; i++)
        x[i] = power_of_two(load_floats(scores + i * PANEL) - peak);
    if constexpr (is_coded<T>) sum = code_shares<DECODES>(x, block.value_scales, tile, height, row);
    else sum = write_shares<T>(x, tile, height, row);
    float* mass = lines.masses + line * PANEL;
    store(mass, load_floats(mass) + sum);
}

// Takes the scores of a tile of lines into their softmax.
template <class T, bool DECODES>
APART void soften_tile(const Lines& lines, long line, long rows, long token, const Block& block,
    Scratch& s) {
    const long height = lines.height(line);
    // All peaks first: each one takes long, but none waits for another.
    for (long row = 0; row < rows; row++) {
        const Sight sight(lines, line + row, token);
        if (!sight.is_empty()) raise_peak(lines, line + row, sight, s.scores + row * TILE);
    }
    for (long row = 0; row < rows; row++) {
        if (!Sight(lines, line + row, token).is_empty()) {
            write_line<T, DECODES>(lines, line + row, block, s.scores + row * TILE, s.shares, height, row);
            continue;
        }
        for (long i = 0; i < TILE / NUMBERS<T>; i += CHUNK)
            memset(s.shares + i * height + row * CHUNK, 0, CHUNK * sizeof(int32_t));
        if constexpr (is_coded<T>)
            s.shares[height * CHUNK + row] = s.shares[height * (CHUNK + 1) + row] = 0;
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
// whole, and lines see what is theirs of them. `memory` takes a block. Where rows do not decode,
// `close()` is called where a piece of the context ends.
template <class T, class At, class Close>
void attend_blocks(const Paged<T>& p, long sequence, long first_head, long heads, long first,
    long end, bool decodes, float* memory, const At& at, const Close& close) {
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
            if (decodes) {
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
    const auto at = [&](long head) {
        return Lines(v, group, context - 1, true, memory + Block::size(v) + head * size);
    };
    for (long head = 0; head < v.kv_heads; head++)
        for (long g = 0; g < group; g++)
            at(head).start(g, queries + (head * group + g) * width);
    with_type(v.kind, [&]<class T>(T) {
        if constexpr (is_tiled(KV_KIND<T>))
            attend_blocks(Paged<T>(v), unit.sequence, 0, v.kv_heads, unit.first, unit.end, true,
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
