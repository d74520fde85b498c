// Products of rows with packed weights, and the calls of teams and products alone; the step's own
// are in step.cpp.
#include "products.h"
#include "tiles.h"

constexpr long HEIGHT = 192;  // rows that stay in the second-level cache: whole tiles of more
constexpr long GROUP = 4;     // panels that a thread takes at once

namespace {

template <class T>
T* at_least(std::vector<T>& memory, long size) {
    if ((long)memory.size() < size) memory.resize(size);
    return memory.data();
}

void multiply_tile(const Linear& map, const Span& s) {
    switch (map.kind) {
        case FP32: return multiply_floats(map, s);
        case BF16: return multiply_pairs(map, s);
        case FP16: return multiply_halves(map, s);
        case INT8: return multiply_bytes(map, s);
        case INT4: return multiply_nibbles(map, s);
        case BLOCK8:
        case BLOCK4: return multiply_blocks(map, s);
    }
}

// What a product works on.
struct Job {
    const Linear& map;
    const int32_t* tiles;
    long rows;
    float* out;
    long out_row;
    bool add;
    long panels = panels_of(map.outputs), lines = lines_of(map.kind, map.inputs);
    long piece = piece_of(map.kind, lines), most = tile_rows(map.kind, rows);

    // Where the weights of a panel's piece stand.
    const uint8_t* place(long panel, long line) const {
        return (const uint8_t*)map.packed + line_offset(map.kind, lines, panels, panel, line);
    }
};

// Multiplies rows [top, end) with one piece of the panels that a pass takes, and fetches meanwhile
// what comes next.
void multiply_piece(const Job& job, long panel, long line, long top, long end,
    const uint8_t* ahead) {
    const long step = job.most * row_words(job.map), depth = std::min(job.piece, job.lines - line);
    const long words = job.map.kind == FP16 ? 2 : 1;  // of a row in a line of these
    const long passes = (end - top + job.most - 1) / job.most, pace = PANELS * LINE / passes;
    Span s = {};
    s.depth = depth, s.out_row = job.out_row, s.fresh = !job.add && line == 0, s.pace = pace;
    for (long row = top; row < end; row += job.most, ahead += depth * pace) {
        s.rows = std::min(end - row, job.most), s.ahead = ahead;
        s.tile = job.tiles + row / job.most * step + line * words * tile_height(s.rows);
        for (long p = 0; p < PANELS; p++) {
            const long index = std::min(panel + p, job.panels - 1);
            s.panels[p] = {job.place(index, line), job.out + row * job.out_row + index * PANEL,
                line == 0 && job.map.bias ? job.map.bias + index * PANEL : nullptr, index};
        }
        multiply_tile(job.map, s);
    }
}

}  // namespace

long tile_words(long rows, long inputs) { return (rows + MOST_ROWS) * (inputs + 2 * CHUNK); }

int32_t* own_tiles(const Linear& map, long rows) {
    static thread_local std::vector<int32_t> memory;
    return at_least(memory, (rows + MOST_ROWS) * row_words(map));
}

float* own_row(long inputs) {
    static thread_local std::vector<float> memory;
    return at_least(memory, inputs);
}

void encode(const Linear& map, const float* x, long index, long rows, int32_t* tiles) {
    const long most = tile_rows(map.kind, rows), first = index / most * most;
    encode_row(map, x, tiles + first * row_words(map), tile_height(std::min(rows - first, most)),
        index - first);
}

void multiply(Team& team, const int32_t* tiles, long rows, const Linear& map, float* out,
    long out_row, bool add) {
    const Job job = {map, tiles, rows, out, out_row, add};
    const long groups = (job.panels + GROUP - 1) / GROUP;
    const long count = (rows + HEIGHT - 1) / HEIGHT * groups;
    team.loop_ahead(count, [&](long work, long next) {
        const long top = work / groups * HEIGHT, end = std::min(rows, top + HEIGHT);
        const long first = work % groups * GROUP, last = std::min(job.panels, first + GROUP);
        for (long line = 0; line < job.lines; line += job.piece)
            for (long panel = first; panel < last; panel += PANELS) {
                const bool ends = panel + PANELS >= last;
                const bool over = ends && line + job.piece >= job.lines;
                const uint8_t* ahead = over ? job.place((next < count ? next : work) % groups * GROUP, 0)
                    : (ends ? job.place(first, line + job.piece) : job.place(panel + PANELS, line));
                multiply_piece(job, panel, line, top, end, ahead);
            }
    });
}

extern "C" {

// Threads that the calls share; one call at a time.
void* steelyard_team(int64_t threads) { return new Team((int)threads); }
void steelyard_disband(void* team) { delete (Team*)team; }

// Bytes that `steelyard_pack` writes.
int64_t steelyard_packed_bytes(int64_t kind, int64_t outputs, int64_t inputs) {
    return panels_of(outputs) * lines_of(kind, inputs) * LINE;
}

// Lays a weight [outputs, inputs] out as the products read it.
void steelyard_pack(int64_t kind, const void* weights, int64_t outputs, int64_t inputs,
    void* packed) {
    pack(kind, weights, outputs, inputs, (uint8_t*)packed);
}

// Words that the tiles of a step take.
int64_t steelyard_tile_words(int64_t rows, int64_t inputs) { return tile_words(rows, inputs); }

void steelyard_linear(void* team, const float* x, int64_t x_row, int64_t rows, const Linear* map,
    float* out, int64_t out_row, int64_t add, int32_t* tiles) {
    ((Team*)team)->run([&] {
        const auto row = [&](long index, float*) { return x + index * x_row; };
        const int32_t* filled = fill_tiles(*(Team*)team, rows, *map, tiles, row);
        multiply(*(Team*)team, filled, rows, *map, out, out_row, add != 0);
    });
}

// What the products are compiled for: 3 AVX-512 with VNNI and bfloat16, 2 without bfloat16, 1
// AVX2, 0 none of these.
int64_t steelyard_level() {
#if defined(STEELYARD_BF16)
    return 3;
#elif defined(STEELYARD_WIDE)
    return 2;
#elif STEELYARD_CAP >= 1 && defined(__AVX2__)
    return 1;
#else
    return 0;
#endif
}
}
