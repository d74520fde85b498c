// Products of rows with packed weights, and the calls of teams and products alone; the step's own
// are in step.cpp.
#include "products.h"
#include "tiles.h"

constexpr long HEIGHT = 192;  // rows of a product that stay in the second-level cache
constexpr long GROUP = 4;     // panels that a thread takes at once
constexpr long ALONE = 4;     // rows that each thread turns into a tile itself: less than a barrier

namespace {

const int32_t* fill_tiles(Team& team, const float* x, long x_row, long rows,
    const Linear& map, int32_t* shared) {
    const long step = MOST_ROWS * row_words(map);
    if (rows <= ALONE) {
        static thread_local std::vector<int32_t> own;
        if ((long)own.size() < step) own.resize(step);
        fill_tile(map, x, x_row, rows, own.data());
        return own.data();
    }
    team.loop((rows + MOST_ROWS - 1) / MOST_ROWS, 1, [&](long tile) {
        const long first = tile * MOST_ROWS;
        fill_tile(map, x + first * x_row, x_row, std::min(rows - first, MOST_ROWS),
            shared + tile * step);
    });
    return shared;
}

void multiply_tile(const Linear& map, const Span& s) {
    switch (map.kind) {
        case FP32: return multiply_floats(map, s);
        case BF16: return multiply_pairs(map, s);
        case INT8: return multiply_bytes(map, s);
        case INT4: return multiply_nibbles(map, s);
    }
}

}  // namespace

long tile_words(long rows, long inputs) { return (rows + MOST_ROWS) * (inputs + 2); }

void product(Team& team, const float* x, long x_row, long rows, const Linear& map,
    float* out, long out_row, bool add, int32_t* shared) {
    const long panels = panels_of(map.outputs), groups = (panels + GROUP - 1) / GROUP;
    const long blocks = (rows + HEIGHT - 1) / HEIGHT, lines = lines_of(map.kind, map.inputs);
    const long piece = piece_of(map.kind, lines), step = MOST_ROWS * row_words(map);
    const int32_t* tiles = fill_tiles(team, x, x_row, rows, map, shared);
    const auto multiply = [&](long panel, long line, long top, long end) {
        const uint8_t* weights = (const uint8_t*)map.packed
            + line_offset(map.kind, lines, panels, panel, line);
        for (long row = top; row < end; row += MOST_ROWS) {
            const long height = std::min(end - row, MOST_ROWS);
            multiply_tile(map, {tiles + row / MOST_ROWS * step + line * tile_height(height),
                weights, std::min(piece, lines - line), out + row * out_row + panel * PANEL,
                out_row, height, !add && line == 0,
                line == 0 && map.bias ? map.bias + panel * PANEL : nullptr, panel});
        }
    };
    team.loop(blocks * groups, 1, [&](long work) {
        const long top = work / groups * HEIGHT, end = std::min(rows, top + HEIGHT);
        const long first = work % groups * GROUP;
        for (long line = 0; line < lines; line += piece)
            for (long panel = first; panel < std::min(panels, first + GROUP); panel++)
                multiply(panel, line, top, end);
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
        product(*(Team*)team, x, x_row, rows, *map, out, out_row, add != 0, tiles);
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
