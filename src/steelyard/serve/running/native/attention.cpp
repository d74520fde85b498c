#include "attention.h"

#include "panels.h"
#include "registers.h"

// Joins the pieces of one row and key head, `size` apart, in order; peaks are powers of two where
// it `doubles`, else of e.
static void join(const float* parts, long size, long pieces, long group, long width, bool doubles,
    float* out) {
    for (long g = 0; g < group; g++) {
        float peak = LOWEST, weight = 0;
        for (long piece = 0; piece < pieces; piece++)
            peak = std::max(peak, parts[piece * size + group * width + g]);
        std::fill(out + g * width, out + (g + 1) * width, 0.0f);
        for (long piece = 0; piece < pieces; piece++) {
            const float* part = parts + piece * size;
            const float apart = part[group * width + g] - peak;
            const float shrink = doubles ? std::ldexp(1.0f, (int)std::max(apart, -300.0f))
                                         : exponential(spread(apart))[0];
            weight += shrink * part[group * width + group + g];
            for (long i = 0; i < width; i++) out[g * width + i] += shrink * part[g * width + i];
        }
        for (long i = 0; i < width; i++) out[g * width + i] /= weight;
    }
}

float* scratch(size_t floats) {
    struct alignas(64) Line {
        float numbers[PANEL];
    };
    static thread_local std::vector<Line> memory;
    const size_t lines = (floats + PANEL - 1) / PANEL;
    if (memory.size() < lines) memory.resize(lines);
    return memory.data()->numbers;
}

// Writes 8 rows, one after the other `row` apart, as columns 16 apart.
static void transpose(const f8 (&rows)[8], float* columns) {
    f8 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shuffle(rows[i], rows[i + 1], i8{0, 8, 1, 9, 4, 12, 5, 13});
        a[i + 1] = __builtin_shuffle(rows[i], rows[i + 1], i8{2, 10, 3, 11, 6, 14, 7, 15});
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            const f8 x = a[i + j], y = a[i + j + 2];
            b[i + 2 * j] = __builtin_shuffle(x, y, i8{0, 1, 8, 9, 4, 5, 12, 13});
            b[i + 2 * j + 1] = __builtin_shuffle(x, y, i8{2, 3, 10, 11, 6, 7, 14, 15});
        }
    for (int i = 0; i < 4; i++) {
        store(columns + i * PANEL, __builtin_shuffle(b[i], b[i + 4], i8{0, 1, 2, 3, 8, 9, 10, 11}));
        store(columns + (i + 4) * PANEL,
            __builtin_shuffle(b[i], b[i + 4], i8{4, 5, 6, 7, 12, 13, 14, 15}));
    }
}

// Turns up to TILE tokens into panels [4][width][16] of keys and rows [TILE][wide] of values, zero
// beyond `count`.
template <class T>
static void unpack(const Paged<T>& p, const int64_t* table, long head, long token, long count,
    long wide, float* keys, float* values) {
    const long width = p.view.width;
    memset(values, 0, sizeof(float) * TILE * wide);
    for (long first = 0; first < TILE; first += 8) {
        const T* from[8];
        float scales[8];
        for (long t = first; t < first + 8; t++) {
            // Places beyond the last token take its numbers times 0.
            const long here = token + std::min(t, count - 1), place = p.place(table, head, here);
            float by[2] = {1, 1};
            if constexpr (is_coded<T>) {
                by[0] = *p.scale_of(p.keys, table, head, here);
                by[1] = *p.scale_of(p.values, table, head, here);
            }
            from[t - first] = p.keys + place, scales[t - first] = t < count ? by[0] : 0.0f;
            for (long i = 0; t < count && i < width; i += 8)
                store(values + t * wide + i, load(p.values + place + i) * by[1]);
        }
        float* columns = keys + first / PANEL * width * PANEL + first % PANEL;
        for (long i = 0; i < width; i += 8) {
            f8 rows[8];
            for (int t = 0; t < 8; t++) rows[t] = load(from[t] + i) * scales[t];
            transpose(rows, columns + i * PANEL);
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
    for (long line = 0; line < lines; line++, scores += TILE, total += wide) {
        const long open = sight.end + line / group, end = std::clamp(open, 0L, TILE);
        const long first = sight.window ? std::clamp(open - sight.window, 0L, TILE) : 0;
        if (first >= end) {
            std::fill(scores, scores + TILE, 0.0f);
            continue;
        }
        if (sight.softcap > 0) settle<Widest>(scores, TILE, nullptr, sight.softcap);
        soften_row<Widest>(scores, first, end, TILE, total, wide, peak[line], weight[line]);
    }
}

// Rows [first, end) of a prompt chunk attend to their contexts for one key head.
static void attend_rows(const View& v, const Unit& unit, const Chunks& c, const float* qkv,
    long qkv_row, float* out, long out_row) {
    const long width = v.width, wide = padded(width), heads = unit.head * v.group;
    const long lines = (unit.end - unit.first) * v.group;
    const long start = c.starts[unit.sequence], chunk = c.starts[unit.sequence + 1] - start;
    const long position = c.contexts[unit.sequence] - chunk + unit.first;
    const long context = position + unit.end - unit.first;
    float* query = scratch(lines * (width + TILE + wide + 2) + TILE * (width + wide));
    float *scores = query + lines * width, *total = scores + lines * TILE;
    float *peak = total + lines * wide, *weight = peak + lines;
    float *keys = weight + lines, *values = keys + TILE * width;
    for (long line = 0; line < lines; line++) {
        const float* from = qkv + (start + unit.first + line / v.group) * qkv_row
            + (heads + line % v.group) * width;
        for (long i = 0; i < width; i++) query[line * width + i] = from[i] * v.scale;
    }
    std::fill(total, peak, 0.0f);
    std::fill(peak, weight, LOWEST);
    std::fill(weight, keys, 0.0f);
    const int64_t* table = v.tables + unit.sequence * v.table_row;
    // Tiles that end before the first row's window are skipped.
    const long begin = v.window ? std::max(position + 1 - v.window, 0L) / TILE * TILE : 0;
    for (long token = begin; token < context; token += TILE) {
        with_type(v.kind, [&]<class T>(T) {
            if constexpr (!is_tiled(KV_KIND<T>))
                unpack(Paged<T>(v), table, unit.head, token, std::min(TILE, context - token), wide,
                    keys, values);
        });
        for (long panel = 0; panel < TILE / PANEL; panel++)
            rows_times_panel(query, width, keys + panel * width * PANEL, PANEL, width,
                scores + panel * PANEL, TILE, lines, true, nullptr);
        soften(scores, lines, v.group, {position + 1 - token, v.window, v.softcap}, wide, total,
            peak, weight);
        for (long i = 0; i < wide; i += PANEL)
            rows_times_panel(scores, TILE, values + i, wide, TILE, total + i, wide, lines, false,
                nullptr);
    }
    for (long line = 0; line < lines; line++) {
        float* to = out + (start + unit.first + line / v.group) * out_row
            + (heads + line % v.group) * width;
        for (long i = 0; i < width; i++) to[i] = total[line * wide + i] / weight[line];
    }
}

void attend(Team& team, const View& v, const Work& work, const Chunks& c, const float* qkv,
    long qkv_row, float* out, long out_row, float* parts) {
    const long width = v.width, group = v.group, size = group * (width + 2);
    const long heads = v.kv_heads * group;
    const auto join_row = [&](long index) {
        const Unit& row = work.rows[index];
        for (long head = 0; head < v.kv_heads; head++)
            join(parts + (row.first * v.kv_heads + head) * size, v.kv_heads * size, row.end, group,
                width, is_tiled(v.kind), out + row.sequence * out_row + head * group * width);
    };
    // What runs by tiles is not there for other processors.
    const auto attend_tile = [&](const Unit& unit) {
        if constexpr (TILED)
            if (is_tiled(v.kind))
                return attend_rows_tiled(v, unit, c, qkv, qkv_row, out, out_row);
        attend_rows(v, unit, c, qkv, qkv_row, out, out_row);
    };
    const auto attend_piece = [&](const Unit& unit) {
        const float* queries = qkv + unit.sequence * qkv_row;
        float* part = parts + unit.part * v.kv_heads * size;
        if constexpr (TILED)
            if (is_tiled(v.kind))
                return attend_unit_tiled(v, unit, c.contexts[unit.sequence], queries, part);
        attend_unit(v, unit, queries, scratch(heads * width), part);
    };
    team.loop((long)work.units.size(), 1, [&](long index) {
        if (index < work.num_tiles) return attend_tile(work.units[index]);
        attend_piece(work.units[index]);
        // Where every row is one piece it is joined at once, which saves a barrier per layer.
        if (work.is_whole) join_row(index - work.num_tiles);
    });
    if (!work.is_whole) team.loop((long)work.rows.size(), 4, join_row);
}

extern "C" {

// Attention alone: of chunks of prompts, or of one query per sequence where `starts` is null.
void steelyard_attend(void* team, const float* query, const void* keys, const void* values,
    int64_t kind, const int64_t* tables, const int64_t* starts, const int64_t* contexts,
    int64_t sequences, int64_t heads, int64_t kv_heads, int64_t width, int64_t block_size,
    int64_t table_row, int64_t window, float softcap, float* out) {
    const Work work(sequences, starts ? 0 : sequences, kv_heads, heads / kv_heads, starts, contexts,
        window);
    const View view = {kind, keys, values, kv_heads, heads / kv_heads, width, block_size, tables,
        table_row, 1.0f / std::sqrt((float)width), softcap, window};
    std::vector<float> parts(work.num_parts * heads * (width + 2));
    const long row = heads * width;
    ((Team*)team)->run([&] {
        attend(*(Team*)team, view, work, {starts, contexts}, query, row, out, row, parts.data());
    });
}
}
